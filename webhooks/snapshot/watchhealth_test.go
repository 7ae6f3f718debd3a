package snapshot_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/sidecarset/operator/webhooks/snapshot"
)

// scriptedSource is an API server whose watches the test drives. Lists are
// answered while listErr is nil; each watch comes from watches.
type scriptedSource struct {
	listErr chan error
	watches chan *watch.FakeWatcher
}

func (s *scriptedSource) List(metav1.ListOptions) (runtime.Object, error) {
	select {
	case err := <-s.listErr:
		return nil, err
	default:
		return &corev1.NamespaceList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}, nil
	}
}

func (s *scriptedSource) Watch(metav1.ListOptions) (watch.Interface, error) {
	select {
	case w := <-s.watches:
		if w == nil {
			return nil, apierrors.NewResourceExpired("too old")
		}
		return w, nil
	case <-time.After(10 * time.Second):
		return nil, errors.New("no watch in the script")
	}
}

func (*scriptedSource) IsWatchListSemanticsUnSupported() bool { return true }

func TestWatchHealthNoticesASilentWatch(t *testing.T) {
	synctest.Test(t, noticesASilentWatch)
}

func noticesASilentWatch(t *testing.T) {
	pass := func(d time.Duration) {
		<-time.After(d)
		synctest.Wait()
	}
	health := snapshot.NewWatchHealth(snapshot.NewTimeline())
	source := &scriptedSource{watches: make(chan *watch.FakeWatcher, 3)}
	events := watch.NewFake()
	source.watches <- events

	informer := health.NewInformer(source, &corev1.Namespace{TypeMeta: metav1.TypeMeta{Kind: "Namespace"}}, 0, toolscache.Indexers{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go informer.RunWithContext(ctx)
	pass(time.Second)
	if !informer.HasSynced() {
		t.Fatal("the informer has not synced")
	}
	events.Action(watch.Bookmark, namespace("", "7"))
	synctest.Wait()

	// In each step the watch is silent for longer than WatchSilence. Then one sign of life
	// ends the silence.
	signs := []struct {
		name string
		sign func()
	}{
		{"an object", func() { events.Add(namespace("a", "8")) }},
		{"a bookmark", func() { events.Action(watch.Bookmark, namespace("", "9")) }},
		{"a bookmark that repeats the resource version", func() { events.Action(watch.Bookmark, namespace("", "9")) }},
		{"a reconnection", func() { next := watch.NewFake(); source.watches <- next; events.Stop(); events = next }},
	}
	for _, step := range signs {
		pass(snapshot.WatchSilence)
		if err := health.Ready(nil); err != nil {
			t.Fatalf("before %s: %v", step.name, err)
		}
		pass(time.Second)
		if err := health.Ready(nil); err == nil || !strings.Contains(err.Error(), "kind Namespace") {
			t.Fatalf("silence before %s: got %v, want it noticed with its kind", step.name, err)
		}
		step.sign()
		synctest.Wait()
		if err := health.Ready(nil); err != nil {
			t.Fatalf("%s is not a sign of life: %v", step.name, err)
		}
	}
}

func TestWatchHealthIgnoresFailedAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		health := snapshot.NewWatchHealth(snapshot.NewTimeline())
		source := &scriptedSource{listErr: make(chan error, 1), watches: make(chan *watch.FakeWatcher, 1)}
		observed := toolscache.ToListerWatcherWithContext(health.Observe(source, "Namespace"))

		<-time.After(snapshot.WatchSilence + time.Minute)
		source.listErr <- apierrors.NewResourceExpired("too old")
		if _, err := observed.ListWithContext(t.Context(), metav1.ListOptions{}); err == nil || health.Ready(nil) == nil {
			t.Error("a failed list counted as a sign of life")
		}
		source.watches <- nil
		if _, err := observed.WatchWithContext(t.Context(), metav1.ListOptions{}); err == nil || health.Ready(nil) == nil {
			t.Error("a failed watch counted as a sign of life")
		}
		if _, err := observed.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil || health.Ready(nil) != nil {
			t.Error("a list did not count as a sign of life")
		}
	})
}

func namespace(name, resourceVersion string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: resourceVersion}}
}

func TestStripManagedFieldsKeepsTheRest(t *testing.T) {
	stripManagedFields := snapshot.CacheOptions(snapshot.NewWatchHealth(snapshot.NewTimeline()), "ours").DefaultTransform
	object := namespace("a", "1")
	object.Labels = map[string]string{"team": "x"}
	object.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	for range 2 {
		got, err := stripManagedFields(object)
		if err != nil {
			t.Fatal(err)
		}
		if ns := got.(*corev1.Namespace); ns.ManagedFields != nil || ns.Labels["team"] != "x" || ns.ResourceVersion != "1" {
			t.Errorf("got %+v", ns)
		}
	}
	if got, err := stripManagedFields(toolscache.DeletedFinalStateUnknown{Key: "a"}); err != nil || got == nil {
		t.Errorf("got %v, %v for something that is not an object", got, err)
	}
}
