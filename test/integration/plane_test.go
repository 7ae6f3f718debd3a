package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// plane is an operator on a control plane whose controllers replace Pods, and whose nodes
// run them.
type plane struct {
	*installation
	owner       *testing.T // ends the replicas
	api         client.WithWatch
	leader      *deploy.Replica
	deployments atomic.Int32
}

// newPlane starts the control plane and a replica with that number. The leaders after it
// have the next numbers. It returns when the API server calls the replica's webhooks.
func newPlane(t *testing.T, number int, options stand.Options, layout deploy.Layout) *plane {
	t.Helper()
	options.Full, options.Nodes = true, 1
	r := &plane{installation: newInstallation(t, options, layout), owner: t}
	var err error
	if r.api, err = testkit.NewClient(r.cluster); err != nil {
		t.Fatal(err)
	}
	r.leader = r.start(t, number)
	if err := testkit.UntilCalled(t.Context(), r.api); err != nil {
		t.Fatal(err)
	}
	return r
}

// changeLeader kills the leader, and returns when another replica leads.
func (r *plane) changeLeader(t *testing.T) {
	t.Helper()
	next := r.startNext(t)
	r.killLeader(t, next)
	await.Eventually(t, "the next leader", func(context.Context) error {
		if !strings.Contains(next.Log(), "Successfully acquired lease") {
			return errors.New(next.Name + " does not lead yet")
		}
		return nil
	})
}

// startNext starts the next replica, which other tests may need too.
func (r *plane) startNext(t *testing.T) *deploy.Replica {
	t.Helper()
	next, err := r.StartReplica(r.owner.Context(), r.leader.Number+1)
	if err != nil {
		t.Fatal(err)
	}
	r.owner.Cleanup(next.Process.Stop)
	return next
}

// killLeader kills the leader. The replica that runs beside it need not wait until the Lease
// of the dead leader expires.
func (r *plane) killLeader(t *testing.T, next *deploy.Replica) {
	t.Helper()
	dead := r.leader
	r.leader = next
	dead.Process.Kill()
	if err := r.RemoveEndpoint(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	if err := r.Clients.CoordinationV1().Leases(deploy.Namespace).Delete(t.Context(), deploy.Lease, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// together runs the tests of a control plane at the same time.
func together(t *testing.T, tests map[string]func(*testing.T)) {
	t.Run("together", func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
}

// app is a SidecarSet of a namespace.
type app struct {
	*plane
	set       *unstructured.Unstructured
	namespace string
}

func (r *plane) namespace(t *testing.T) string {
	t.Helper()
	return testkit.Namespace(t, r.api, nil)
}

// apply creates a SidecarSet for a namespace with these annotations, and waits until it is in
// force.
func (r *plane) apply(t *testing.T, namespace, spec string, annotations map[string]string) *app {
	t.Helper()
	set := newSidecarSet(t, namespace, spec)
	maps.Copy(annotations, map[string]string{appsv1beta1.AnnotationTimeoutSeconds: fmt.Sprint(appsv1beta1.MaxTimeoutSeconds)})
	set.SetAnnotations(annotations)
	insist(t, func(ctx context.Context) error { return r.api.Create(ctx, set) })
	testkit.AwaitReady(t, r.api, set.GetName())
	return &app{plane: r, set: set, namespace: namespace}
}

// deploy creates a Deployment, and waits until its Pods are ready. edit changes its Pods.
func (r *plane) deploy(t *testing.T, namespace string, replicas int32, edit ...func(*corev1.PodSpec)) *appsv1.Deployment {
	t.Helper()
	d := r.deployment(namespace, replicas)
	for _, edit := range edit {
		edit(&d.Spec.Template.Spec)
	}
	r.launch(t, d)
	r.awaitDeployed(t, d, replicas)
	return d
}

// deployment returns a Deployment whose Pods take a second to start.
func (r *plane) deployment(namespace string, replicas int32) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "web-"}}
	labels := map[string]string{"app": "web", "deployment": fmt.Sprint("d", r.deployments.Add(1))}
	d.Spec = appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("", "").Spec},
	}
	d.Spec.Template.Annotations = map[string]string{"stand.test/start-delay": "1s"}
	return d
}

func (r *plane) launch(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	insist(t, func(ctx context.Context) error { return r.api.Create(ctx, d) })
}

// awaitDeployed waits until a number of the Deployment's Pods are ready.
func (r *plane) awaitDeployed(t *testing.T, d *appsv1.Deployment, replicas int32) {
	t.Helper()
	await.Within(t, rolloutPatience, "the Deployment", func(ctx context.Context) error {
		if err := r.api.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if d.Status.ReadyReplicas != replicas {
			return fmt.Errorf("%d Pods are ready, want %d", d.Status.ReadyReplicas, replicas)
		}
		return nil
	})
}

// changeDeployment changes a Deployment by a merge patch of its spec.
func (r *plane) changeDeployment(t *testing.T, d *appsv1.Deployment, spec string) {
	t.Helper()
	if err := r.api.Patch(t.Context(), d.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":`+spec+`}`))); err != nil {
		t.Fatal(err)
	}
}

func (r *plane) list(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	if err := r.api.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (a *app) merge(t *testing.T, change map[string]any) {
	t.Helper()
	body, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	set := a.set.DeepCopy()
	insist(t, func(ctx context.Context) error {
		return a.api.Patch(ctx, set, client.RawPatch(types.MergePatchType, body))
	})
}

// await waits for a status of the present generation.
func (a *app) await(t *testing.T, what string, check func(appsv1beta1.SidecarSetStatus) error) {
	t.Helper()
	await.Within(t, patience, what, func(ctx context.Context) error {
		set, err := testkit.Get(ctx, a.api, a.set.GetName())
		if err == nil {
			err = testkit.Observed(set)
		}
		if err != nil {
			return err
		}
		return check(set.Status)
	})
}

// patience allows for a Pod that rests for five minutes after its write was refused.
const patience = 6 * time.Minute

// awaitComplete waits until the status says that all of a number of Pods are updated and
// ready, that the rollout is complete, and that nothing is wrong.
func (a *app) awaitComplete(t *testing.T, within time.Duration, pods int) {
	t.Helper()
	await.Within(t, within, "the end of the rollout of "+a.set.GetName(), func(ctx context.Context) error {
		set, err := testkit.Get(ctx, a.api, a.set.GetName())
		if err == nil {
			err = testkit.Observed(set)
		}
		if err != nil {
			return err
		}
		return isComplete(set, pods)
	})
}

func isComplete(set *appsv1beta1.SidecarSet, pods int) error {
	n := int32(pods)
	want := testkit.Counters{Matched: n, Updated: n, Ready: n, UpdatedReady: n}
	progressing := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionProgressing)
	degraded := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionDegraded)
	if got := testkit.CountersOf(set); got != want || progressing == nil || progressing.Reason != "Complete" || degraded == nil || degraded.Status != "False" {
		return fmt.Errorf("%+v, want %+v; Progressing is %+v, Degraded is %+v", got, want, progressing, degraded)
	}
	return nil
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
