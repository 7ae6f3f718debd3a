package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// check compares a result. The message has to contain says.
func check(t *testing.T, got rollout.Result, kind rollout.ResultKind, reason inplace.Reason, says string) {
	t.Helper()
	if got.Kind != kind || got.Reason != reason || !strings.Contains(got.Message, says) || len([]rune(got.Message)) > maxMessage {
		t.Errorf("the result is %s, %+v; want %s for %q: %q", resultNames[got.Kind], got, resultNames[kind], reason, says)
	}
}

func TestPodWriteAnswersDecideTheResult(t *testing.T) {
	pods := corev1.Resource("pods")
	status := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: strings.Repeat("ä", 1000)}}
	}
	internal := status(http.StatusInternalServerError, metav1.StatusReasonInternalError)
	conflict := apierrors.NewConflict(pods, "p", errors.New("changed"))
	tests := map[string]struct {
		fails      int
		carriedOut bool
		err        error
		image      string
		kind       rollout.ResultKind
		reason     inplace.Reason
	}{
		"it is written":                        {0, false, nil, "side:v2", rollout.Written, ""},
		"another writer was faster":            {2, false, conflict, "side:v2", rollout.Written, ""},
		"another writer is always faster":      {99, false, conflict, "side:v1", rollout.Stale, ""},
		"an admission policy forbids it":       {1, false, status(http.StatusForbidden, metav1.StatusReasonForbidden), "side:v1", rollout.Refused, "Refused"},
		"it is not valid":                      {1, false, status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), "side:v1", rollout.Refused, "Refused"},
		"the Pod is gone":                      {1, false, apierrors.NewNotFound(pods, "p"), "side:v1", rollout.Stale, ""},
		"the Lease is old":                     {1, false, errNotLeading, "side:v1", rollout.Stale, ""},
		"an error, and then none":              {1, false, internal, "side:v2", rollout.Written, ""},
		"an error for a write that came true":  {1, true, internal, "side:v2", rollout.Written, ""},
		"a webhook that is always away":        {99, false, internal, "side:v1", rollout.Failed, "WriteFailed"},
		"a time-out of a write that came true": {99, true, context.DeadlineExceeded, "side:v2", rollout.Written, ""},
		"a time-out of one that did not":       {99, false, context.DeadlineExceeded, "side:v1", rollout.Failed, "WriteFailed"},
		"a defect":                             {-1, false, nil, "side:v1", rollout.Blocked, "UpdateImpossible"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, outdated(t, "p"))
			r.failPatches(max(tc.fails, 0), tc.carriedOut, tc.err)
			if tc.fails < 0 {
				r.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { panic("nil map") })
			}
			check(t, r.try(t, "p", inplace.Images), tc.kind, tc.reason, "")
			if got := r.image(t, "p"); got != tc.image {
				t.Errorf("the image is %s, want %s", got, tc.image)
			}
		})
	}
}

// The rollout's state of a Pod may be out of date.
func TestALivePodThatDiffersIsNotWritten(t *testing.T) {
	tests := map[string]struct {
		change func(*corev1.Pod)
		reason inplace.Reason
		says   string
	}{
		"it is being deleted": {func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"a/b"}
		}, "", ""},
		"it is finished":       {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "", ""},
		"another has its name": {func(p *corev1.Pod) { p.UID = "other" }, "", ""},
		"it is not selected":   {func(p *corev1.Pod) { p.Labels = nil }, "", ""},
		"OpenKruise was faster": {func(p *corev1.Pod) {
			p.Annotations["kruise.io/sidecarset-hash"] = `{"log":"` + program(t, "side:v2").Hash + `"}`
		}, "", ""},
		"its record is damaged":  {func(p *corev1.Pod) { p.Annotations["sidecarset.io/in-place"] = "?" }, inplace.RecordUnreadable, ""},
		"it must be made anew":   {func(p *corev1.Pod) { delete(p.Annotations, "kruise.io/sidecarset-hash-without-image") }, inplace.RevisionUnknown, ""},
		"it runs to completion":  {func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }, inplace.RunToCompletion, ""},
		"it cannot be merged":    {func(p *corev1.Pod) { p.Annotations["list"] = "no object" }, inplace.UpdateImpossible, "list"},
		"it is available by now": {func(*corev1.Pod) {}, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, outdated(t, "p"))
			r.follow(merging(t))
			r.change(t, "p", tc.change)
			take := rollout.Take{UID: "p", Namespace: podstate.MakeNamespace("a"), Name: "p", Way: inplace.Images, Free: name == "it is available by now"}
			kind := rollout.Stale
			if tc.reason != "" {
				kind = rollout.Blocked
			}
			check(t, r.carryOut(t.Context(), r.due, take), kind, tc.reason, tc.says)
			if strings.Contains(r.verbs(), "patch") {
				t.Errorf("requests are %s", r.verbs())
			}
		})
	}
}

