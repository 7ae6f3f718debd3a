package operator

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sidecarset/operator/internal/events"
)

// recorded keeps what is recorded, with the time since the beginning of the test.
type recorded struct {
	start time.Time
	list  []string
}

func (r *recorded) Eventf(regarding, _ runtime.Object, eventType, reason, action, note string, args ...any) {
	about := regarding.(*corev1.ObjectReference)
	r.list = append(r.list, fmt.Sprint(time.Since(r.start), " ", about.APIVersion, "/", about.Kind, " ", about.Name, " ", about.UID, " ", eventType, " ", reason, " ", action, ": ", fmt.Sprintf(note, args...)))
}

func TestEventsAreWrittenAtThePaceOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &recorded{start: time.Now()}
		w := newEventWriter(log, events.Limits{Settle: time.Second, Again: time.Minute, Between: time.Second, Waiting: 2})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Start(ctx) }()
		synctest.Wait()

		for i := range 3 { // the third is dropped
			w.RecordEvent(events.InForce(events.SidecarSet{Name: fmt.Sprint("set-", i), UID: "u"}, "InForce", "100%"))
		}
		<-time.After(time.Minute)
		synctest.Wait() // what Start wrote may be read
		want := []string{
			"1s apps.kruise.io/v1beta1/SidecarSet set-0 u Normal InForce PutInForce: 100%",
			"2s apps.kruise.io/v1beta1/SidecarSet set-1 u Normal InForce PutInForce: 100%",
		}
		if diff := cmp.Diff(want, log.list); diff != "" {
			t.Errorf("Events (-want +got):\n%s", diff)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
}
