package restart

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inplace"
)

const sidecarSet = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: agent, uid: set}
spec:
  selector: {matchLabels: {app: web}}
  containers:
  - {name: agent, image: "agent:v1"}
`

// cluster is a fake API server, with workload controllers that replace an evicted Pod and all Pods
// of a restarted Deployment at once.
type cluster struct {
	t       *testing.T
	judge   *Judge
	client  client.Client
	objects []client.Object
	made    int
	// evicted are the names of the evicted Pods, and restarted those of the workloads.
	evicted, restarted []string
	// refuses answers an eviction with an error; nil lets it pass.
	refuses func(pod string) error
	// become is what becomes of a new Pod: it is called each time when the Pods are listed.
	become func(pod *corev1.Pod, age time.Duration)
	said   []string
	// next is what Run.Next says.
	next func(workload string) (string, error)
	// then is called when Pods are about to be replaced; nil for nothing.
	then func()
	born map[types.UID]time.Time
}

func newCluster(t *testing.T, change string) *cluster {
	t.Helper()
	c := &cluster{t: t, born: map[types.UID]time.Time{}, become: func(*corev1.Pod, time.Duration) {}, refuses: func(string) error { return nil }, next: func(string) (string, error) { return "", nil }}
	var object map[string]any
	if err := yaml.Unmarshal([]byte(sidecarSet+change), &object); err != nil {
		t.Fatal(err)
	}
	w := clusterview.New(clusterview.Parts{SidecarSets: []map[string]any{object}, Namespaces: map[string]labels.Set{"shop": {}}, Now: time.Unix(1_767_225_600, 0)})
	program, usable := w.Snapshot.Get("agent")
	if !usable {
		t.Fatal(w.Unusable)
	}
	updater, err := explain.NewUpdater(w, program, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.judge = &Judge{World: w, Updater: updater, Resizes: true, Node: func(string) (inplace.Node, error) { return inplace.Node{}, nil }}
	return c
}

// pod adds a Pod without sidecars.
func (c *cluster) pod(name string, owner *metav1.OwnerReference, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}, CreationTimestamp: metav1.Unix(900_000_000, 0)},
		Spec:       corev1.PodSpec{NodeName: "node", RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "app", Image: "app:v1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if owner != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	for _, change := range change {
		change(pod)
	}
	c.objects = append(c.objects, pod)
	return pod
}

func controlledBy(apiVersion, kind, name string) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("uid-" + kind + "-" + name), Controller: new(true)}
}

// deployment adds a Deployment with its ReplicaSet and that many Pods without sidecars.
func (c *cluster) deployment(name string, pods int32, change ...func(*appsv1.Deployment)) {
	meta := func(kind string, owner ...metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + kind + "-" + name), OwnerReferences: owner}
	}
	d := &appsv1.Deployment{ObjectMeta: meta("Deployment"), Spec: appsv1.DeploymentSpec{Replicas: new(pods), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	d.Status = appsv1.DeploymentStatus{Replicas: pods, UpdatedReplicas: pods, AvailableReplicas: pods}
	for _, change := range change {
		change(d)
	}
	c.objects = append(c.objects, d, &appsv1.ReplicaSet{ObjectMeta: meta("ReplicaSet", *controlledBy("apps/v1", "Deployment", name))})
	for i := range pods {
		c.pod(fmt.Sprintf("%s-%d", name, i), controlledBy("apps/v1", "ReplicaSet", name))
	}
}

// replace deletes a Pod and creates an injected one in its place.
func (c *cluster) replace(ctx context.Context, api client.Client, pod *corev1.Pod) error {
	if err := api.Delete(ctx, pod.DeepCopy()); err != nil {
		return err
	}
	c.made++
	next := pod.DeepCopy()
	next.Name, next.UID, next.ResourceVersion = fmt.Sprintf("new-%d", c.made), types.UID(fmt.Sprint("new-", c.made)), ""
	next.CreationTimestamp, next.Annotations = metav1.Now(), nil
	delete(next.Labels, "canary") // the template does not have it
	next.Spec.Containers = slices.DeleteFunc(next.Spec.Containers, func(c corev1.Container) bool { return c.Name == "agent" })
	next = c.injected(next)
	c.born[next.UID] = time.Now()
	return api.Create(ctx, next)
}

// injected is a Pod as the webhook injects it.
func (c *cluster) injected(pod *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		c.t.Fatal(err)
	}
	decision, err := c.judge.World.Decide(c.t.Context(), "shop", object)
	if err != nil || decision.Refused != nil {
		c.t.Fatal(err, decision.Refused)
	}
	out := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fixtures.Apply(c.t, decision.Plan, object), out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

// find makes the fake API server, and finds what is to be replaced.
func (c *cluster) find(evict bool) *Survey {
	c.t.Helper()
	c.client = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(c.objects...).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceCreate: func(ctx context.Context, api client.Client, _ string, object, _ client.Object, _ ...client.SubResourceCreateOption) error {
			if err := c.refuses(object.GetName()); err != nil {
				return err
			}
			c.evicted = append(c.evicted, object.GetName())
			return c.replace(ctx, api, object.(*corev1.Pod))
		},
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			c.restarted = append(c.restarted, object.GetName())
			var list corev1.PodList
			if err := api.List(ctx, &list); err != nil {
				return err
			}
			for i := range list.Items {
				if metav1.GetControllerOf(&list.Items[i]).Name == object.GetName() {
					if err := c.replace(ctx, api, &list.Items[i]); err != nil {
						return err
					}
				}
			}
			return api.Patch(ctx, object, patch, options...)
		},
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := api.List(ctx, list, options...)
			if pods, is := list.(*corev1.PodList); is {
				for i := range pods.Items {
					if born, isNew := c.born[pods.Items[i].UID]; isNew {
						c.become(&pods.Items[i], time.Since(born))
					}
				}
			}
			return err
		},
	}).Build()
	survey, err := Find(c.t.Context(), c.client, c.judge, c.pods(), evict)
	if err != nil {
		c.t.Fatal(err)
	}
	return survey
}

// pods are the Pods of the fake API server.
func (c *cluster) pods() (pods []*corev1.Pod) {
	c.t.Helper()
	var list corev1.PodList
	if err := c.client.List(c.t.Context(), &list); err != nil {
		c.t.Fatal(err)
	}
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods
}

// run replaces what find has found.
func (c *cluster) run(ctx context.Context, evict bool) (done, passed string, err error) {
	c.t.Helper()
	run := &Run{
		Client: nil, Judge: c.judge, MinReady: 30 * time.Second, Timeout: 10 * time.Minute,
		Next: func(_ context.Context, w *Workload) (string, error) { return c.next(w.Name) },
		Say: func(w *Workload, text string) {
			c.said = append(c.said, w.Name+": "+text)
		},
	}
	survey := c.find(evict)
	run.Client = c.client
	if c.then != nil {
		c.then()
	}
	workloads := slices.DeleteFunc(survey.Workloads, func(w *Workload) bool { return w.Named != "" && !w.Evict })
	replaced, over, err := run.All(ctx, workloads)
	for _, w := range replaced {
		done += w.Name + " "
	}
	for _, w := range over {
		passed += w.Name + ": " + w.Why + "\n"
	}
	return done, passed, err
}
