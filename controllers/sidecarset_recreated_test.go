package controllers

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/status"
)

// A SidecarSet that is deleted and created again under its name is another one,
// although its generation is 1 again.
func TestReconcileWritesTheStatusOfARecreatedSidecarSetAtOnce(t *testing.T) {
	for _, before := range []int64{1, 5} {
		t.Run(fmt.Sprintf("after generation %d", before), func(t *testing.T) {
			r := newRig(t, before)
			r.pods.feed(t, webPod(1))
			r.board.replace(map[string]boardEntry{"log": {uid: "set-1", generation: before, readiness: ready(false)}})
			r.reconcile(t)
			if s := r.storedStatus(t); !meta.IsStatusConditionTrue(s.Conditions, appsv1beta1.ConditionReady) {
				t.Fatalf("before: %+v", s)
			}

			r.recreate(t, "set-2")
			r.reconcile(t)
			s := r.storedStatus(t)
			if s.MatchedPods != 1 || s.ObservedGeneration != 1 {
				t.Errorf("the status is not written at once: %+v", s)
			}
			if c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionReady); c != nil {
				t.Errorf("the new SidecarSet is said to be what the old one was: %+v", c)
			}

			r.board.replace(map[string]boardEntry{"log": {uid: "set-2", generation: 1, readiness: ready(false)}})
			r.reconcile(t)
			if s := r.storedStatus(t); !meta.IsStatusConditionTrue(s.Conditions, appsv1beta1.ConditionReady) {
				t.Errorf("Ready is not written at once: %+v", s)
			}
		})
	}
}

// While the snapshot still has the old one, nothing of it is written to the new
// one, and what the snapshot says next is not missed.
func TestReconcileWaitsForTheSnapshotOfARecreatedSidecarSet(t *testing.T) {
	r := newRig(t, 1)
	r.pods.feed(t, webPod(1))
	r.reconcile(t)
	r.pods.feed(t, webPod(2)) // announced, and not written yet
	<-r.pods.dirty
	young := logSet(1)
	young.UID, young.ResourceVersion = "set-2", "500"
	r.store.cached = newStore(t, young).cached
	if r.reconcile(t); r.store.writes() != 1 {
		t.Fatalf("%d writes, want that of the old one alone", r.store.writes())
	}
	r.sets.swap(young)
	select {
	case <-r.pods.dirty:
	case <-time.After(deadline):
		t.Fatal("the new SidecarSet is not announced")
	}
	r.reconcile(t)
	if s := r.storedStatus(t); r.store.writes() != 2 || s.MatchedPods != 2 {
		t.Errorf("%d writes, status %+v", r.store.writes(), s)
	}
}

// recreate gives the SidecarSet another UID, in the cache and in the snapshot.
func (r *rig) recreate(t *testing.T, uid types.UID) {
	t.Helper()
	young := logSet(1)
	young.UID, young.ResourceVersion = uid, "500"
	r.store.cached = newStore(t, young).cached
	r.sets.swap(young)
	eventually(t, func() error {
		n, err := r.pods.count(t.Context(), "log")
		if err == nil && (!n.Known || n.Program.Set.UID != uid) {
			err = fmt.Errorf("the tally does not know %s", uid)
		}
		return err
	})
}

func TestReadinessIsThatOfOneObject(t *testing.T) {
	b := newReadinessBoard()
	b.replace(map[string]boardEntry{"log": {uid: "old", generation: 1, readiness: status.Readiness{Ready: true}}})
	if b.Of("log", "new", 1) != nil {
		t.Error("a SidecarSet of the same name is ready")
	}
	if b.Of("log", "old", 1) == nil {
		t.Error("the SidecarSet itself is not")
	}
}
