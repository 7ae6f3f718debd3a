package integration

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// The refusal of a new container advises: "delete this one and create it again". The Pods of
// the first SidecarSet lack the sidecar of the second. They count as uninjected, whatever
// their annotations list.
func TestPodsOfARecreatedSidecarSetCountAsUninjected(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	const selectors = "selector: {matchLabels: {app: again}}\nnamespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}\n"
	const sidecar = "initContainers: [{name: NAME, image: \"example.com/proxy:v1\", restartPolicy: Always}]"
	set := createSidecarSet(t, namespace, selectors+strings.ReplaceAll(sidecar, "NAME", "old-proxy"))
	awaitInjected(t, set, namespace, "app=again")
	var last *corev1.Pod
	for _, name := range []string{"a", "b", "c"} {
		last = pod(namespace, name, "app=again")
		create(t, last)
	}
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 3, Updated: 3})

	// A Pod of the same second counts as one of the second SidecarSet.
	await.That(t, func() bool { return time.Now().Unix() > last.CreationTimestamp.Unix() }, "the next second")
	deleteSidecarSet(t, set)
	again := newSidecarSet(t, namespace, selectors+strings.ReplaceAll(sidecar, "NAME", "new-proxy"))
	again.SetGenerateName("")
	again.SetName(set.GetName())
	create(t, again)
	t.Cleanup(func() { deleteSidecarSet(t, again) })
	neverReadyForAnother(t, again)
	testkit.AwaitCounters(t, api, again.GetName(), testkit.Counters{Uninjected: 3})
	awaitInjected(t, again, namespace, "app=again")
	create(t, pod(namespace, "d", "app=again"))
	testkit.AwaitCounters(t, api, again.GetName(), testkit.Counters{Matched: 1, Updated: 1, Uninjected: 3})
}

// neverReadyForAnother follows every stored state of a new object until it is Ready. It fails
// the test if a status says something that was true only of the deleted object, or if the next
// Pod lacks a container of the new one.
func neverReadyForAnother(t *testing.T, set *unstructured.Unstructured) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	states, err := api.Watch(ctx, &appsv1beta1.SidecarSetList{}, client.MatchingFields{"metadata.name": set.GetName()},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: set.GetResourceVersion()}})
	if err != nil {
		t.Fatal(err)
	}
	defer states.Stop()
	for event := range states.ResultChan() {
		stored, ok := event.Object.(*appsv1beta1.SidecarSet)
		if !ok || stored.UID != set.GetUID() {
			t.Fatalf("the watch of the new object shows %+v", event.Object)
		}
		for _, c := range stored.Status.Conditions {
			if c.LastTransitionTime.Time.Before(stored.CreationTimestamp.Time) {
				t.Errorf("condition %s of the new object is older than the object: %+v", c.Type, c)
			}
		}
		if stored.Status.MatchedPods != 0 {
			t.Errorf("%d Pods of the deleted SidecarSet are said to be matched", stored.Status.MatchedPods)
		}
		observed := testkit.Observed(stored) == nil
		if accepted := meta.FindStatusCondition(stored.Status.Conditions, appsv1beta1.ConditionAccepted); observed && accepted == nil {
			t.Error("a status says nothing of Accepted")
		}
		if testkit.Ready(stored) == nil {
			next := pod(stored.Spec.NamespaceSelector.MatchLabels[corev1.LabelMetadataName], "next", "app=again")
			if err := api.Create(ctx, next, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			for _, c := range slices.Concat(stored.Spec.InitContainers, stored.Spec.Containers) {
				if testkit.WantedImage(next, c.Name) == "" {
					t.Errorf("the new object is Ready, and the next Pod lacks %s", c.Name)
				}
			}
			return
		}
	}
	t.Fatal("the watch ended before the new object was Ready")
}
