package chaos

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// The leader hears of SidecarSets eight seconds late. Webhooks give new Pods the new image
// already. The leader never gives such a Pod the old image.
func TestALateLeaderRollsNoFreshPodBack(t *testing.T) {
	const name, before, after, older, fresh = "late", "example.com/sidecar:v1", "example.com/sidecar:v2", 3, 4
	proxy, flags := startProxy(t)
	proxy.lag = lag{"sidecarsets", 8 * time.Second}
	controllers := startControllers(t, 1, append(flags, patientLeases...)...)
	webhooks := startReplicas(t, 2, "--role=webhook")
	namespace := newNamespace(t)
	set := testkit.NewPatientSet(name, namespace)
	set.Object["spec"].(map[string]any)["updateStrategy"] = map[string]any{"type": "RollingUpdate", "maxUnavailable": "100%"}
	createSets(t, []*unstructured.Unstructured{set})
	awaitInjection(t, webhooks, namespace, name, 1)
	controllers.await(t, name, "the condition Ready", testkit.Ready)

	watching, err := testkit.NewClientFor(cluster.ConfigFor(1))
	if err != nil {
		t.Fatal(err)
	}
	(&testkit.Kubelet{Client: watching, Namespace: namespace, Pull: 100 * time.Millisecond}).Start(t)
	images := imagesOver(t, watching, namespace, name)
	newPod := func() string {
		p := testkit.NewPod(testkit.AppLabels(name))
		p.Namespace = namespace
		if err := api.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return p.Name
	}
	for range older {
		newPod()
	}
	awaitUpdated(t, controllers, name, older)
	mustChangeImage(t, name, after)
	awaitImage(t, namespace, name, after)
	var created []string
	for range fresh {
		created = append(created, newPod())
	}
	awaitUpdated(t, controllers, name, older+fresh)
	for _, pod := range created {
		if got := images.of(pod); len(got) != 1 || got[0] != after {
			t.Errorf("Pod %s was created after the change, and had the images %v, want %s alone; before the change it was %s", pod, got, after, before)
		}
	}
}

// awaitUpdated waits until the status of the SidecarSet's present generation says that all
// of a number of Pods are updated and ready.
func awaitUpdated(t *testing.T, controllers *fleet, name string, pods int32) {
	t.Helper()
	await.Within(t, rolloutPatience, "the Pods", func(ctx context.Context) error {
		controllers.revive(t)
		set, err := testkit.Get(ctx, api, name)
		if err == nil {
			err = testkit.Observed(set)
		}
		if err != nil {
			return err
		}
		if got := testkit.CountersOf(set); got != allOf(pods) {
			return fmt.Errorf("%+v, want %d updated and ready Pods", got, pods)
		}
		return nil
	})
}

// podImages has the images that a container of each Pod had in its spec, in order.
type podImages struct {
	mu  sync.Mutex
	had map[string][]string
}

func imagesOver(t *testing.T, watching client.WithWatch, namespace, container string) *podImages {
	t.Helper()
	list := &corev1.PodList{}
	if err := watching.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	events, err := watching.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		t.Fatal(err)
	}
	i := &podImages{had: map[string][]string{}}
	var running sync.WaitGroup
	running.Go(func() {
		for event := range events.ResultChan() {
			p, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			i.mu.Lock()
			image, had := testkit.WantedImage(p, container), i.had[p.Name]
			if len(had) == 0 || had[len(had)-1] != image {
				i.had[p.Name] = append(had, image)
			}
			i.mu.Unlock()
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(events.Stop)
	return i
}

func (i *podImages) of(pod string) []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.had[pod]
}
