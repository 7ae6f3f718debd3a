package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// eventsOf returns the Events about a SidecarSet, as kubectl describe finds them.
func eventsOf(ctx context.Context, set *unstructured.Unstructured) ([]corev1.Event, error) {
	var list corev1.EventList
	err := api.List(ctx, &list, client.MatchingFieldsSelector{Selector: fields.Set{
		"involvedObject.kind": "SidecarSet", "involvedObject.name": set.GetName(), "involvedObject.namespace": "", "involvedObject.uid": string(set.GetUID()),
	}.AsSelector()})
	return list.Items, err
}

// awaitEvent waits for an Event with this type and reason.
func awaitEvent(t *testing.T, set *unstructured.Unstructured, kind, reason string) corev1.Event {
	t.Helper()
	var found corev1.Event
	await.Eventually(t, "an Event "+reason, func(ctx context.Context) error {
		list, err := eventsOf(ctx, set)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(e corev1.Event) bool { return e.Reason == reason })
		if i < 0 {
			return fmt.Errorf("there are %v", reasons(list))
		}
		found = list[i]
		return nil
	})
	if found.Type != kind || found.Namespace != "default" || found.InvolvedObject.APIVersion != appsv1beta1.GroupVersion.String() || found.Message == "" {
		t.Errorf("the Event is %+v", found)
	}
	return found
}

func reasons(list []corev1.Event) []string {
	all := make([]string, len(list))
	for i, e := range list {
		all[i] = fmt.Sprint(e.Type, " ", e.Reason, ": ", e.Message)
	}
	return all
}

func pause(t *testing.T, set *unstructured.Unstructured, paused bool) {
	t.Helper()
	patch(t, set, map[string]any{"spec": map[string]any{"injectionStrategy": map[string]any{"paused": paused}}})
}

const oneSidecar = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
containers: [{name: side, image: "example.com/side:v1"}]
`

func TestKubectlDescribeShowsEvents(t *testing.T) {
	set := createSidecarSet(t, testkit.Namespace(t, api, nil), oneSidecar)
	e := awaitEvent(t, set, corev1.EventTypeNormal, appsv1beta1.ReasonInjecting)
	text, err := cluster.Kubectl(t.Context(), "", "describe", "sidecarset", set.GetName())
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(text, "\nEvents:")
	if !strings.Contains(shown, appsv1beta1.ReasonInjecting) || !strings.Contains(shown, e.Message) {
		t.Errorf("kubectl describe shows the Events %s", shown)
	}
}

func TestAConflictAtInjectionIsOneEvent(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, oneSidecar)
	refused := func(name string, options ...client.CreateOption) {
		p := pod(namespace, name, "app=web")
		p.Spec.Containers[0].Name = "side"
		if err := api.Create(t.Context(), p, options...); !apierrors.IsInvalid(err) {
			t.Fatalf("creating a Pod with a container of the sidecar's name: %v", err)
		}
	}
	other := createSidecarSet(t, namespace, strings.ReplaceAll(oneSidecar, "web", "other"))
	p := pod(namespace, "dry", "app=other")
	p.Spec.Containers[0].Name = "side"
	if err := api.Create(t.Context(), p, client.DryRunAll); !apierrors.IsInvalid(err) {
		t.Fatalf("trying a Pod with a container of the sidecar's name: %v", err)
	}
	for i := range 20 {
		refused(fmt.Sprint("p-", i))
	}
	e := awaitEvent(t, set, corev1.EventTypeWarning, appsv1beta1.ReasonInjectionConflict)
	if !strings.Contains(e.Message, "namespace "+namespace) || !strings.Contains(e.Message, `"side"`) {
		t.Errorf("the Event says %q", e.Message)
	}
	conflicts := 0
	list, err := eventsOf(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Reason == appsv1beta1.ReasonInjectionConflict {
			conflicts++
		}
	}
	if conflicts > len(replicas) {
		t.Errorf("%d replicas wrote %d Events: %v", len(replicas), conflicts, reasons(list))
	}
	if list, err = eventsOf(t.Context(), other); err != nil || slices.ContainsFunc(list, func(e corev1.Event) bool { return e.Reason == appsv1beta1.ReasonInjectionConflict }) {
		t.Errorf("after a dry run: %v, %v", reasons(list), err)
	}
}