// merging is a Program that merges an annotation.
func merging(t *testing.T) *inject.Program {
	t.Helper()
	text, err := json.Marshal(program(t, "side:v2").Set)
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{}
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	object["spec"].(map[string]any)["patchPodMetadata"] = []any{map[string]any{"annotations": map[string]any{"list": `{"a":"b"}`}, "patchPolicy": "MergePatchJson"}}
	p, err := inject.Compile(object)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A leader whose watch of SidecarSets is late does not write a Pod that may carry a newer content.
func TestALeaderThatLagsWritesNoNewPod(t *testing.T) {
	r := newRig(t, outdated(t, "p"))
	r.ahead = 1
	check(t, r.try(t, "p", inplace.Images), rollout.Stale, "", "")
	if got := r.image(t, "p"); got != "side:v1" {
		t.Errorf("the image is %s, want side:v1", got)
	}
}

// A program that takes a write back is seen at the first write.
func TestAWriteWithoutEffectIsSeenAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		undo func(*corev1.Pod)
		says string
	}{
		"the image":                      {func(p *corev1.Pod) { p.Spec.Containers[1].Image = "side:v1" }, "the image of container side"},
		"the annotation":                 {func(p *corev1.Pod) { delete(p.Annotations, "kruise.io/sidecarset-hash") }, "kruise.io/sidecarset-hash"},
		"an image that is mirrored only": {func(p *corev1.Pod) { p.Spec.Containers[1].Image = "mirror/side:v2" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, outdated(t, "p"))
			r.changeAnswers(tc.undo)
			if tc.says == "" {
				check(t, r.try(t, "p", inplace.Images), rollout.Written, "", "")
			} else {
				check(t, r.try(t, "p", inplace.Images), rollout.Blocked, inplace.WriteUndone, tc.says)
			}
			if r.verbs() != "get patch" {
				t.Errorf("requests are %s", r.verbs())
			}
		})
	}
}

// changeAnswers has another program change each write of a Pod.
func (r *rig) changeAnswers(change func(*corev1.Pod)) {
	r.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		_, object, err := clienttesting.ObjectReaction(r.client.Tracker())(action)
		if err != nil {
			return true, nil, err
		}
		after := object.(*corev1.Pod).DeepCopy()
		change(after)
		return true, after, nil
	})
}

// A webhook rewrites two new images, and one of them to what the container had before.
func TestAnImageThatIsRewrittenToTheOldOneIsNotTakenBack(t *testing.T) {
	contents := func(version string) *inject.Program {
		return programOf(t, fmt.Sprintf(`{"name":"side","image":"side:%s"},{"name":"other","image":"other:%[1]s"}`, version))
	}
	p := outdated(t, "p")
	record(p, contents("v1"))
	other, status := p.Spec.Containers[1].DeepCopy(), p.Status.ContainerStatuses[1].DeepCopy()
	other.Name, other.Image, status.Name = "other", "other@sha256:same", "other"
	p.Spec.Containers, p.Status.ContainerStatuses = append(p.Spec.Containers, *other), append(p.Status.ContainerStatuses, *status)
	r := newRig(t, p)
	r.follow(contents("v2"))
	r.changeAnswers(func(p *corev1.Pod) {
		p.Spec.Containers[1].Image, p.Spec.Containers[2].Image = "side@sha256:new", "other@sha256:same"
	})
	check(t, r.try(t, "p", inplace.Images), rollout.Written, "", "")
}

