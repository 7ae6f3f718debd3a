package integration

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
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

// The gates have other values than by default, so that the API server keeps and drops other members.
func TestWithOtherFeatureGatesPodsAreCreatedAsByHand(t *testing.T) {
	t.Parallel()
	needServer(t, 37) // which has these gates
	const gates = "kube-apiserver=--feature-gates=ContainerStopSignals=true,ContainerRestartRules=false,RestartAllContainersOnContainerExits=false,PodLevelResources=false,InPlacePodLevelResourcesVerticalScaling=false,PodLevelResourcesFixKubeletQOSClass=false,PodLevelResourcesFixDefaulting=false"
	i := install(t, testkit.StartCluster(t, stand.Options{Args: []string{gates}}), deploy.Default)
	i.start(t, 47)
	testkit.AwaitCalled(t, i.api)
	namespace := testkit.Namespace(t, i.api, nil)
	var names []string
	for n, fit := range fixtures.Fits {
		set := newSidecarSet(t, namespace, fmt.Sprintf("selector: {matchLabels: {app: gates-%d}}\nupdateStrategy: {type: NotUpdate}\n", n)+inNamespace+fit.Set)
		if err := i.api.Create(t.Context(), set); err != nil {
			t.Fatalf("%s: %v", fit.Name, err)
		}
		names = append(names, set.GetName())
	}
	testkit.AwaitReady(t, i.api, names...)
	for n, fit := range fixtures.Fits {
		t.Run(fit.Name, func(t *testing.T) {
			_ = createdAsByHand(t, i.api, fit, namespace, fmt.Sprint("gates-", n))
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
