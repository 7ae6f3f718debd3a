package snapshot_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	sourcetesting "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// source is an API server's list and watch of one kind.
type source struct {
	*sourcetesting.FakeControllerSource
}

func (source) IsWatchListSemanticsUnSupported() bool { return true }

// fakeCache hands out real informers over fake sources.
type fakeCache struct {
	sets, namespaces, revisions source
	informers                   map[string]toolscache.SharedIndexInformer
}

func newFakeCache() *fakeCache {
	return &fakeCache{
		sets:       source{sourcetesting.NewFakeControllerSource()},
		namespaces: source{sourcetesting.NewFakeControllerSource()},
		revisions:  source{sourcetesting.NewFakeControllerSource()},
		informers:  map[string]toolscache.SharedIndexInformer{},
	}
}

func (c *fakeCache) GetInformer(ctx context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if c.informers[kind] == nil {
		from, ok := map[string]source{"SidecarSet": c.sets, "Namespace": c.namespaces, "ControllerRevision": c.revisions}[kind]
		if !ok {
			return nil, errors.New("no such kind")
		}
		informer := toolscache.NewSharedIndexInformer(from, object, 0, toolscache.Indexers{})
		go informer.RunWithContext(ctx)
		c.informers[kind] = informer
	}
	return c.informers[kind], nil
}

// run starts a Store.
func (c *fakeCache) run(t *testing.T) *snapshot.Store {
	t.Helper()
	store := snapshot.NewStore(c, nil)
	stopped := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { stopped <- store.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("the store stopped: %v", err)
		}
	})
	return store
}

// again returns the SidecarSet with another spec, to be stored again.
func again(set *unstructured.Unstructured) *unstructured.Unstructured {
	set.SetGeneration(set.GetGeneration() + 1)
	return set
}

// storedSet is a SidecarSet that selects Pods by app=<name>.
func storedSet(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
		"metadata": map[string]any{"name": name, "uid": "uid-" + name},
		"spec": map[string]any{
			"selector":       map[string]any{"matchLabels": map[string]any{"app": name}},
			"updateStrategy": map[string]any{"type": "NotUpdate"},
			"containers":     []any{map[string]any{"name": "side", "image": "side:v1"}},
		},
	}}
}

// selected names the SidecarSets that select a Pod with app=<app>.
func selected(t *testing.T, store *match.Snapshot, app string) []string {
	t.Helper()
	selection, err := store.Select("default", labels.Set{"app": app}, func(string) (labels.Set, error) { return nil, nil })
	if err != nil {
		t.Fatalf("Select: %v", err)
	}
	var names []string
	for _, compiled := range selection.SidecarSets {
		names = append(names, compiled.Name())
	}
	return names
}

func TestStoreFollowsSidecarSets(t *testing.T) {
	c := newFakeCache()
	c.sets.Add(storedSet("a"))
	store := c.run(t)
	await.That(t, func() bool { return store.Ready(nil) == nil }, "the first snapshot")
	if diff := cmp.Diff([]string{"a"}, selected(t, store.Current(), "a")); diff != "" {
		t.Errorf("after the start (-want +got):\n%s", diff)
	}
	before := store.Current()

	c.sets.Add(storedSet("b"))
	await.That(t, func() bool { return len(selected(t, store.Current(), "b")) == 1 }, "an added SidecarSet")

	changed := again(storedSet("a"))
	_ = unstructured.SetNestedStringMap(changed.Object, map[string]string{"app": "c"}, "spec", "selector", "matchLabels")
	c.sets.Modify(changed)
	await.That(t, func() bool { return len(selected(t, store.Current(), "c")) == 1 }, "a changed SidecarSet")
	if got := selected(t, store.Current(), "a"); got != nil {
		t.Errorf("the old selector still selects %v", got)
	}

	c.sets.Delete(changed)
	await.That(t, func() bool { return len(selected(t, store.Current(), "c")) == 0 }, "a deleted SidecarSet")
	if diff := cmp.Diff([]string{"a"}, selected(t, before, "a")); diff != "" {
		t.Errorf("a snapshot changed under its reader (-want +got):\n%s", diff)
	}
}

// A SidecarSet that cannot be used is reported. The Store uses the others.
func TestStoreReportsWhatItCannotUse(t *testing.T) {
	c := newFakeCache()
	bad := storedSet("bad")
	_ = unstructured.SetNestedSlice(bad.Object, []any{
		map[string]any{"key": "app", "operator": "Sometimes", "values": []any{"x"}},
	}, "spec", "selector", "matchExpressions")
	c.sets.Add(bad)
	c.sets.Add(storedSet("good"))
	store := c.run(t)
	await.That(t, func() bool { return store.Ready(nil) == nil }, "the first snapshot")

	if err := store.Problem("bad"); err == nil || !strings.Contains(err.Error(), "Sometimes") {
		t.Errorf("problem of bad = %v, want the operator named", err)
	}
	if err := store.Problem("good"); err != nil {
		t.Errorf("problem of good = %v", err)
	}
	if diff := cmp.Diff([]string{"good"}, selected(t, store.Current(), "good")); diff != "" {
		t.Errorf("selected (-want +got):\n%s", diff)
	}
	c.sets.Modify(again(storedSet("bad")))
	await.That(t, func() bool { return store.Problem("bad") == nil }, "the repair to be noticed")
}

// While 500 SidecarSets are added, the number of rebuilds stays far below the number of
// changes.
func TestStoreCoalescesChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCache()
		for _, s := range []source{c.sets, c.namespaces, c.revisions} {
			t.Cleanup(s.Shutdown)
		}
		store := snapshot.NewStore(c, nil)
		told := make(chan struct{}, 1)
		store.Notify(told)
		if store.Current() != nil || store.Ready(nil) == nil {
			t.Error("ready before anything was read")
		}
		go func() { _ = store.Start(t.Context()) }()
		<-told
		const changes = 500
		for i := range changes {
			c.sets.Add(storedSet("set-" + time.Duration(i).String()))
		}
		rebuilds := 0
		await.That(t, func() bool {
			<-told
			rebuilds++
			return len(store.Current().SidecarSets()) == changes
		}, "all SidecarSets")
		if rebuilds > changes/5 {
			t.Errorf("%d rebuilds for %d changes", rebuilds, changes)
		}
	})
}
