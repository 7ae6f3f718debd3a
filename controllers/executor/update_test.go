package executor

import (
	"context"
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
	"github.com/sidecarset/operator/internal/tracker"
)

// The kinds of results.
const isWritten, isStale, isRest = "written", "stale", "rest"

// check compares a result. The message has to contain says.
func check(t *testing.T, got tracker.Result, kind string, reason inplace.Reason, says string) {
	t.Helper()
	is := isStale
	switch {
	case got.Version != 0:
		is = isWritten
	case got.Reason != "":
		is = isRest
	}
	if is != kind || got.Reason != reason || !strings.Contains(got.Message, says) || len([]rune(got.Message)) > maxMessage {
		t.Errorf("the result is %s, %+v; want %s for %q: %q", is, got, kind, reason, says)
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
		kind       string
		reason     inplace.Reason
	}{
		"it is written":                        {0, false, nil, "side:v2", isWritten, ""},
		"another writer was faster":            {2, false, conflict, "side:v2", isWritten, ""},
		"another writer is always faster":      {99, false, conflict, "side:v1", isStale, ""},
		"an admission policy forbids it":       {1, false, status(http.StatusForbidden, metav1.StatusReasonForbidden), "side:v1", isRest, "WriteRejected"},
		"it is not valid":                      {1, false, status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), "side:v1", isRest, "WriteRejected"},
		"the Pod is gone":                      {1, false, apierrors.NewNotFound(pods, "p"), "side:v1", isStale, ""},
		"the Lease is old":                     {1, false, errNotLeading, "side:v1", isStale, ""},
		"an error, and then none":              {1, false, internal, "side:v2", isWritten, ""},
		"an error for a write that came true":  {1, true, internal, "side:v2", isWritten, ""},
		"a webhook that is always away":        {99, false, internal, "side:v1", isRest, "WriteFailed"},
		"a time-out of a write that came true": {99, true, context.DeadlineExceeded, "side:v2", isWritten, ""},
		"a time-out of one that did not":       {99, false, context.DeadlineExceeded, "side:v1", isRest, "WriteFailed"},
		"a defect":                             {-1, false, nil, "side:v1", isRest, "UpdateImpossible"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, outdated(t, "p"))
			r.failPatches(max(tc.fails, 0), tc.carriedOut, tc.err)
			if tc.fails < 0 {
				r.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { panic("nil map") })
			}
			check(t, r.try(t, "p", tracker.Update), tc.kind, tc.reason, "")
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
		"another has its name": {func(p *corev1.Pod) { p.UID = "other" }, "", ""},
		"OpenKruise was faster": {func(p *corev1.Pod) {
			p.Annotations["kruise.io/sidecarset-hash"] = `{"log":"` + compiled(t, "side:v2").Hash + `"}`
		}, "", ""},
		"it cannot be merged":    {func(p *corev1.Pod) { p.Annotations["list"] = "no object" }, inplace.UpdateImpossible, "list"},
		"it is not Ready by now": {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, "", ""},
		"it follows by now":      {func(p *corev1.Pod) { record(p, merging(t)) }, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, outdated(t, "p"))
			r.follow(merging(t))
			r.change(t, "p", tc.change)
			kind := isStale
			if tc.reason != "" {
				kind = isRest
			}
			check(t, r.try(t, "p", tracker.Update), kind, tc.reason, tc.says)
			if strings.Contains(r.verbs(), "patch") {
				t.Errorf("requests are %s", r.verbs())
			}
		})
	}
}

// merging is a compiled SidecarSet that merges an annotation.
func merging(t *testing.T) *inject.Compiled {
	t.Helper()
	return compiledOf(t, `containers: [{name: side, image: "side:v2", podInjectPolicy: AfterAppContainer}]
  patchPodMetadata: [{annotations: {list: '{"a":"b"}'}, patchPolicy: MergePatchJson}]`)
}

// A leader whose watch of SidecarSets is late does not write a Pod that may have a newer revision.
func TestALeaderThatLagsWritesNoNewPod(t *testing.T) {
	r := newRig(t, outdated(t, "p"))
	r.ahead = 1
	check(t, r.try(t, "p", tracker.Update), isStale, "", "")
	if got := r.image(t, "p"); got != "side:v1" {
		t.Errorf("the image is %s, want side:v1", got)
	}
}

