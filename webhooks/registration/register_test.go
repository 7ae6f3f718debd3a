package registration

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sidecarset/operator/internal/podwebhook"
)

func TestAReviewReturnsWhenEveryAPIServerCallsForItsPods(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		set := reviewed("new")
		if err := c.review(t, l, set); err != nil {
			t.Fatal(err)
		}
		w, s := c.webhook(t, set)
		if w == nil || *w.FailurePolicy != admissionregistrationv1.Ignore || *w.TimeoutSeconds != 1 || *w.ClientConfig.Service.Path != podwebhook.PodsPath(s.Index, s.RequiredSerial) {
			t.Fatalf("the webhook is %+v", w)
		}
		if !l.prober.passed(s.Index, s.Serial) {
			t.Error("no API server was asked")
		}
		// A review of what is there already is written, too: a leader may be about to remove it.
		if err := c.review(t, l, set); err != nil {
			t.Fatal(err)
		}
		if _, again := c.webhook(t, set); again.Version == s.Version {
			t.Errorf("it was written at version %d only", s.Version)
		}
		c.lags = true
		start := time.Now()
		if err := c.review(t, l, reviewed("late")); err == nil || time.Since(start) > reviewTimeout {
			t.Errorf("API servers lag; after %v got %v", time.Since(start), err)
		}
	})
}

func TestReviewsThatComeTogetherShareAWrite(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		begun, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		c.writing = func(*admissionregistrationv1.MutatingWebhookConfiguration) error {
			once.Do(func() { close(begun); <-release })
			return nil
		}
		var all sync.WaitGroup
		answers := make([]error, 11)
		for i := range answers {
			set := reviewed("shared")
			set.Name = fmt.Sprint("shared-", i)
			all.Go(func() { answers[i] = c.review(t, l, set) })
			if i == 0 {
				<-begun
			}
		}
		synctest.Wait()
		close(release)
		all.Wait()
		if err := errors.Join(answers...); err != nil || c.writes != 2 {
			t.Errorf("%d writes, %v", c.writes, err)
		}
		if w, s := c.webhook(t, reviewed("shared")); w == nil || len(s.Dependencies[w.Name]) != len(answers) {
			t.Errorf("the shard has the dependencies %v", s.Dependencies)
		}
	})
}

func TestAReviewWritesAgainWhenTheShardHasChanged(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		set := reviewed("new")
		_, s := c.webhook(t, set)
		other := s.Object.DeepCopy()
		other.Annotations = map[string]string{"theirs": "1"}
		c.changeUnseen(other)
		if err := c.review(t, l, set); err != nil {
			t.Fatal(err)
		}
		if _, s := c.webhook(t, set); len(c.dependencies(t, set)) != 1 || s.Object.Annotations["theirs"] != "1" {
			t.Errorf("the shard is %+v", s.Object)
		}
		c.remove(s.Index)
		if err := c.review(t, l, set); err == nil || !strings.Contains(err.Error(), s.Object.Name) {
			t.Errorf("there is no object: %v", err)
		}
	})
}

// The admission plugin OwnerReferencesPermissionEnforcement refuses an owner.
func TestWebhooksAreWrittenWithoutAnOwnerWhereNoneIsAllowed(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.edit(func(edited *admissionregistrationv1.MutatingWebhookConfiguration) { edited.OwnerReferences = nil })
		c.writing = func(written *admissionregistrationv1.MutatingWebhookConfiguration) error {
			if len(written.OwnerReferences) > 0 {
				return apierrors.NewForbidden(configurationResource, written.Name, errors.New("cannot set blockOwnerDeletion"))
			}
			return nil
		}
		for _, time := range []string{"first", "second"} {
			if err := c.review(t, l, reviewed("new")); err != nil {
				t.Errorf("the %s time: %v", time, err)
			}
		}
		if got := l.judged(t); !got.Ready {
			t.Errorf("the leader says %+v", got)
		}
	})
}
