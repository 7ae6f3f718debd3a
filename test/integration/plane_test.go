package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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

// inject creates a SidecarSet for a namespace with that mode, and waits until it is in
// force. A Pod is proven as soon as it is Ready.
func (r *plane) inject(t *testing.T, namespace, mode, spec string) *app {
	t.Helper()
	return r.apply(t, namespace, spec, map[string]string{appsv1beta1.AnnotationRecreate: mode, appsv1beta1.AnnotationMinReadySeconds: "0"})
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
