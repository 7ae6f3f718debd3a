package integration

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

// The refusal of a new container advises: "delete this one and create it again". The Pods of
// the first SidecarSet lack the sidecar of the second. They count as uninjected, whatever
// their annotations list.
func TestPodsOfARecreatedSidecarSetCountAsUninjected(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ first, second string }{
		"with another container":      {`containers: [{name: old-agent, image: "example.com/agent:v1"}]`, `containers: [{name: new-agent, image: "example.com/agent:v1"}]`},
		"with another native sidecar": {"updateStrategy: {type: NotUpdate}\ninitContainers: [{name: old-proxy, image: \"example.com/proxy:v1\", restartPolicy: Always}]", "updateStrategy: {type: NotUpdate}\ninitContainers: [{name: new-proxy, image: \"example.com/proxy:v1\", restartPolicy: Always}]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := testkit.Namespace(t, api, nil)
			const selectors = "selector: {matchLabels: {app: again}}\nnamespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}\n"
			set := createSidecarSet(t, namespace, selectors+tc.first)
			awaitInjected(t, set, namespace, "app=again")
			for _, name := range []string{"a", "b", "c"} {
				create(t, pod(namespace, name, "app=again"))
			}
			testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 3, Updated: 3})

			deleteSidecarSet(t, set)
			again := newSidecarSet(t, namespace, selectors+tc.second)
			again.SetGenerateName("")
			again.SetName(set.GetName())
			create(t, again)
			t.Cleanup(func() { deleteSidecarSet(t, again) })
			neverReadyForAnother(t, again)
			testkit.AwaitCounters(t, api, again.GetName(), testkit.Counters{Uninjected: 3})
			testkit.AwaitReady(t, api, again.GetName())
			awaitInjected(t, again, namespace, "app=again")
			create(t, pod(namespace, "d", "app=again"))
			testkit.AwaitCounters(t, api, again.GetName(), testkit.Counters{Matched: 1, Updated: 1, Uninjected: 3})
		})
	}
}

// neverReadyForAnother waits until the object is observed. It fails the test if the status
// says something that was true only of the deleted object.
func neverReadyForAnother(t *testing.T, set *unstructured.Unstructured) {
	t.Helper()
	testkit.AwaitObserved(t, api, set.GetName())
	stored := &appsv1beta1.SidecarSet{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(set), stored); err != nil {
		t.Fatal(err)
	}
	for _, c := range stored.Status.Conditions {
		if c.LastTransitionTime.Time.Before(stored.CreationTimestamp.Time) {
			t.Errorf("condition %s of the new object is older than the object: %+v", c.Type, c)
		}
	}
	if stored.Status.MatchedPods != 0 {
		t.Errorf("%d Pods of the deleted SidecarSet are said to be matched", stored.Status.MatchedPods)
	}
	if accepted := meta.FindStatusCondition(stored.Status.Conditions, appsv1beta1.ConditionAccepted); accepted == nil {
		t.Error("the first status says nothing of Accepted")
	}
}
