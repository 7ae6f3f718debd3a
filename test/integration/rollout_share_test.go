package integration

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A tenth of the Pods of 31 Deployments may be unavailable: no Deployment has two Pods down at
// the same time.
func (r *plane) testShare(t *testing.T) {
	const deployments, each = 30, 4
	namespace := r.namespace(t)
	a := r.roll(t, namespace, `maxUnavailable: "10%"`, atOnceProven())
	for i := range deployments + 1 {
		replicas := int32(each)
		if i == deployments {
			replicas = 3
		}
		d := r.deployment(namespace, replicas)
		d.Spec.Template.Annotations["stand.test/pull-delay"] = "2s" // so that Pods are down together
		r.launch(t, d)
	}
	a.awaitComplete(t, rolloutPatience, deployments*each+3)
	down := r.watchDown(t, namespace)
	a.setImage(t, "example.com/side:v2")
	a.awaitComplete(t, rolloutPatience, deployments*each+3)
	down.mu.Lock()
	defer down.mu.Unlock()
	for deployment, most := range down.most {
		if most > 1 {
			t.Errorf("Deployment %s had %d Pods down at the same time", deployment, most)
		}
	}
	if down.mostOfAll < 3 || down.mostOfAll > 13 {
		t.Errorf("%d Pods were down at the same time, want 13 at most, and more than two", down.mostOfAll)
	}
}

// downPods counts the Pods of each Deployment that are not ready at the same time.
type downPods struct {
	mu        sync.Mutex
	now       map[string]map[string]bool
	most      map[string]int
	mostOfAll int
}

func (r *plane) watchDown(t *testing.T, namespace string) *downPods {
	t.Helper()
	list := &corev1.PodList{}
	if err := r.api.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	events, err := r.api.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		t.Fatal(err)
	}
	w := &downPods{now: map[string]map[string]bool{}, most: map[string]int{}}
	var running sync.WaitGroup
	running.Go(func() {
		for event := range events.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Bookmark {
				w.see(p)
			}
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(events.Stop)
	return w
}

func (w *downPods) see(p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	deployment := p.Labels["deployment"]
	if w.now[deployment] == nil {
		w.now[deployment] = map[string]bool{}
	}
	delete(w.now[deployment], p.Name)
	if p.DeletionTimestamp == nil && !isReady(p) {
		w.now[deployment][p.Name] = true
	}
	w.most[deployment] = max(w.most[deployment], len(w.now[deployment]))
	all := 0
	for _, down := range w.now {
		all += len(down)
	}
	w.mostOfAll = max(w.mostOfAll, all)
}
