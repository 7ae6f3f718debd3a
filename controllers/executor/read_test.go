package executor

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

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
			r.pass(t)
			var verbs []string
			for _, action := range r.client.Actions() {
				verbs = append(verbs, action.GetVerb())
			}
			if got := strings.Join(verbs, " "); got != tc.want {
				t.Errorf("requests are %q, want %q", got, tc.want)
			}
			if got := r.image(t, "p"); got != "side:v2" {
				t.Errorf("the image is %s", got)
			}
		})
	}
}
