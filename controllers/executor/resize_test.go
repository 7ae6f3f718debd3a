package executor

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

// sizedProgram is SidecarSet "log" whose sidecar requests this cpu.
func sizedProgram(t *testing.T, cpu string) *inject.Program {
	t.Helper()
	return programOf(t, fmt.Sprintf(`{"name":"side","image":"side:v1","resources":{"requests":{"cpu":%q}}}`, cpu))
}

// newSizedRig has Pods whose sidecar requests cpu 1, where the SidecarSet wants 2.
func newSizedRig(t *testing.T, names ...string) *rig {
	t.Helper()
	before, now := sizedProgram(t, "1"), sizedProgram(t, "2")
	requests := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
	}
	var pods []*corev1.Pod
	for _, name := range names {
		p := outdated(t, name)
		hash := func(h string) string {
			return podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "log", Hash: h, SidecarList: []string{"side"}}).String()
		}
		p.Annotations["kruise.io/sidecarset-hash"], p.Annotations["kruise.io/sidecarset-hash-without-image"] = hash(before.Hash), hash(before.HashWithoutImage)
		p.Spec.Containers[1].Resources = requests("1")
		p.Status.ContainerStatuses[1].Resources = new(requests("1"))
		pods = append(pods, p)
	}
	r := newRig(t, pods...)
	r.follow(now)
	r.tally.SetContents("log", now.HashWithoutImage, tally.Contents{podstate.MakeName(before.HashWithoutImage): {
		Resources: []inplace.ResourceChange{{Container: "side", Old: requests("1"), New: requests("2")}},
	}})
	return r
}

// answerResizes answers resizes with an error, or carries them out if it is nil, and
// notes which writes there are.
func (r *rig) answerResizes(writes *[]string, err error) {
	r.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*writes = append(*writes, action.GetSubresource())
		return action.GetSubresource() == "resize" && err != nil, nil, err
	})
}

func TestResizeAnswersDecideWhyAPodIsBlocked(t *testing.T) {
	resource := corev1.Resource("pods")
	noSuchPath := &apierrors.StatusError{ErrStatus: apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", resource, "p", "404 page not found", 0, true).ErrStatus}
	tests := map[string]struct {
		err     error
		blocked inplace.Reason
		message string
	}{
		"it is written":               {nil, "", ""},
		"it is beyond the node":       {apierrors.NewForbidden(resource, "p", errors.New("no node is as large")), inplace.Refused, "no node is as large"},
		"there is no such path":       {noSuchPath, inplace.ResizeUnsupported, "since 1.33"},
		"the method is not supported": {apierrors.NewMethodNotSupported(resource, "patch"), inplace.ResizeUnsupported, "since 1.33"},
		"the Pod is gone":             {apierrors.NewNotFound(resource, "p"), "", ""},
		"an error":                    {apierrors.NewInternalError(errors.New("a webhook is away")), inplace.WriteFailed, "a webhook is away"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newSizedRig(t, "p")
			var writes []string
			r.answerResizes(&writes, tc.err)
			r.pass(t)
			if len(writes) < 2 || writes[0] != "" || writes[1] != "resize" {
				t.Fatalf("writes are %q, want the record first, and then the resize", writes)
			}
			var blocked inplace.Reason
			var message string
			report := r.report()
			for _, group := range report.Blocked {
				blocked, message = blocked+inplace.Reason(group.Reason), message+group.Message
			}
			if blocked != tc.blocked || !strings.Contains(message, tc.message) {
				t.Errorf("blocked for %q: %q; want %q: %q", blocked, message, tc.blocked, tc.message)
			}
			p, err := r.client.CoreV1().Pods("a").Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if cpu := p.Spec.Containers[1].Resources.Requests.Cpu().String(); (cpu == "2") != (tc.err == nil) || !strings.Contains(p.Annotations["sidecarset.io/in-place"], "resizes") {
				t.Errorf("cpu %s, annotations %v", cpu, p.Annotations)
			}
		})
	}
}

// The Executor finds out once that the API server does not resize Pods: with the Pods that are
// written at the same time, and not with each Pod again.
func TestAMissingResizeSubresourceIsTriedOnce(t *testing.T) {
	r := newSizedRig(t, "p", "q", "r")
	var writes []string
	r.answerResizes(&writes, apierrors.NewMethodNotSupported(corev1.Resource("pods"), "patch"))
	r.pass(t)
	first := slices.Clone(writes)
	for range 3 {
		r.pass(t)
	}
	if !slices.Contains(first, "resize") || !slices.Equal(first, writes) {
		t.Errorf("writes are %q, and then %q", first, writes[len(first):])
	}
	if report := r.report(); len(report.Blocked) != 1 || report.Blocked[0].Reason != string(inplace.ResizeUnsupported) || report.Blocked[0].Pods != 3 || report.Used != 0 {
		t.Errorf("report %+v, want three blocked Pods", report)
	}
}
