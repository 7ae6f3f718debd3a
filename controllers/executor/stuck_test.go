package executor

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

func requests(cpu string) corev1.ResourceList {
	return corev1.ResourceList{"cpu": resource.MustParse(cpu)}
}

// stuckPods are Pods that cannot be updated in place, each for a reason that the Pod watch
// does not show.
var stuckPods = map[string]struct {
	native bool // the sidecar is one, and gets another image
	edit   func(*corev1.Pod)
	answer error // to a resize
	reason inplace.Reason
}{
	"with the QoS class Guaranteed": {edit: func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			all := corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: all, Limits: all}
		}
	}, reason: inplace.ImmutableFieldChanged},
	"that another writer has resized": {edit: func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Requests = requests("3") }, reason: inplace.ResourcesHeldElsewhere},
	"that its node can never resize": {edit: func(p *corev1.Pod) {
		p.Annotations["sidecarset.io/in-place"] = `{"v":1,"uid":"p","sets":{},"resizes":{"log":{"at":"2026-01-02T03:04:05Z","of":{"side":{"requests.cpu":["1","2"]}}}}}`
		p.Spec.Containers[1].Resources.Requests = requests("2")
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible})
	}, reason: inplace.ResizeInfeasible},
	"of an old API server": {edit: func(*corev1.Pod) {}, answer: apierrors.NewMethodNotSupported(corev1.Resource("pods"), "patch"), reason: inplace.ResizeUnsupported},
	"on an old node":       {native: true, edit: func(*corev1.Pod) {}, reason: inplace.NodeTooOld},
}

// newStuck has one Pod of stuckPods, and counts what the API server is asked to evict.
func newStuck(t *testing.T, name, mode string) (r *rig, evictions map[string]int) {
	t.Helper()
	tc := stuckPods[name]
	program := sizedProgram(t, "2")
	if tc.native {
		r, program = newNativeRig(t)
	} else {
		r = newSizedRig(t, "p")
	}
	var writes []string
	r.answerResizes(&writes, tc.answer)
	evictions = r.answerEvictions(func(*policyv1.Eviction) error { return nil })
	r.see(t, "p", func(p *corev1.Pod) {
		own(p)
		tc.edit(p)
	})
	r.recreate(program, mode)
	return r, evictions
}

// newNativeRig has a Pod with a native sidecar of an older image, on a Node whose kubelet
// is too old to restart it.
func newNativeRig(t *testing.T) (*rig, *inject.Program) {
	t.Helper()
	before, now := nativeProgram(t, "side:v1"), nativeProgram(t, "side:v2")
	p := outdated(t, "p")
	hash := func(h string) string {
		return podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "log", Hash: h, SidecarList: []string{"side"}}).String()
	}
	p.Annotations["kruise.io/sidecarset-hash"], p.Annotations["kruise.io/sidecarset-hash-without-image"] = hash(before.Hash), hash(before.HashWithoutImage)
	p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[1:], p.Spec.Containers[:1]
	p.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	p.Status.InitContainerStatuses, p.Status.ContainerStatuses = p.Status.ContainerStatuses[1:], p.Status.ContainerStatuses[:1]
	p.Spec.NodeName = "n"
	r := newRig(t, p)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.NodeInfo.KubeletVersion = "v1.31.4"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := r.client.Tracker().Add(node); err != nil {
		t.Fatal(err)
	}
	return r, now
}

func nativeProgram(t *testing.T, image string) *inject.Program {
	t.Helper()
	object := programOf(t, `{"name":"side","image":"`+image+`"}`).Set.DeepCopy()
	object.Spec.InitContainers, object.Spec.Containers = object.Spec.Containers, nil
	object.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]any
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	p, err := inject.Compile(raw)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A Pod whose record shows a way to update it in place, but whose live state shows none, is
// evicted if the mode asks for it. Otherwise it is blocked with the reason.
func TestPodsWhoseLiveStateIsStuckAreEvicted(t *testing.T) {
	for name, tc := range stuckPods {
		for _, mode := range []string{"Outdated", "All", "Uninjected", "Never"} {
			t.Run(name+", "+mode, func(t *testing.T) {
				r, evictions := newStuck(t, name, mode)
				for range 4 {
					r.pass(t)
				}
				want, blocked := 0, tc.reason
				if mode == "Outdated" || mode == "All" {
					want, blocked = 1, "Evicted"
				}
				report := r.report()
				if evictions["p"] != want || len(report.Blocked) != 1 || report.Blocked[0].Reason != string(blocked) || report.Used != want {
					t.Errorf("evicted %d times, %+v; want %d times, and blocked for %s", evictions["p"], report, want, blocked)
				}
			})
		}
	}
}

