package snapshot_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// stored are the versions of the SidecarSets that the sources hold.
func (c *fakeCache) stored(t *testing.T) snapshot.Versions {
	t.Helper()
	list, err := c.sets.List(metav1.ListOptions{})
	if err != nil {
		t.Fatalf("listing: %v", err)
	}
	stored := snapshot.Versions{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, err := meta.Accessor(item)
		if err != nil {
			return err
		}
		version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
		stored[object.GetName()] = max(version, stored[object.GetName()]) // the list may have two of a name, by UID
		return err
	})
	if err != nil {
		t.Fatalf("reading the list: %v", err)
	}
	return stored
}

func waitFor(t *testing.T, store *snapshot.Store, stored snapshot.Versions) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := store.WaitFor(ctx, stored); err != nil {
		t.Fatalf("WaitFor: %v", err)
	}
}

func compiledOf(t *testing.T, store *snapshot.Store, name string) *inject.Compiled {
	t.Helper()
	for _, compiled := range store.Current().SidecarSets() {
		if compiled.Name() == name {
			return compiled
		}
	}
	t.Fatalf("SidecarSet %s is not in the snapshot", name)
	return nil
}

func TestStoreWaitsForVersions(t *testing.T) {
	c := newFakeCache()
	c.sets.Add(storedSet("a"))
	store := snapshot.NewStore(c, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.WaitFor(ended, nil); err == nil || !strings.Contains(err.Error(), "there is no snapshot yet") {
		t.Errorf("before there is a snapshot: %v", err)
	}
	go func() { _ = store.Start(t.Context()) }()
	waitFor(t, store, c.stored(t))
	c.sets.Add(storedSet("b"))
	listed := c.stored(t)
	if waitFor(t, store, listed); len(selected(t, store.Current(), "b")) != 1 {
		t.Error("the snapshot does not hold b")
	}
	c.sets.Delete(storedSet("b"))
	waitFor(t, store, listed) // not for a SidecarSet that was deleted since
	for name, version := range map[string]uint64{
		"a": listed["a"] + 1000,
		// A watch that begins again with a list sends the objects in any order.
		"c": listed["a"],
	} {
		want := fmt.Sprintf("this replica does not know resourceVersion %d of SidecarSet %q yet", version, name)
		if err := store.WaitFor(ended, snapshot.Versions{name: version}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// The counters in a status change with every Pod. They do not matter to decisions about
// Pods, so the Store compiles a SidecarSet again only if a change matters to a decision.
func TestStoreCompilesAgainOnlyIfADecisionMayChange(t *testing.T) {
	status := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(set *unstructured.Unstructured) {
			if err := unstructured.SetNestedField(set.Object, value, path...); err != nil {
				panic(err)
			}
		}
	}
	tests := map[string]struct {
		change func(*unstructured.Unstructured)
		news   bool
	}{
		"counters are not news":              {status(int64(7), "status", "matchedPods"), false},
		"the recorded revision is":           {status("a-1", "status", "latestRevision"), true},
		"another generation is":              {func(set *unstructured.Unstructured) { again(set) }, true},
		"an annotation is":                   {func(set *unstructured.Unstructured) { set.SetAnnotations(map[string]string{"a": "b"}) }, true},
		"a label is none":                    {func(set *unstructured.Unstructured) { set.SetLabels(map[string]string{"a": "b"}) }, false},
		"the custom version of v1alpha1 is":  {status("v2", "spec", "customVersion"), true},
		"another object of the same name is": {func(set *unstructured.Unstructured) { set.SetUID("another") }, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newFakeCache()
			c.sets.Add(storedSet("a"))
			store := c.run(t)
			waitFor(t, store, c.stored(t))
			before := compiledOf(t, store, "a")
			changed := storedSet("a")
			tc.change(changed)
			c.sets.Modify(changed)
			waitFor(t, store, c.stored(t))
			if got := compiledOf(t, store, "a") != before; got != tc.news {
				t.Errorf("compiled again: %v, want %v", got, tc.news)
			}
		})
	}
}
