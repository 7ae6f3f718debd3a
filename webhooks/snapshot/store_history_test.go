package snapshot_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
)

// storedRevision is a ControllerRevision of SidecarSet a with one container, as
// OpenKruise writes it.
func storedRevision(name, version, image string, number int64) *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "system", Name: name, UID: "uid-1",
			Labels:      map[string]string{appsv1beta1.LabelSidecarSetName: "a", appsv1beta1.LabelCustomVersion: version},
			Annotations: map[string]string{appsv1beta1.AnnotationHash: "hash-" + name, appsv1beta1.AnnotationHashWithoutImage: "bare-" + name},
		},
		Data:     runtime.RawExtension{Raw: []byte(`{"spec":{"$patch":"replace","containers":[{"name":"side","image":"` + image + `","resources":{}}]}}`)},
		Revision: number,
	}
}

// injecting is storedSet a that injects a recorded revision.
func injecting(t *testing.T, revision map[string]any) *unstructured.Unstructured {
	t.Helper()
	set := storedSet("a")
	if err := unstructured.SetNestedMap(set.Object, revision, "spec", "injectionStrategy", "revision"); err != nil {
		t.Fatal(err)
	}
	return set
}

// With new-pods: Stable, the revision in the status is there as soon as an edit is. It is forgotten when the edit
// is stable.
func TestStoreHasTheStableRevisionWithTheEdit(t *testing.T) {
	c := newFakeCache()
	set := storedSet("a")
	set.SetAnnotations(map[string]string{appsv1beta1.AnnotationNewPods: appsv1beta1.StableNewPods})
	stable := func(latest, stable string) *unstructured.Unstructured {
		next := set.DeepCopy()
		_ = unstructured.SetNestedMap(next.Object, map[string]any{"latestRevision": latest, "stableRevision": stable, "observedGeneration": next.GetGeneration()}, "status")
		return next
	}
	c.sets.Add(stable("a-1", "a-1"))
	c.revisions.Add(storedRevision("a-1", "v1", "side:1", 1))
	store := c.run(t)
	await.That(t, func() bool { return store.Ready(nil) == nil }, "the first snapshot")
	for _, tc := range []struct {
		latest, stable string
		has            bool
	}{{"a-1", "a-1", false}, {"a-2", "a-1", true}, {"a-2", "a-2", false}, {"a-3", "a-1", true}, {"a-3", "a-0", false}} {
		c.sets.Modify(stable(tc.latest, tc.stable))
		await.That(t, func() bool {
			set, _ := store.Current().Get("a")
			return set.Set.Status.StableRevision == tc.stable && set.Set.Status.LatestRevision == tc.latest && (store.Current().History("a") != nil) == tc.has
		}, "stable "+tc.stable+" of "+tc.latest)
	}
}

func TestStoreFollowsRevisions(t *testing.T) {
	c := newFakeCache()
	c.sets.Add(injecting(t, map[string]any{"customVersion": "v1"}))
	c.revisions.Add(storedRevision("a-1", "v1", "side:1", 1))
	store := c.run(t)
	await.That(t, func() bool { return store.Ready(nil) == nil }, "the first snapshot")
	hash := func() string {
		if history := store.Current().History("a"); history != nil {
			return history.Hash
		}
		return ""
	}
	if hash() != "hash-a-1" {
		t.Fatalf("history %q at the start", hash())
	}
	c.revisions.Add(storedRevision("a-2", "v2", "side:2", 2))
	c.revisions.Add(storedRevision("a-3", "v1", "side:3", 3))
	await.That(t, func() bool { return hash() == "hash-a-3" }, "the newest revision of the version")
	c.revisions.Delete(storedRevision("a-3", "v1", "side:3", 3))
	await.That(t, func() bool { return hash() == "hash-a-1" }, "the deletion of a revision")
	c.sets.Modify(again(injecting(t, map[string]any{"revisionName": "a-2"})))
	await.That(t, func() bool { return hash() == "hash-a-2" }, "a change of the SidecarSet")
	broken := storedRevision("a-2", "v2", "side:2", 2)
	broken.Data.Raw = []byte(`{"spec":7}`)
	c.revisions.Modify(broken)
	await.That(t, func() bool { return store.Current().History("a") == nil }, "a revision that cannot be used")
}
