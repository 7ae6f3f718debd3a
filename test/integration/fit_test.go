package integration

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/test/testkit"
)

// A Pod that does not fit its sidecars is refused exactly if the API server refuses the same Pod
// with the same containers written by hand. Where the operator refuses it, the message names the
// SidecarSet.
func TestPodsThatDoNotFitTheirSidecarsAreRefusedByName(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	for i, fit := range fixtures.Fits {
		t.Run(fit.Name, func(t *testing.T) {
			t.Parallel()
			needServer(t, fit.Since)
			app := fmt.Sprint("fit-", i)
			set := createSidecarSet(t, namespace, "selector: {matchLabels: {app: "+app+"}}\nupdateStrategy: {type: NotUpdate}\n"+inNamespace+fit.Set)
			err := createdAsByHand(t, api, fit, namespace, app)
			if len(fit.Says) == 0 {
				return
			}
			for _, part := range append(fit.Says, fmt.Sprintf("SidecarSet %q does not fit this Pod", set.GetName())) {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("error %v\nwant one that says %q", err, part)
				}
			}
		})
	}
}

// createdAsByHand creates a Pod with that label, and checks that it is refused exactly if the API
// server refuses it with the same containers written by hand. It returns the refusal.
func createdAsByHand(t *testing.T, api client.Client, fit fixtures.Fit, namespace, app string) error {
	t.Helper()
	metadata := func() map[string]any {
		return map[string]any{"namespace": namespace, "name": "fit", "labels": map[string]any{"app": app}}
	}
	try := func(object map[string]any) error {
		pod := &unstructured.Unstructured{Object: object}
		pod.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
		return api.Create(t.Context(), pod, client.DryRunAll)
	}
	err, byHand := try(fit.PodWith(metadata())), try(fit.ByHand(metadata()))
	if (err == nil) != (byHand == nil) || len(fit.Says) == 0 && err != nil && strings.Contains(err.Error(), "admission webhook") {
		t.Errorf("the Pod: %v\nby hand: %v", err, byHand)
	}
	return err
}