// How the Pod was is recorded, and a Pod that is another way by now is not written.
func TestHowThePodWasIsRecorded(t *testing.T) {
	for _, was := range []podstate.StateBefore{podstate.WasReady, podstate.WasNotReady} {
		p := outdated(t, "p")
		if was == podstate.WasNotReady {
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		}
		r := newRig(t, p)
		item := r.of("p", tracker.Update)
		item.Was = podstate.WasNotReadyByUpdate
		check(t, r.carryOut(t.Context(), item), isStale, "", "")
		item.Was = was
		check(t, r.carryOut(t.Context(), item), isWritten, "", "")
		if webhooks, err := podstate.InPlaceRecordsOf(r.pod(t, "p")); err != nil || webhooks.Sets["log"].StateBefore != was {
			t.Errorf("the record is %+v, %v", webhooks, err)
		}
	}
}

// sizedCompiled is SidecarSet "log" whose sidecar requests this cpu.
func sizedCompiled(t *testing.T, cpu string) *inject.Compiled {
	t.Helper()
	return compiledOf(t, fmt.Sprintf(`containers: [{name: side, image: "side:v1", podInjectPolicy: AfterAppContainer, resources: {requests: {cpu: %q}}}]`, cpu))
}

func requests(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
}

// record gives a Pod the hashes of another revision.
func record(p *corev1.Pod, revision *inject.Compiled) {
	hash := func(h string) string {
		return podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "log", Hash: h, SidecarList: []string{"side"}}).String()
	}
	p.Annotations["kruise.io/sidecarset-hash"], p.Annotations["kruise.io/sidecarset-hash-without-image"] = hash(revision.Hash), hash(revision.HashWithoutImage)
}

// newSizedRig has Pods whose sidecar requests cpu 1, where the SidecarSet wants 2.
func newSizedRig(t *testing.T, names ...string) *rig {
	t.Helper()
	before, now := sizedCompiled(t, "1"), sizedCompiled(t, "2")
	var pods []*corev1.Pod
	for _, name := range names {
		pods = append(pods, injected(t, name, before))
	}
	r := newRig(t, pods...)
	r.follow(now)
	r.item.Revision = r.item.Revision.With(inplace.Differences{podstate.MakeName(before.HashWithoutImage): {
		Resources: []inplace.ResourceChange{{Container: "side", Old: requests("1"), New: requests("2")}},
	}})
	return r
}

func TestResizeAnswersDecideTheResult(t *testing.T) {
	pods := corev1.Resource("pods")
	noSuchPath := &apierrors.StatusError{ErrStatus: apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", pods, "p", "404 page not found", 0, true).ErrStatus}
	tests := map[string]struct {
		err    error
		kind   string
		reason inplace.Reason
		says   string
	}{
		"it is written":               {nil, isWritten, "", ""},
		"it is beyond the node":       {apierrors.NewForbidden(pods, "p", errors.New("no node is as large")), isRest, inplace.WriteRejected, "no node is as large"},
		"there is no such path":       {noSuchPath, isRest, inplace.ResizeUnsupported, "since 1.33"},
		"the method is not supported": {apierrors.NewMethodNotSupported(pods, "patch"), isRest, inplace.ResizeUnsupported, "since 1.33"},
		"the Pod is gone":             {apierrors.NewNotFound(pods, "p"), isStale, "", ""},
		"an error":                    {apierrors.NewInternalError(errors.New("a webhook is away")), isRest, inplace.WriteFailed, "a webhook is away"},
		"it is taken back":            {errUndone, isRest, inplace.WriteReverted, "the resources"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newSizedRig(t, "p", "q")
			r.answerResizes(tc.err)
			check(t, r.try(t, "p", tracker.Update), tc.kind, tc.reason, tc.says)
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
				check(t, r.try(t, "q", tracker.Update), isRest, inplace.ResizeUnsupported, "since 1.33")
				if r.verbs() != "get" {
					t.Errorf("for the next Pod, the requests are %s", r.verbs())
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

// Whether the kubelet of a Pod's node restarts native sidecars is known from the WorkItem.
func TestAKubeletThatIsTooOldIsNamed(t *testing.T) {
	native := func(image string) *inject.Compiled {
		return compiledOf(t, fmt.Sprintf(`initContainers: [{name: side, image: %q, restartPolicy: Always}]`, image))
	}
	p := outdated(t, "p")
	record(p, native("side:v1"))
	p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[1:], p.Spec.Containers[:1]
	p.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	p.Status.InitContainerStatuses, p.Status.ContainerStatuses = p.Status.ContainerStatuses[1:], p.Status.ContainerStatuses[:1]
	p.Spec.NodeName = "n"
	r := newRig(t, p)
	r.follow(native("side:v2"))
	item := r.of("p", tracker.Update)
	item.Node = inplace.Node{TooOld: true}
	check(t, r.carryOut(t.Context(), item), isRest, inplace.NodeTooOld, "node n has a kubelet older than 1.32")
	item.Node = inplace.Node{}
	check(t, r.carryOut(t.Context(), item), isWritten, "", "")
}
