package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// rolloutPatience is for one image through all Pods, with a change of leaders.
const rolloutPatience = 3 * time.Minute

// The leader is killed at a random moment of each rollout: the next one goes on from
// what the Pods say, and at no time are more Pods disturbed than the budget allows.
func TestKillingTheLeaderInARolloutKeepsTheBudget(t *testing.T) {
	const pods, budget = 500, 25
	controllers := startControllers(t, 2, "--rollout-qps=400",
		"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=2500ms", "--leader-elect-retry-period=500ms")
	webhooks := startReplicas(t, 1, "--role=webhook")
	namespace, name := testkit.Namespace(t, api, nil), "rolled"
	set := newSet(name, namespace, podLabels(name))
	set.Object["spec"].(map[string]any)["updateStrategy"] = map[string]any{"type": "RollingUpdate", "maxUnavailable": int64(budget)}
	set.SetAnnotations(map[string]string{appsv1beta1.AnnotationTimeoutSeconds: fmt.Sprint(appsv1beta1.MaxTimeoutSeconds)})
	createSets(t, []*unstructured.Unstructured{set})
	awaitInjection(t, webhooks, namespace, name, 1)

	watching, err := testkit.NewClient(cluster)
	if err != nil {
		t.Fatal(err)
	}
	kubelet := &testkit.Kubelet{
		Client: watching, Namespace: namespace, Pull: 300 * time.Millisecond,
		ShowsNotReady: func(p *corev1.Pod) bool { return p.UID[0]%2 == 0 },
	}
	kubelet.Start(t)
	all := make([]*corev1.Pod, pods)
	for i := range all {
		all[i] = NewPod(podLabels(name))
		all[i].Namespace, all[i].Spec.TerminationGracePeriodSeconds = namespace, new(int64(0))
	}
	if err := each(all, 16, func(p *corev1.Pod) error { return api.Create(t.Context(), p) }); err != nil {
		t.Fatal(err)
	}
	awaitRolled(t, name, pods)
	disturbed := testkit.WatchDisturbed(t, watching, namespace)

	rounds := scaled(5, 50)
	for round := range rounds {
		image := fmt.Sprintf("example.com/sidecar:round-%d", round)
		if err := changeImage(t.Context(), name, image); err != nil {
			t.Fatal(err)
		}
		leader := controllers.replicas[controllers.awaitLeader(t)]
		<-time.After(rand.N(8 * time.Second))
		leader.Kill()
		controllers.revive(t)
		awaitRolled(t, name, pods)
		wantImage(t, namespace, name, image)
		if t.Failed() {
			return
		}
	}
	most, _ := disturbed.Count()
	report(t, "pods=%d budget=%d kills=%d most disturbed at once=%d", pods, budget, rounds, most)
	disturbed.Want(t, budget, pods)
}

// awaitRolled waits until the status says that all Pods are updated and ready.
func awaitRolled(t *testing.T, name string, pods int) {
	t.Helper()
	await.Within(t, rolloutPatience, "the rollout of "+name, func(ctx context.Context) error {
		set, err := testkit.Get(ctx, api, name)
		if err != nil {
			return err
		}
		want := testkit.Counters{Matched: int32(pods), Updated: int32(pods), Ready: int32(pods), UpdatedReady: int32(pods)}
		if got := testkit.CountersOf(set); got != want || set.Status.ObservedGeneration != set.Generation {
			return fmt.Errorf("generation %d of %d: %+v, conditions %+v", set.Status.ObservedGeneration, set.Generation, got, set.Status.Conditions)
		}
		return nil
	})
}

// wantImage holds the status against the Pods themselves.
func wantImage(t *testing.T, namespace, container, image string) {
	t.Helper()
	list := &corev1.PodList{}
	if err := api.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		p := &list.Items[i]
		if got := testkit.WantedImage(p, container); got != image {
			t.Errorf("Pod %s is to run %s, want %s", p.Name, got, image)
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.Name == "app" && s.RestartCount != 0 {
				t.Errorf("the app of Pod %s was started again", p.Name)
			}
		}
	}
}
