package tally_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// older is the i-th Pod, with a content that has another hash without images.
func older(i int) *corev1.Pod {
	p := carrier(i, "v0")
	p.Annotations[appsv1beta1.AnnotationHashWithoutImage] = podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "log", Hash: "older"}).String()
	return p
}

func contents(d inplace.Difference) tally.Contents {
	return tally.Contents{podstate.MakeName("older"): d}
}

// A Pod waits for the decision whether it can be resized until its content has been compared.
func TestPodsWaitUntilTheirContentIsCompared(t *testing.T) {
	tests := map[string]struct {
		contents tally.Contents
		due      int
		blocked  inplace.Reason
	}{
		"resources alone":  {contents(inplace.Difference{}), 1, ""},
		"with a restart":   {contents(inplace.Difference{Restarts: true}), 0, inplace.ResizeRestarts},
		"more":             {contents(inplace.Difference{Other: true}), 0, inplace.ImmutableFieldChanged},
		"it is not stored": {tally.Contents{}, 0, inplace.ImmutableFieldChanged},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tl := tally.New(tally.Options{})
			rolling(t, tl, "v1", nil)
			set(tl, carrier(1, "v1"))
			if tl.State("log").Differs {
				t.Error("contents are to be compared though all Pods have the current one")
			}
			set(tl, older(0))
			state := tl.State("log")
			if r := state.Rollout; state.Contents != nil || !state.Differs || len(tl.Due("log", 10).Updates) != 0 || r.InTransition != 1 || len(r.Blocked) != 0 {
				t.Fatalf("before it is compared: known %v, needed %v, %+v", state.Contents, state.Differs, r)
			}
			tl.SetContents("log", "of another content", contents(inplace.Difference{}))
			if tl.State("log").Contents != nil {
				t.Fatal("a comparison with another content is taken")
			}
			tl.SetContents("log", "without", tc.contents)
			due := tl.Due("log", 10)
			var blocked inplace.Reason
			for _, group := range tl.State("log").Rollout.Blocked {
				blocked += inplace.Reason(group.Reason)
			}
			if len(due.Updates) != tc.due || blocked != tc.blocked || len(due.Contents) != len(tc.contents) {
				t.Errorf("due are %+v, blocked for %q; want %d and %q", due, blocked, tc.due, tc.blocked)
			}
		})
	}
}

var resizedAt = time.Unix(5000, 0).UTC()

// resizing is a Pod whose sidecar is being resized, with this cpu in its status.
func resizing(p *corev1.Pod, cpu string) *corev1.Pod {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	sizes := inplace.Sizes{At: resizedAt, Values: []inplace.Size{{Container: "side", Resource: corev1.ResourceCPU, Values: []string{"1", "2"}}}}
	p.Annotations[appsv1beta1.AnnotationInPlace] = inplace.Marks{}.WithSizes("log", sizes).Format(p.UID)
	p.Spec.Containers[0].Resources.Requests = list("2")
	p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: list(cpu)}
	return p
}

// While the kubelet resizes a Pod, the Pod is in transition, and holds no place of the budget.
// A Pod whose resize is to be reverted is outdated, whatever hash it records.
func TestAPodThatIsResizedIsInTransition(t *testing.T) {
	for name, p := range map[string]*corev1.Pod{"to the current content": older(0), "though it has the current hash": carrier(0, "v1")} {
		t.Run(name, func(t *testing.T) {
			tl := tally.New(tally.Options{})
			rolling(t, tl, "v1", nil)
			tl.SetContents("log", "without", contents(inplace.Difference{}))
			set(tl, resizing(p.DeepCopy(), "1"))
			if r := tl.State("log").Rollout; r.InTransition != 1 || r.Used != 0 || len(tl.Due("log", 1).Updates) != 0 {
				t.Errorf("while the kubelet is at it: %+v", r)
			}
			if n := tl.State("log").Count; n.Matched != 1 || n.Updated != 0 {
				t.Errorf("counters are %+v, want a Pod that is not updated", n.Counters)
			}
			tl.Settle(resizedAt.Add(time.Hour))
			if due := tl.Due("log", 1); len(due.Updates) != 1 || due.Updates[0].Way != inplace.Resize {
				t.Errorf("after a long silence due are %+v, want the Pod", due.Updates)
			} else {
				tl.WithQueue("log", func(q *rollout.Queue) { q.Hold(due.Updates[0], inplace.ResizeTimedOut, "silence") })
			}
			if due := tl.Due("log", 1); len(due.Updates) != 0 {
				t.Errorf("a Pod that is held is due")
			}
			set(tl, resizing(p.DeepCopy(), "2"))
			if due := tl.Due("log", 1); len(due.Updates) != 1 {
				t.Errorf("once the kubelet is done due are %+v, want the Pod", due.Updates)
			}
		})
	}
}

// The first batch tests a new size, too.
func TestTheFirstBatchWaitsForAResize(t *testing.T) {
	tl := tally.New(tally.Options{})
	rolling(t, tl, "v1", func(s *appsv1beta1.SidecarSet) {
		s.Annotations = map[string]string{appsv1beta1.AnnotationFirstBatch: "1"}
	})
	tl.SetContents("log", "without", contents(inplace.Difference{}))
	set(tl, resizing(older(0), "1"), older(1), older(2))
	if due := tl.Due("log", 10); len(due.Updates) != 0 || tl.State("log").Rollout.Limit != rollout.FirstBatch {
		t.Fatalf("due are %+v while the first Pod is resized, the limit is %q", due.Updates, tl.State("log").Rollout.Limit)
	}
	deferred := resizing(older(0), "1")
	deferred.Status.Conditions = append(deferred.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred})
	set(tl, deferred)
	due := tl.Due("log", 10).Updates
	if len(due) != 1 {
		t.Fatalf("due are %+v, want one", due)
	}
	if due[0].UID != types.UID("u-0") {
		return // another one is tried
	}
	tl.WithQueue("log", func(q *rollout.Queue) { q.Hold(due[0], inplace.ResizeDeferred, "later") })
	if due := tl.Due("log", 10).Updates; len(due) != 1 || due[0].UID == "u-0" {
		t.Errorf("due are %+v once the first is blocked, want another one", due)
	}
}