// The API server's memory may be old. An old read leads to a write that fails by its
// precondition, or to a live read.
func TestAnOldReadIsHarmless(t *testing.T) {
	for name, tc := range map[string]struct {
		remembered func(*corev1.Pod) // nil: nothing
		want       string            // requests
	}{
		"it is current":            {func(*corev1.Pod) {}, "get patch"},
		"it does not know the Pod": {nil, "get get patch"},
		"the Pod had other labels": {func(p *corev1.Pod) { p.Labels = nil }, "get get patch"},
		"another Pod had the name": {func(p *corev1.Pod) { p.UID = "other" }, "get get patch"},
		"the Pod has been written": {func(p *corev1.Pod) { p.ResourceVersion = "6" }, "get patch get patch"},
		"the Pod was not to be":    {func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }, "get get patch"},
		"the Pod had been followed": {func(p *corev1.Pod) {
			p.Annotations["kruise.io/sidecarset-hash"] = `{"log":"` + program(t, "side:v2").Hash + `"}`
		}, "get get patch"},
	} {
		t.Run(name, func(t *testing.T) {
			p := outdated(t, "p")
			r := newRig(t, p)
			r.client.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if action.(clienttesting.GetActionImpl).GetOptions.ResourceVersion != "0" {
					return false, nil, nil
				}
				if tc.remembered == nil {
					return true, nil, apierrors.NewNotFound(corev1.Resource("pods"), "p")
				}
				old := p.DeepCopy()
				tc.remembered(old)
				return true, old, nil
			})
			r.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if !strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), `"resourceVersion":"7"`) {
					return true, nil, apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("changed"))
				}
				return false, nil, nil
			})
			check(t, r.try(t, "p", inplace.Images), rollout.Written, "", "")
			if r.verbs() != tc.want || r.image(t, "p") != "side:v2" {
				t.Errorf("requests are %q, want %q; the image is %s", r.verbs(), tc.want, r.image(t, "p"))
			}
		})
	}
}

// sizedProgram is SidecarSet "log" whose sidecar requests this cpu.
func sizedProgram(t *testing.T, cpu string) *inject.Program {
	t.Helper()
	return programOf(t, fmt.Sprintf(`{"name":"side","image":"side:v1","resources":{"requests":{"cpu":%q}}}`, cpu))
}

func requests(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
}

// record gives a Pod the hashes of a content.
func record(p *corev1.Pod, content *inject.Program) {
	hash := func(h string) string {
		return podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "log", Hash: h, SidecarList: []string{"side"}}).String()
	}
	p.Annotations["kruise.io/sidecarset-hash"], p.Annotations["kruise.io/sidecarset-hash-without-image"] = hash(content.Hash), hash(content.HashWithoutImage)
}

// newSizedRig has Pods whose sidecar requests cpu 1, where the SidecarSet wants 2.
func newSizedRig(t *testing.T, names ...string) *rig {
	t.Helper()
	before, now := sizedProgram(t, "1"), sizedProgram(t, "2")
	var pods []*corev1.Pod
	for _, name := range names {
		p := outdated(t, name)
		record(p, before)
		p.Spec.Containers[1].Resources = requests("1")
		p.Status.ContainerStatuses[1].Resources = new(requests("1"))
		pods = append(pods, p)
	}
	r := newRig(t, pods...)
	r.follow(now)
	r.due.Content = r.due.Content.With(inplace.Differences{podstate.MakeName(before.HashWithoutImage): {
		Resources: []inplace.ResourceChange{{Container: "side", Old: requests("1"), New: requests("2")}},
	}})
	return r
}

func TestResizeAnswersDecideTheResult(t *testing.T) {
	pods := corev1.Resource("pods")
	noSuchPath := &apierrors.StatusError{ErrStatus: apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", pods, "p", "404 page not found", 0, true).ErrStatus}
	tests := map[string]struct {
		err    error
		kind   rollout.ResultKind
		reason inplace.Reason
		says   string
	}{
		"it is written":               {nil, rollout.Written, "", ""},
		"it is beyond the node":       {apierrors.NewForbidden(pods, "p", errors.New("no node is as large")), rollout.Refused, inplace.Refused, "no node is as large"},
		"there is no such path":       {noSuchPath, rollout.Blocked, inplace.ResizeUnsupported, "since 1.33"},
		"the method is not supported": {apierrors.NewMethodNotSupported(pods, "patch"), rollout.Blocked, inplace.ResizeUnsupported, "since 1.33"},
		"the Pod is gone":             {apierrors.NewNotFound(pods, "p"), rollout.Stale, "", ""},
		"an error":                    {apierrors.NewInternalError(errors.New("a webhook is away")), rollout.Failed, inplace.WriteFailed, "a webhook is away"},
		"it is taken back":            {errUndone, rollout.Blocked, inplace.WriteUndone, "the resources"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newSizedRig(t, "p", "q")
			r.answerResizes(tc.err)
			check(t, r.try(t, "p", inplace.Resize), tc.kind, tc.reason, tc.says)
			if !strings.HasPrefix(r.verbs(), "get patch patch/resize") {
				t.Fatalf("requests are %q, want the record first, and then the resize", r.verbs())
			}
			p := r.pod(t, "p")
			if cpu := p.Spec.Containers[1].Resources.Requests.Cpu().String(); (cpu == "2") != (tc.err == nil) || !strings.Contains(p.Annotations["sidecarset.io/in-place"], "resizes") {
				t.Errorf("cpu %s, annotations %v", cpu, p.Annotations)
			}
			// A subresource that is missing is tried once.
			if tc.reason == inplace.ResizeUnsupported {
				r.client.ClearActions()
				if got := r.try(t, "q", inplace.Resize); !got.Recreate || r.verbs() != "get" {
					t.Errorf("the next Pod: %+v, requests %s", got, r.verbs())
				}
			}
		})
	}
}

