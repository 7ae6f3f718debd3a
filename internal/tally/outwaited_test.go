package tally_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// After a retag with an equal digest, a runtime may continue to report another name of the
// image: nothing ever shows that OpenKruise's update is over. The Pod must neither wait for
// ever for the next update, nor hold its place of the budget.
func TestAnUpdateOfAnotherOperatorEnds(t *testing.T) {
	retagged := func(i int) *corev1.Pod {
		p := carrier(i, "v2")
		p.Annotations[appsv1beta1.AnnotationHash] = podstate.Hashes{}.With(podstate.HashRecord{
			SidecarSetName: "log", Hash: "hash-v2", UpdateTimestamp: time.Unix(5000, 0),
		}).String()
		p.Status.ContainerStatuses[0].Image = "alias"
		p.Annotations[appsv1beta1.AnnotationInPlaceUpdateState] = `{"log":{"lastContainerStatuses":{"side":{"imageID":"r@sha256:v2"}}}}`
		return p
	}
	const end = 5000 + 30 + 5*60
	for image, before := range map[string]rollout.Report{"v2": {Used: 1}, "v3": {InTransition: 1, Outdated: 1}} {
		t.Run("wanted is "+image, func(t *testing.T) {
			tl := newTally()
			rolling(t, tl, image, nil)
			set(tl, retagged(0))
			for _, at := range []int64{5001, end - 1} {
				tl.Settle(time.Unix(at, 0))
				if r := tl.State("log").Rollout; r.Used != before.Used || r.InTransition != before.InTransition || r.Outdated != before.Outdated {
					t.Errorf("%d s before the end: %+v, want %+v", end-at, r, before)
				}
			}
			tl.Settle(time.Unix(end, 0))
			if r := tl.State("log").Rollout; r.Used != 0 || r.InTransition != 0 || r.Waiting != before.Outdated {
				t.Errorf("in the end: %+v, want neither in flight nor in transition", r)
			}
			again := retagged(0)
			again.Annotations["example.com/note"] = "x"
			set(tl, again)
			if r := tl.State("log").Rollout; r.Used != 0 || r.InTransition != 0 {
				t.Errorf("after another event: %+v, want neither in flight nor in transition", r)
			}
			if due := tl.Due("log", 8); len(due.Updates) != before.Outdated {
				t.Errorf("%d Pods are due in the end, want %d", len(due.Updates), before.Outdated)
			}
		})
	}
}
