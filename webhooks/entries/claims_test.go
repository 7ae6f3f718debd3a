package entries

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/fixtures"
)

// trusted is how long a replica may answer from a snapshot, with a margin for its clock.
const trusted = entryplan.Trust + entryplan.Trust/2

// path returns the path of the entry of a SidecarSet; "" if it has no entry.
func (c *cluster) path(t *testing.T, set *appsv1beta1.SidecarSet) string {
	t.Helper()
	entry, err := entryplan.Of(set)
	if err != nil {
		t.Fatal(err)
	}
	layout := c.store.current()
	i, at, ok := layout.Locate(entry.Name)
	if !ok {
		return ""
	}
	return *layout[i].Webhooks[at].ClientConfig.Service.Path
}

// For each content of a SidecarSet, the leader writes the entry once on the fresh path before
// it writes Ready. The entry leaves that path when no replica can answer from a snapshot
// without that content.
func TestTheLeaderClaimsAnEntryBeforeItSaysReady(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		expect := func(when, path string, ready bool, writes int) {
			t.Helper()
			if got := l.judged(t); got.Ready != ready || c.path(t, fixtures.LogSet(1)) != path || c.writes != writes {
				t.Fatalf("%s it says %+v after %d writes, on %q", when, got, c.writes, c.path(t, fixtures.LogSet(1)))
			}
		}
		window := 90*time.Second + trusted
		expect("when it is seen", entryplan.PathPodsFresh, true, 1)
		expect("and in the next pass, in which the window begins", entryplan.PathPodsFresh, true, 1)
		<-time.After(window - time.Second)
		expect("just before the end of the window", entryplan.PathPodsFresh, true, 1)
		<-time.After(time.Second)
		c.behind = func() error { return errors.New("the API server does not answer") }
		expect("while the leader cannot tell whether it knows all SidecarSets", entryplan.PathPodsFresh, true, 1)
		c.behind = func() error {
			l.sets.(*fixtures.Snapshots).Swap(fixtures.LogSet(1), reviewed("other"))
			return nil
		}
		<-time.After(settlePause)
		expect("while it learns of another one", entryplan.PathPodsFresh, true, 1)
		l.sets.(*fixtures.Snapshots).Swap(fixtures.LogSet(1))
		c.behind = func() error { return nil }
		expect("at once", entryplan.PathPodsFresh, true, 1)
		<-time.After(settlePause)
		expect("after the window", entryplan.PathPods, true, 2)
		// Another content of the same generation, as clients of v1alpha1 write it.
		set := fixtures.LogSet(1)
		set.Spec.CustomVersion = "2"
		l.sets.(*fixtures.Snapshots).Swap(set)
		c.err = errors.New("etcd is away")
		expect("while the claim cannot be written", entryplan.PathPods, false, 3)
		c.err = nil
		expect("of another content", entryplan.PathPodsFresh, true, 4)
		expect("and later", entryplan.PathPodsFresh, true, 4)
		for i, annotations := range []map[string]string{{"a": "b c:d"}, {"a": "b", "c": "d"}} { // both print alike
			set := set.DeepCopy()
			set.Annotations = annotations
			l.sets.(*fixtures.Snapshots).Swap(set)
			expect("of other annotations", entryplan.PathPodsFresh, true, 5+i)
		}
	})
}

// A new leader writes the entries of SidecarSets that are not Ready again, and begins every
// window again.
func TestANewLeaderBeginsEveryWindowAgain(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		set := fixtures.LogSet(1)
		l.judged(t)
		<-time.After(90 * time.Second)
		set.Status.Conditions = []metav1.Condition{{Type: appsv1beta1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
		l = newLeader(l.webhooks, l.sets, c, c)
		l.sets.(*fixtures.Snapshots).Swap(set)
		if got := l.judged(t); !got.Ready || c.writes != 1 {
			t.Errorf("of what was Ready it says %+v after %d writes", got, c.writes)
		}
		<-time.After(90 * time.Second)
		if l.judged(t); c.path(t, set) != entryplan.PathPodsFresh {
			t.Error("the window of another leader counts")
		}
		<-time.After(trusted)
		if l.judged(t); c.path(t, set) != entryplan.PathPods {
			t.Error("the entry stays on the fresh path")
		}
	})
}

// If the entry were added, API servers would refuse Pods, because no replica could answer.
func TestNoEntryIsAddedWhileThereIsNoReplica(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.replicas = 0
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonNoReplica || c.writes != 0 {
			t.Errorf("it says %+v after %d writes", got, c.writes)
		}
		c.replicas = 1
		if got := l.judged(t); !got.Ready {
			t.Errorf("when there is one it says %+v", got)
		}
		c.replicas = 0
		<-time.After(replicasKept)
		if got := l.judged(t); got.Reason != appsv1beta1.ReasonNoReplica || c.path(t, fixtures.LogSet(1)) == "" {
			t.Errorf("when it has gone it says %+v, and the entry is on %q", got, c.path(t, fixtures.LogSet(1)))
		}
		c.slicesErr = errors.New("forbidden") // under the manifests of an older version
		if got := l.judged(t); !got.Ready {
			t.Errorf("where it cannot be told it says %+v", got)
		}
	})
}