// The message of a blocked Pod names its Node and the Node's problem.
func TestBlockedPodsNameWhatIsWrongWithTheirNode(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*corev1.Node)
		want string
	}{
		"an old kubelet": {func(*corev1.Node) {}, "NodeTooOld: node n has a kubelet older than 1.32, which does not restart native sidecars"},
		"not ready": {func(n *corev1.Node) {
			n.Status.NodeInfo.KubeletVersion = "v1.37.1"
			n.Status.Conditions[0].Status = corev1.ConditionFalse
		}, "NodeNotReady: node n is not ready, or does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			r, program := newNativeRig(t)
			node, err := r.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			tc.edit(node)
			if _, err := r.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			r.recreate(program, "Never")
			r.pass(t)
			blocked := r.report().Blocked
			if len(blocked) != 1 || blocked[0].Reason+": "+blocked[0].Message != tc.want {
				t.Errorf("blocked: %+v, want %q", blocked, tc.want)
			}
		})
	}
}

// The Pod is read again before it is evicted: the reason for which it was stuck may be gone.
func TestAPodThatIsNotStuckAnyMoreIsNotEvicted(t *testing.T) {
	r, evictions := newStuck(t, "that another writer has resized", "Outdated")
	r.pass(t)
	if report := r.report(); report.Waiting != 1 || len(report.Blocked) != 0 {
		t.Fatalf("%+v, want one Pod that waits to be evicted", report)
	}
	r.see(t, "p", func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Requests = requests("1") })
	due := r.tally.Due("log", 1)
	if len(due.Updates) != 1 {
		t.Fatalf("%+v; want the Pod to be given out", due)
	}
	take := due.Updates[0]
	if o := r.carryOut(t.Context(), due, take); o.result != stale || take.Way != inplace.Recreate {
		t.Errorf("%+v has the outcome %+v, want none", take, o)
	}
	r.tally.NotEvicted("log", take)
	if err := r.look(t.Context(), item{sidecarSet: "log", take: take}); err != nil { // it has rested
		t.Fatal(err)
	}
	r.wantResized(t, evictions)
}

// wantResized has the Executor take the Pod, and checks that it is resized.
func (r *rig) wantResized(t *testing.T, evictions map[string]int) {
	t.Helper()
	r.pass(t)
	p, err := r.client.CoreV1().Pods("a").Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if cpu := p.Spec.Containers[1].Resources.Requests.Cpu().String(); cpu != "2" || len(evictions) != 0 {
		t.Errorf("cpu %s, evictions %v; want the Pod to be resized", cpu, evictions)
	}
}

// The leader continues to try a Pod in place that must not be evicted, and reports why it
// cannot be updated.
func TestAStuckPodThatMustNotBeEvictedIsTriedInPlace(t *testing.T) {
	r, evictions := newStuck(t, "that another writer has resized", "Outdated")
	r.see(t, "p", func(p *corev1.Pod) { p.OwnerReferences = nil })
	r.pass(t)
	if report := r.report(); len(report.Blocked) != 1 || report.Blocked[0].Reason != string(inplace.ResourcesHeldElsewhere) || !strings.Contains(report.Blocked[0].Message, "neither") {
		t.Fatalf("%+v, want it blocked with the reason", report)
	}
	r.see(t, "p", func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Requests = requests("1") })
	if err := r.look(t.Context(), item{sidecarSet: "log", held: "p"}); err != nil { // it has rested
		t.Fatal(err)
	}
	r.wantResized(t, evictions)
}