var errUndone = errors.New("another program takes it back")

// answerResizes answers resizes with an error, or carries them out if it is nil.
func (r *rig) answerResizes(err error) {
	r.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch {
		case action.GetSubresource() != "resize" || err == nil:
			return false, nil, nil
		case errors.Is(err, errUndone):
			p, err := r.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "a", action.(clienttesting.PatchAction).GetName())
			return true, p, err
		}
		return true, nil, err
	})
}

// stuckPods are Pods that cannot be updated in place, each for a reason that the Pod watch
// does not show.
var stuckPods = map[string]struct {
	edit   func(*corev1.Pod)
	node   *corev1.Node // the sidecar is a native one
	reason inplace.Reason
	says   string
	stays  bool // a new Pod would not help
}{
	"with the QoS class Guaranteed": {edit: func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			all := corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: all, Limits: all}
		}
	}, reason: inplace.ImmutableFieldChanged, says: "QoS class"},
	"that another writer has resized": {edit: func(p *corev1.Pod) { p.Spec.Containers[1].Resources = requests("3") }, reason: inplace.ResourcesHeldElsewhere, says: "neither"},
	"on an old node":                  {node: node("v1.31.4", corev1.ConditionTrue), reason: inplace.NodeTooOld, says: "node n has a kubelet older than 1.32"},
	"on a node that is not ready":     {node: node("v1.37.1", corev1.ConditionFalse), reason: inplace.NodeNotReady, says: "node n is not ready", stays: true},
}

func node(kubelet string, ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	n.Status.NodeInfo.KubeletVersion = kubelet
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
}

// newStuckRig has Pod p of stuckPods.
func newStuckRig(t *testing.T, name string) *rig {
	t.Helper()
	tc := stuckPods[name]
	if tc.node == nil {
		r := newSizedRig(t, "p")
		r.change(t, "p", tc.edit)
		return r
	}
	native := func(image string) *inject.Program {
		object := map[string]any{}
		text, err := json.Marshal(program(t, image).Set)
		if err != nil || json.Unmarshal(text, &object) != nil {
			t.Fatal(err)
		}
		spec := object["spec"].(map[string]any)
		spec["initContainers"] = []any{map[string]any{"name": "side", "image": image, "restartPolicy": "Always"}}
		delete(spec, "containers")
		p, err := inject.Compile(object)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := outdated(t, "p")
	record(p, native("side:v1"))
	p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[1:], p.Spec.Containers[:1]
	p.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	p.Status.InitContainerStatuses, p.Status.ContainerStatuses = p.Status.ContainerStatuses[1:], p.Status.ContainerStatuses[:1]
	p.Spec.NodeName = "n"
	r := newRig(t, p)
	r.follow(native("side:v2"))
	if err := r.client.Tracker().Add(tc.node.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	return r
}

// A Pod whose record shows a way to update it in place, but whose live state shows none, is
// blocked with the reason. The rollout learns whether a new Pod would help.
func TestPodsWhoseLiveStateIsStuckAreBlocked(t *testing.T) {
	for name, tc := range stuckPods {
		t.Run(name, func(t *testing.T) {
			got := newStuckRig(t, name).try(t, "p", inplace.Images)
			if check(t, got, rollout.Blocked, tc.reason, tc.says); got.Recreate == tc.stays {
				t.Errorf("recreate: %v", got.Recreate)
			}
		})
	}
}
