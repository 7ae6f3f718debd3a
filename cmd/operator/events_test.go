package operator

import (
	"context"
	"errors"
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

func (r *recorded) Eventf(regarding, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	r.list = append(r.list, fmt.Sprint(time.Since(r.start), " ", regarding.(*corev1.ObjectReference).Name, " ", reason))
}

// recording is an Event, at a time after the beginning.
type recording struct {
	at    time.Duration
	event events.Event
}

func state(at time.Duration, name, reason string) recording {
	return recording{at, events.NotReady(events.SidecarSet{Name: name, UID: "u"}, reason, "why")}
}

// written runs a writer on these Events, which come in the order of their times, and returns what it writes in a
// minute, as "<time> <name> <reason>".
func written(t *testing.T, limits events.Limits, list []recording) (got []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := &recorded{start: time.Now()}
		w := newEventWriter(log, limits)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Start(ctx) }()
		for _, one := range list {
			<-time.After(one.at - time.Since(log.start))
			w.RecordEvent(one.event)
		}
		<-time.After(time.Minute - time.Since(log.start))
		synctest.Wait() // what Start wrote may be read
		got = log.list
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return got
}

func TestEventsAreWrittenWithinLimits(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	limits := events.Limits{Settle: time.Second, Again: 10 * time.Second, Between: 100 * time.Millisecond, Waiting: 3}
	about, pod := events.SidecarSet{Name: "a", UID: "u"}, events.Pod{Name: "p"}
	tests := map[string]struct {
		list []recording
		want []string
	}{
		"an Event is written when the state has lasted":     {[]recording{state(0, "a", "X")}, []string{"1s a X"}},
		"a state that does not last is not reported":        {[]recording{state(0, "a", "X"), state(500*ms, "a", "Y")}, []string{"1s a Y"}},
		"a state that keeps changing is reported too":       {[]recording{state(0, "a", "X"), state(900*ms, "a", "Y"), state(1100*ms, "a", "Z")}, []string{"1s a Y", "11s a Z"}},
		"the next state waits":                              {[]recording{state(0, "a", "X"), state(2*s, "a", "Y")}, []string{"1s a X", "11s a Y"}},
		"a state that is left for a moment makes one Event": {[]recording{state(0, "a", "X"), state(3*s, "a", "Y"), state(5*s, "a", "X")}, []string{"1s a X"}},
		"what is repeated is reported once":                 {[]recording{state(0, "a", "X"), state(3*s, "a", "X"), state(10*s, "a", "X")}, []string{"1s a X"}},
		"what comes again later is reported again":          {[]recording{state(0, "a", "X"), state(20*s, "a", "X")}, []string{"1s a X", "21s a X"}},
		"SidecarSets do not delay each other for long":      {[]recording{state(0, "a", "X"), state(10*ms, "b", "X"), state(20*ms, "c", "X")}, []string{"1s a X", "1.1s b X", "1.2s c X"}},
		"more than may wait are dropped":                    {[]recording{state(0, "a", "X"), state(10*ms, "b", "X"), state(20*ms, "c", "X"), state(30*ms, "d", "X")}, []string{"1s a X", "1.1s b X", "1.2s c X"}},
		"one that waits long delays no other":               {[]recording{state(0, "a", "X"), state(2*s, "a", "Y"), state(3*s, "b", "X")}, []string{"1s a X", "4s b X", "11s a Y"}},
		"other Actions and objects are no repeats": {
			[]recording{state(0, "a", "X"), {10 * ms, events.RevisionNotRecorded(about, errors.New("quota"))}, {20 * ms, events.ContainerNotReset(about, pod, errors.New("no"))}},
			[]string{"1s a X", "1.1s a RevisionNotRecorded", "1.2s p ResetContainerFailed"},
		},
		"a failure that repeats makes one Event, and a write of the Pod another": {
			[]recording{{0, events.ContainerNotReset(about, pod, errors.New("no"))}, {2 * s, events.ContainerNotReset(about, pod, errors.New("still no"))}, {2 * s, events.ContainerReset(about, events.Pod{Name: "p", Version: "8"})}},
			[]string{"1s p ResetContainerFailed", "3s p ResetContainerSucceed"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, written(t, limits, tc.list)); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever reviews cause, a process writes 20 Events at once, then 12 a minute.
func TestReviewsCauseFewEvents(t *testing.T) {
	var flood []recording
	for at := time.Duration(0); at < time.Minute; at += 50 * time.Millisecond {
		for i := range 200 {
			flood = append(flood, state(at, fmt.Sprint("set-", i), fmt.Sprint("Reason", at%3)))
		}
	}
	if got := written(t, events.ReviewLimits, flood); len(got) < 20 || len(got) > 32 {
		t.Errorf("%d Events are written in a minute", len(got))
	}
}

func TestFiveHundredSidecarSetsAreToldWithinAMinute(t *testing.T) {
	var all []recording
	for i := range 500 {
		all = append(all, state(0, fmt.Sprint("set-", i), "Injecting"))
	}
	if got := written(t, events.StateLimits, all); len(got) != 500 {
		t.Errorf("%d Events are written in a minute, want 500", len(got))
	}
}
