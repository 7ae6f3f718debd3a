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
			err := api.Create(t.Context(), podOf(t, fit, namespace, app), client.DryRunAll)
			byHand := podOf(t, fit, namespace, "")
			addByHand(t, byHand, fit)
			handErr := api.Create(t.Context(), byHand, client.DryRunAll)
			if len(fit.Says) == 0 {
				if (err == nil) != (handErr == nil) || err != nil && strings.Contains(err.Error(), "admission webhook") {
					t.Errorf("the Pod: %v\nby hand: %v", err, handErr)
				}
				return
			}
			if handErr == nil {
				t.Errorf("the API server takes by hand what the operator refuses: %v", err)
			}
			for _, part := range append(fit.Says, fmt.Sprintf("SidecarSet %q does not fit this Pod", set.GetName())) {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("error %v\nwant one that says %q", err, part)
				}
			}
		})
	}
}

// podOf returns the Pod of a case, with the label app.
func podOf(t *testing.T, fit fixtures.Fit, namespace, app string) *unstructured.Unstructured {
	t.Helper()
	p := fit.PodWith(map[string]any{"namespace": namespace, "name": "fit", "labels": map[string]any{"app": app}})
	object := &unstructured.Unstructured{Object: p}
	object.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
	return object
}

// addByHand adds sidecars to a Pod, and those of their volumes that the Pod lacks.
func addByHand(t *testing.T, pod *unstructured.Unstructured, fit fixtures.Fit) {
	t.Helper()
	sidecars := parse(t, fit.Set, "")
	if fit.Hand != "" {
		sidecars = parse(t, fit.Hand, "")
	}
	for _, list := range []string{"initContainers", "containers", "volumes"} {
		has, _, _ := unstructured.NestedSlice(pod.Object, "spec", list)
		more, _, _ := unstructured.NestedSlice(sidecars.Object, list)
		names := map[any]bool{}
		for _, one := range has {
			names[one.(map[string]any)["name"]] = true
		}
		for _, one := range more {
			if !names[one.(map[string]any)["name"]] {
				has = append(has, one)
			}
		}
		if err := unstructured.SetNestedSlice(pod.Object, has, "spec", list); err != nil {
			t.Fatal(err)
		}
	}
}
