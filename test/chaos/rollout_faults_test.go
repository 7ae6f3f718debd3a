package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// A leader is stopped in the middle of a rollout until another replica leads. Then it
// continues: for a moment there are two leaders. The old one writes nothing more, and ends.
func TestTwoLeadersForAMomentKeepTheBudget(t *testing.T) {
	r := newRolled(t, 300, 15)
	for range testkit.Scaled(2, 20) {
		old := r.controllers.replicas[r.controllers.awaitLeader(t)]
		image := r.begin(t)
		r.awaitBegun(t, image, 1+rand.N(r.pods/2))
		if err := old.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if done := r.with(image); done >= r.pods {
			t.Errorf("%d of %d Pods had their image when the leader was stopped", done, r.pods)
		}
		r.awaitAnotherLeader(t, old)
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
	r.report(t, "pauses", r.rounds)
}

// awaitAnotherLeader waits until a controller other than old leads.
func (r *rolled) awaitAnotherLeader(t *testing.T, old *deploy.Replica) {
	t.Helper()
	await.Eventually(t, "another leader", func(context.Context) error {
		r.controllers.revive(t)
		for _, replica := range r.controllers.replicas {
			if replica != old && replica.Running() && strings.Contains(replica.Log(), "Successfully acquired lease") {
				return nil
			}
		}
		return errors.New("no other controller says that it leads")
	})
}

// T6: Pods are evicted, deleted, relabelled and finished while they are updated: fewer than may be down,
// because some of them keep their place. The rollout ends, and the status is right about the Pods
// that are left.
func TestPodsMayLeaveInARollout(t *testing.T) {
	const leaving = 10
	r := newRolled(t, 300, 15)
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
	for range testkit.Scaled(2, 10) {
		image := r.begin(t)
		r.awaitBegun(t, image, r.pods/2)
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
		if t.Failed() {
			return
		}
	}
	r.disturbed.CatchUp(t)
	most, _ := r.disturbed.Count()
	testkit.Report(t, "pods left=%d budget=%d most disturbed at once=%d, in the middle were %v", r.pods, r.budget, most, left)
	if most > r.budget {
		t.Errorf("%d Pods were disturbed at the same time, want %d at most", most, r.budget)
	}
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
