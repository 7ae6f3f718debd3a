package webhooks_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/webhooks"
)

// newest is the highest resourceVersion that the sources gave to a SidecarSet.
func (c *fakeCache) newest(t *testing.T) uint64 {
	t.Helper()
	list, err := c.sets.List(metav1.ListOptions{})
	if err != nil {
		t.Fatalf("listing: %v", err)
	}
	var newest uint64
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, err := meta.Accessor(item)
		if err != nil {
			return err
		}
		version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
		newest = max(newest, version)
		return err
	})
	if err != nil {
		t.Fatalf("reading the list: %v", err)
	}
	return newest
}

func waitFor(t *testing.T, catalog *webhooks.Catalog, version uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := catalog.WaitFor(ctx, version); err != nil {
		t.Fatalf("WaitFor: %v", err)
	}
}

func programOf(t *testing.T, catalog *webhooks.Catalog, name string) *inject.Program {
	t.Helper()
	for _, program := range catalog.Current().Programs() {
		if program.Name() == name {
			return program
		}
	}
	t.Fatalf("SidecarSet %s is not in the snapshot", name)
	return nil
}

func TestCatalogKnowsWhatItWasWaitedFor(t *testing.T) {
	c := newFakeCache()
	c.sets.Add(storedSet("a"))
	catalog := c.run(t)
	waitFor(t, catalog, c.newest(t))
	for _, name := range []string{"b", "c", "d"} {
		c.sets.Add(storedSet(name))
		waitFor(t, catalog, c.newest(t))
		if len(selected(t, catalog.Current(), name)) != 1 {
			t.Errorf("the snapshot does not hold %s", name)
		}
	}
	waitFor(t, catalog, 0)
}

func TestCatalogSaysWhatItWaitsFor(t *testing.T) {
	c := newFakeCache()
	c.sets.Add(storedSet("a"))
	catalog := webhooks.NewCatalog(c, webhooks.CatalogOptions{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := catalog.WaitFor(ended, 0); err == nil {
		t.Error("there is no snapshot, and the wait is over")
	}
	go func() { _ = catalog.Start(t.Context()) }()
	newest := c.newest(t)
	waitFor(t, catalog, newest)
	err := catalog.WaitFor(ended, newest+1)
	want := "the newest is of resourceVersion " + strconv.FormatUint(newest+1, 10) + ", known is " + strconv.FormatUint(newest, 10)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Counters in a status change with every Pod. They are no news to anybody who
// decides about Pods; what decides is compiled again.
func TestCatalogCompilesOnlyWhatDecides(t *testing.T) {
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
		"counters are no news":               {status(int64(7), "status", "matchedPods"), false},
		"conditions are none":                {status([]any{map[string]any{"type": "Ready", "status": "True"}}, "status", "conditions"), false},
		"managed fields are none":            {func(set *unstructured.Unstructured) { set.SetFinalizers([]string{"example.com/x"}) }, false},
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
			catalog := c.run(t)
			first := c.newest(t)
			waitFor(t, catalog, first)
			before := programOf(t, catalog, "a")
			changed := storedSet("a")
			tc.change(changed)
			c.sets.Modify(changed)
			last := c.newest(t)
			waitFor(t, catalog, last)
			if got := programOf(t, catalog, "a") != before; got != tc.news {
				t.Errorf("compiled again: %v, want %v", got, tc.news)
			}
			want := first
			if tc.news {
				want = last
			}
			if version, said := catalog.Observed(); last <= first || version != last || said != want {
				t.Errorf("observed %d, said something at %d; want %d and %d", version, said, last, want)
			}
		})
	}
}
