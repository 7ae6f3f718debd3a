package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// rolloutPatience is the longest time for the rollout of one image, with a change of leaders.
const rolloutPatience = 3 * time.Minute

// takeoverLeases let another replica lead four seconds after a leader has ended.
var takeoverLeases = []string{"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=2500ms", "--leader-elect-retry-period=500ms"}

// rolled is a SidecarSet with Pods that a test kubelet runs, and two controllers that roll
// out its images.
type rolled struct {
	name, namespace string
	pods, budget    int
	controllers     *fleet
	watching        client.WithWatch // of the second API server, which the operator does not use
	disturbed       *testkit.Disturbed
	rounds          int
}

// newRolled creates the SidecarSet and its Pods, and returns when the Pods run.
func newRolled(t *testing.T, pods, budget int) *rolled {
	t.Helper()
	r := &rolled{name: "rolled", pods: pods, budget: budget, namespace: testkit.Namespace(t, api, nil)}
	r.controllers = startControllers(t, 2, append([]string{"--rollout-qps=400"}, takeoverLeases...)...)
	webhooks := startReplicas(t, 1, "--role=webhook")
	set := testkit.NewPatientSet(r.name, r.namespace)
	set.Object["spec"].(map[string]any)["updateStrategy"] = map[string]any{"type": "RollingUpdate", "maxUnavailable": int64(budget)}
	createSets(t, []*unstructured.Unstructured{set})
	awaitInjection(t, webhooks, r.namespace, r.name, 1)
	// Before that, API servers ignore a call that takes more than a second.
	r.controllers.await(t, r.name, "the condition Ready", testkit.Ready)

	var err error
	if r.watching, err = testkit.NewClientFor(cluster.ConfigFor(1)); err != nil {
		t.Fatal(err)
	}
	kubelet := &testkit.Kubelet{
		Client: r.watching, Namespace: r.namespace, Pull: 300 * time.Millisecond,
		ShowsNotReady: func(p *corev1.Pod) bool { return p.UID[0]%2 == 0 },
	}
	kubelet.Start(t)
	all := make([]*corev1.Pod, pods)
	for i := range all {
		all[i] = testkit.NewPod(testkit.AppLabels(r.name))
		all[i].Namespace, all[i].Spec.TerminationGracePeriodSeconds = r.namespace, new(int64(0))
	}
	if err := testkit.Each(all, 16, func(p *corev1.Pod) error { return api.Create(t.Context(), p) }); err != nil {
		t.Fatal(err)
	}
	r.await(t)
	r.disturbed = testkit.WatchDisturbed(t, r.watching, r.namespace, client.MatchingLabels(testkit.AppLabels(r.name)))
	return r
}

// begin begins the rollout of another image, and returns the image.
func (r *rolled) begin(t *testing.T) (image string) {
	t.Helper()
	image = fmt.Sprintf("example.com/sidecar:round-%d", r.rounds)
	r.rounds++
	mustChangeImage(t, r.name, image)
	return image
}

// end waits until all Pods have the image, and run it.
func (r *rolled) end(t *testing.T, image string) {
	t.Helper()
	r.await(t)
	r.wantPods(t, image)
}

// Whatever happens to leaders and to Pods in a rollout, at no time are more Pods disturbed than the budget allows. The next
// leader continues from what the Pods say. Each Pod is written once in each rollout.
func TestFaultsInARolloutKeepTheBudget(t *testing.T) {
	r := newRolled(t, testkit.Scaled(120, 500), testkit.Scaled(6, 25))
	t.Run("leaders are killed", r.killLeaders)
	t.Run("leaders are paused until another one leads", r.pauseLeaders)
	t.Run("another version takes over", r.changeVersions)
	if !t.Failed() { // a subtest may not have run
		r.disturbed.Want(t, r.budget, r.pods)
	}
	t.Run("Pods leave", r.leave)
	r.disturbed.CatchUp(t)
	most, _ := r.disturbed.Count()
	testkit.Report(t, "pods=%d budget=%d rollouts=%d most disturbed at once=%d", r.pods, r.budget, r.rounds, most)
	if most > r.budget {
		t.Errorf("%d Pods were disturbed at the same time, want %d at most", most, r.budget)
	}
}

