package testkit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/test/await"
)

// Disturbed counts, from a watch of its own, how many Pods of a Kubelet are disturbed at the
// same time. A Pod is disturbed if a container does not run the image in the spec, or if the
// Pod is not ready.
type Disturbed struct {
	list func(context.Context) (*corev1.PodList, error)

	mu   sync.Mutex
	now  map[string]bool
	most int
	seen map[string]bool
	pods map[string]*corev1.Pod // the Pods that exist, as the watch has shown them last
}

// WatchDisturbed counts Pods of a namespace until the test ends. Options restrict it; a Pod
// that does not match them any more does not count.
func WatchDisturbed(t testing.TB, c client.WithWatch, namespace string, options ...client.ListOption) *Disturbed {
	t.Helper()
	options = append(options, client.InNamespace(namespace))
	d := &Disturbed{now: map[string]bool{}, seen: map[string]bool{}, pods: map[string]*corev1.Pod{}}
	d.list = func(ctx context.Context) (*corev1.PodList, error) {
		list := &corev1.PodList{}
		return list, c.List(ctx, list, options...)
	}
	list, err := d.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		d.pods[list.Items[i].Name] = &list.Items[i]
	}
	// An API server ends the watch of a slow client. This watch continues from where it was.
	events, err := watchtools.NewRetryWatcherWithContext(t.Context(), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, from metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &corev1.PodList{}, append([]client.ListOption{&client.ListOptions{Raw: &from}}, options...)...)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for event := range events.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok {
				d.see(p, event.Type == watch.Deleted)
			} else if t.Context().Err() == nil {
				t.Errorf("the watch of disturbed Pods ended: %+v", event.Object)
			}
		}
		if t.Context().Err() == nil {
			t.Error("the watch of disturbed Pods ended, so that they are not counted any more")
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(events.Stop)
	return d
}

func (d *Disturbed) see(p *corev1.Pod, gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods[p.Name] = p
	if gone {
		delete(d.pods, p.Name)
	}
	gone = gone || p.DeletionTimestamp != nil || finished(p)
	if gone || !IsDisturbed(p) {
		delete(d.now, p.Name)
		return
	}
	d.now[p.Name], d.seen[p.Name] = true, true
	d.most = max(d.most, len(d.now))
}

// IsDisturbed reports whether a container of a Pod does not run the image in the spec, or the
// Pod is not ready.
func IsDisturbed(p *corev1.Pod) bool {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if image := cluster.Started(&s); image != "" && (image != WantedImage(p, s.Name) || !s.Ready) {
			return true
		}
	}
	return !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Count returns how many Pods were disturbed at the same time, at most, and how many at
// any time.
func (d *Disturbed) Count() (most, pods int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.most, len(d.seen)
}

// Pods returns the Pods that exist, as the watch has shown them last. That costs no
// request. The caller may not change them.
func (d *Disturbed) Pods() []*corev1.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.pods))
}

// CatchUp waits until the watch has shown all stored Pods in their present versions.
func (d *Disturbed) CatchUp(t testing.TB) {
	t.Helper()
	await.Eventually(t, "the watch of disturbed Pods", func(ctx context.Context) error {
		list, err := d.list(ctx)
		if err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		for i := range list.Items {
			p := &list.Items[i]
			if seen, ok := d.pods[p.Name]; !ok || seen.ResourceVersion != p.ResourceVersion {
				return fmt.Errorf("Pod %s is stored in version %s, and was not seen in that", p.Name, p.ResourceVersion)
			}
		}
		if seen := len(d.pods); seen != len(list.Items) {
			return fmt.Errorf("%d Pods were seen, and %d are stored", seen, len(list.Items))
		}
		return nil
	})
}

// Want fails the test if more than most Pods were disturbed at the same time, or if the number
// of Pods that were disturbed at any time is not pods. It catches up first.
func (d *Disturbed) Want(t testing.TB, most, pods int) {
	t.Helper()
	d.CatchUp(t)
	gotMost, gotPods := d.Count()
	if gotMost > most {
		t.Errorf("%d Pods were disturbed at the same time, want %d at most", gotMost, most)
	}
	if gotPods != pods {
		t.Errorf("%d Pods were disturbed, want %d", gotPods, pods)
	}
}

// WantedImage is the image in the spec of a container, "" if the Pod has no container of that
// name.
func WantedImage(p *corev1.Pod, container string) string {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name == container {
			return c.Image
		}
	}
	return ""
}
