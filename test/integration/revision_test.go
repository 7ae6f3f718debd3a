package integration

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// history returns the revisions of a SidecarSet, oldest first.
func history(ctx context.Context, sidecarSet string) ([]appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	err := api.List(ctx, &list, client.InNamespace(deploy.Namespace), client.MatchingLabels{appsv1beta1.LabelSidecarSetName: sidecarSet})
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
	return list.Items, err
}

// mustHistory returns the present history. It is complete as soon as the generation is
// observed.
func mustHistory(t *testing.T, sidecarSet string) []appsv1.ControllerRevision {
	t.Helper()
	revisions, err := history(t.Context(), sidecarSet)
	if err != nil {
		t.Fatal(err)
	}
	return revisions
}

func numbers(revisions []appsv1.ControllerRevision) map[string]int64 {
	all := map[string]int64{}
	for _, r := range revisions {
		all[r.Name] = r.Revision
	}
	return all
}

// awaitNumbers waits until these revisions are recorded with their numbers. If the leader's
// watch of revisions is behind, the leader corrects the history when it has caught up.
func awaitNumbers(t *testing.T, sidecarSet string, want map[string]int64) {
	t.Helper()
	await.Eventually(t, "the history of "+sidecarSet, func(ctx context.Context) error {
		revisions, err := history(ctx, sidecarSet)
		if err != nil {
			return err
		}
		if diff := gocmp.Diff(want, numbers(revisions)); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// setSpec patches the spec and waits until it is observed.
func setSpec(t *testing.T, set *unstructured.Unstructured, spec map[string]any) {
	t.Helper()
	patch(t, set, map[string]any{"spec": spec})
	testkit.AwaitObserved(t, api, set.GetName())
}

func containersOf(image string) map[string]any {
	return map[string]any{"containers": []any{map[string]any{"name": "agent", "image": image}}}
}

func TestRevisionsBeyondTheLimitAreDeletedUnlessPodsRunThem(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: kept}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
revisionHistoryLimit: 2
updateStrategy: {type: NotUpdate}
containers: [{name: agent, image: "example.com/agent:v1"}]
`)
	awaitInjected(t, set, namespace, "app=kept")
	p := pod(namespace, "p", "app=kept")
	create(t, p)
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 1, Updated: 1})
	first := mustHistory(t, set.GetName())[0].Name
	if !strings.Contains(p.Annotations[appsv1beta1.AnnotationHash], `"controllerRevision":"`+first+`"`) {
		t.Errorf("the Pod records %s, want %s", p.Annotations[appsv1beta1.AnnotationHash], first)
	}
	latest := func(i int) string {
		setSpec(t, set, containersOf(fmt.Sprint("example.com/agent:v", i)))
		return testkit.AwaitObserved(t, api, set.GetName()).Status.LatestRevision
	}
	latest(2)
	latest(3)
	fourth := latest(4)
	awaitNumbers(t, set.GetName(), map[string]int64{first: 1, fourth: 4})
	if err := api.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{})
	awaitNumbers(t, set.GetName(), map[string]int64{fourth: 4, latest(5): 5})
}

// imageOf creates a Pod and returns the image of its sidecar.
func imageOf(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	create(t, p)
	for _, c := range p.Spec.Containers {
		if c.Name == "agent" {
			return c.Image
		}
	}
	t.Fatalf("Pod %s has no sidecar", p.Name)
	return ""
}

// awaitImage waits until every replica gives new Pods that image. The replicas are asked
// directly: the API server may call the same one again and again.
func awaitImage(t *testing.T, namespace, image string) {
	t.Helper()
	const object = `{"metadata":{"name":"p","labels":{"app":"pinned"}},"spec":{"containers":[]}}`
	for _, replica := range replicas {
		await.Eventually(t, "Pods with image "+image, func(context.Context) error {
			patched, err := patchedBy(t, replica, namespace, object)
			if err != nil {
				return err
			}
			if got := agentOf(patched)["image"]; got != image {
				return fmt.Errorf("a Pod gets %v", got)
			}
			return nil
		})
	}
}

func TestInjectionOfARecordedRevision(t *testing.T) {
	const v1, v2 = "example.com/agent:v1", "example.com/agent:v2"
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: pinned}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
customVersion: v1
containers: [{name: agent, image: "`+v1+`"}]
`)
	first := mustHistory(t, set.GetName())[0].Name
	spec := containersOf(v2)
	spec["customVersion"] = "v2"
	setSpec(t, set, spec)

	inject := func(revision, partition any) {
		setSpec(t, set, map[string]any{
			"injectionStrategy": map[string]any{"revision": revision},
			"updateStrategy":    map[string]any{"partition": partition},
		})
	}
	tests := []struct {
		name                string
		revision, partition any
		want                string
	}{
		{"nothing named", nil, nil, v2},
		{"by name", map[string]any{"revisionName": first, "customVersion": nil}, nil, v1},
		{"in part, always", map[string]any{"revisionName": nil, "customVersion": "v1", "policy": "Partial"}, "100%", v1},
	}
	for i, tc := range tests {
		inject(tc.revision, tc.partition)
		awaitImage(t, namespace, tc.want)
		p := pod(namespace, fmt.Sprint("p-", i), "app=pinned")
		if got := imageOf(t, p); got != tc.want {
			t.Errorf("%s: image %s, want %s", tc.name, got, tc.want)
		}
		if records := p.Annotations[appsv1beta1.AnnotationHash]; tc.want == v1 && !strings.Contains(records, `"controllerRevision":"`+first+`"`) {
			t.Errorf("%s: the Pod records %s, want %s", tc.name, records, first)
		}
		if _, recorded := p.Annotations[appsv1beta1.AnnotationRevisionChoice]; recorded != strings.HasPrefix(tc.name, "in part") {
			t.Errorf("%s: annotations %v", tc.name, p.Annotations)
		}
	}

	err := api.Patch(t.Context(), set, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"injectionStrategy":{"revision":{"customVersion":"v0"}}}}`)))
	if !apierrors.IsInvalid(err) {
		t.Errorf("a revision that is not there: %v", err)
	}

	// The test deletes the revision that is in use; one that is not in use does not matter (T15).
	if err := api.Delete(t.Context(), &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: first}}); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "a refusal", func(ctx context.Context) error {
		err := api.Create(ctx, pod(namespace, "probe", "app=pinned"), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), set.GetName()) || !strings.Contains(err.Error(), "customVersion v1") {
			return fmt.Errorf("error %s", fmt.Sprint(err))
		}
		return nil
	})
}