func (r *rolled) killLeaders(t *testing.T) {
	for kills, most := 0, testkit.Scaled(3, 50); kills < most && !t.Failed(); {
		image := r.begin(t)
		for kills < most {
			leader := r.controllers.replicas[r.controllers.awaitLeader(t)]
			<-time.After(rand.N(8 * time.Second))
			if r.with(image) == r.pods {
				break // the rollout is over
			}
			leader.Kill()
			kills++
			r.controllers.revive(t)
		}
		r.end(t, image)
	}
}

// A leader that continues after another one leads writes nothing more, and ends.
func (r *rolled) pauseLeaders(t *testing.T) {
	for range testkit.Scaled(1, 20) {
		old := r.controllers.replicas[r.controllers.awaitLeader(t)]
		image := r.begin(t)
		r.awaitBegun(t, image, 1+rand.N(r.pods/2))
		if err := old.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if done := r.with(image); done >= r.pods {
			t.Errorf("%d of %d Pods had their image when the leader was stopped", done, r.pods)
		}
		r.controllers.awaitAnotherLeader(t, old)
		if err := old.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		await.Eventually(t, "the end of the old leader", func(context.Context) error {
			if old.Running() {
				return errors.New(old.Name + " runs")
			}
			return nil
		})
		if !strings.Contains(old.Log(), "leader election lost") {
			t.Errorf("%s does not say that it has lost its Lease:\n%s", old.Name, old.Tail(10))
		}
		r.end(t, image)
		if t.Failed() {
			return
		}
	}
}

// The operator is rolled back in the middle of a rollout, and upgraded in the middle of the next one.
func (r *rolled) changeVersions(t *testing.T) {
	previous := os.Getenv(previousOperator)
	if previous == "" {
		t.Skip("SKIP: there is no operator of an earlier commit; make chaos builds one where the history of the repository is there")
	}
	old := false
	amendOperator(t, func(c *stand.Command) {
		if old {
			c.Path = previous
		}
	})
	for _, toOld := range []bool{true, false} {
		image := r.begin(t)
		r.awaitBegun(t, image, r.pods/4)
		old = toOld
		r.controllers.kill()
		r.controllers.revive(t)
		r.controllers.awaitLeader(t)
		if done := r.with(image); done >= r.pods {
			t.Errorf("%d of %d Pods had their image before the other version led", done, r.pods)
		}
		r.end(t, image)
	}
}

// Pods are evicted, deleted, relabelled and finished while they are updated: fewer than may be down,
// because some of them keep their place. The rollout ends, and the status is right about the Pods
// that are left.
func (r *rolled) leave(t *testing.T) {
	leaving := r.budget - 1 // Pods that have disappeared use the budget for ten minutes
	left := map[string]int{}
	leave := []struct {
		how string
		do  func(context.Context, *corev1.Pod) error
	}{
		{"evicted", func(ctx context.Context, p *corev1.Pod) error {
			return api.SubResource("eviction").Create(ctx, p, &policyv1.Eviction{})
		}},
		{"deleted", func(ctx context.Context, p *corev1.Pod) error { return api.Delete(ctx, p) }},
		{"relabelled", func(ctx context.Context, p *corev1.Pod) error {
			return api.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"other"}}}`)))
		}},
		{"finished", func(ctx context.Context, p *corev1.Pod) error {
			return api.Status().Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`)))
		}},
		{"failed", func(ctx context.Context, p *corev1.Pod) error {
			return api.Status().Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`)))
		}},
	}
	next := 0
	for range testkit.Scaled(1, 10) {
		image := r.begin(t)
		r.awaitBegun(t, image, r.pods/4)
		for most := leaving; most > 0; {
			under := r.updating(image)
			if len(under) == 0 && r.with(image) == len(r.seen()) {
				break
			}
			for _, p := range under[:min(len(under), most, 3)] {
				how := leave[next%len(leave)]
				switch err := how.do(t.Context(), p.DeepCopy()); {
				case apierrors.IsConflict(err): // the kubelet wrote the Pod at the same time as the eviction
					continue
				case client.IgnoreNotFound(err) != nil:
					t.Fatalf("a Pod is to be %s: %v", how.how, err)
				}
				left[how.how]++
				next++
				most--
			}
			<-time.After(50 * time.Millisecond)
		}
		r.await(t)
		r.pods = len(r.list(t))
		r.end(t, image)
	}
	testkit.Report(t, "in the middle were %v", left)
	for _, how := range leave {
		if left[how.how] == 0 {
			t.Errorf("no Pod was %s", how.how)
		}
	}
}

// updating returns the Pods whose sidecar is to have an image, and which are disturbed.
func (r *rolled) updating(image string) []*corev1.Pod {
	return slices.DeleteFunc(r.seen(), func(p *corev1.Pod) bool {
		return testkit.WantedImage(p, r.name) != image || !testkit.IsDisturbed(p)
	})
}

// await waits until the status says that all Pods that are left are updated and ready.
// Controllers that have ended are started again.
func (r *rolled) await(t *testing.T) {
	t.Helper()
	await.Within(t, rolloutPatience, "the rollout", func(ctx context.Context) error {
		r.controllers.revive(t)
		set, err := testkit.Get(ctx, api, r.name)
		if err != nil {
			return err
		}
		got := testkit.CountersOf(set)
		n := got.Matched
		if got == allOf(n) { // before that, no list of all Pods is worth its cost
			n = int32(len(r.list(t)))
		}
		if want := allOf(n); got != want || set.Status.ObservedGeneration != set.Generation {
			return fmt.Errorf("generation %d of %d: %+v, want %+v; conditions %+v", set.Status.ObservedGeneration, set.Generation, got, want, set.Status.Conditions)
		}
		return nil
	})
}

// allOf is the status of n Pods that are updated and ready.
func allOf(n int32) testkit.Counters {
	return testkit.Counters{Matched: n, Updated: n, Ready: n, UpdatedReady: n}
}

// list returns the selected Pods that are neither finished nor being deleted.
func (r *rolled) list(t *testing.T) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	if err := r.watching.List(t.Context(), list, client.InNamespace(r.namespace), client.MatchingLabels(testkit.AppLabels(r.name))); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return isLeaving(&p) })
}

// seen returns the same Pods as list, from the watch of disturbed. It is for checks that
// run again and again, because it does not list all Pods.
func (r *rolled) seen() []*corev1.Pod { return slices.DeleteFunc(r.disturbed.Pods(), isLeaving) }

// isLeaving reports whether a Pod is finished or being deleted.
func isLeaving(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// with counts the Pods whose sidecar is to have an image.
func (r *rolled) with(image string) (n int) {
	for _, p := range r.seen() {
		if testkit.WantedImage(p, r.name) == image {
			n++
		}
	}
	return n
}

// awaitBegun waits until a number of Pods have the image.
func (r *rolled) awaitBegun(t *testing.T, image string, pods int) {
	t.Helper()
	await.Eventually(t, "Pods with "+image, func(context.Context) error {
		r.controllers.revive(t)
		if with := r.with(image); with < pods {
			return fmt.Errorf("there are %d, want %d", with, pods)
		}
		return nil
	})
}

// wantPods fails the test unless each round has written each Pod once, has started its
// sidecar once, and has started no other container.
func (r *rolled) wantPods(t *testing.T, image string) {
	t.Helper()
	pods := r.list(t)
	if len(pods) != r.pods {
		t.Errorf("there are %d Pods, want %d", len(pods), r.pods)
	}
	for i := range pods {
		p := &pods[i]
		if got := testkit.WantedImage(p, r.name); got != image {
			t.Errorf("Pod %s is to run %s, want %s", p.Name, got, image)
		}
		if want := int64(1 + r.rounds); p.Generation != want {
			t.Errorf("Pod %s has generation %d, want %d", p.Name, p.Generation, want)
		}
		for _, s := range p.Status.ContainerStatuses {
			if want := map[string]int32{r.name: int32(r.rounds)}[s.Name]; s.RestartCount != want {
				t.Errorf("container %s of Pod %s was started again %d times, want %d", s.Name, p.Name, s.RestartCount, want)
			}
		}
	}
}
