package restart

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/world"
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
	lock    sync.Mutex
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
	w := world.New(world.Parts{SidecarSets: []map[string]any{object}, Namespaces: map[string]labels.Set{"shop": {}}, Now: time.Unix(1_767_225_600, 0)})
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
	next.CreationTimestamp = metav1.Now()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(next)
	if err != nil {
		return err
	}
	decision, err := c.judge.World.Decide(ctx, "shop", object)
	if err != nil || decision.Refused != nil {
		return errors.Join(err, decision.Refused)
	}
	injected := fixtures.Apply(c.t, decision.Plan, object)
	next = &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(injected, next); err != nil {
		return err
	}
	c.born[next.UID] = time.Now()
	return api.Create(ctx, next)
}

// find makes the fake API server, and finds what is to be replaced.
func (c *cluster) find(evict bool) *Survey {
	c.t.Helper()
	c.client = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(c.objects...).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceCreate: func(ctx context.Context, api client.Client, _ string, object, _ client.Object, _ ...client.SubResourceCreateOption) error {
			c.lock.Lock()
			defer c.lock.Unlock()
			if err := c.refuses(object.GetName()); err != nil {
				return err
			}
			c.evicted = append(c.evicted, object.GetName())
			return c.replace(ctx, api, object.(*corev1.Pod))
		},
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			c.lock.Lock()
			defer c.lock.Unlock()
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
func (c *cluster) run(ctx context.Context, evict bool, parallel int) (done, passed string, err error) {
	c.t.Helper()
	run := &Run{
		Client: nil, Judge: c.judge, MinReady: 30 * time.Second, Timeout: 10 * time.Minute, Parallel: parallel,
		Next: func(_ context.Context, w *Workload) (string, error) { return c.next(w.Name) },
		Say: func(w *Workload, text string) {
			c.lock.Lock()
			defer c.lock.Unlock()
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

func TestFind(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "")
	c.deployment("web", 2, func(d *appsv1.Deployment) { d.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps"} })
	c.deployment("paused", 1, func(d *appsv1.Deployment) { d.Spec.Paused = true })
	c.deployment("owned", 1, func(d *appsv1.Deployment) {
		d.OwnerReferences = []metav1.OwnerReference{*controlledBy("x/v1", "Mesh", "m")}
	})
	c.objects = append(c.objects,
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Spec: appsv1.StatefulSetSpec{UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
			Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))},
		}}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ds"}, Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}}})
	c.pod("db-0", controlledBy("apps/v1", "StatefulSet", "db"))
	c.pod("ds-0", controlledBy("apps/v1", "DaemonSet", "ds"))
	c.pod("clone-0", controlledBy("apps.kruise.io/v1alpha1", "CloneSet", "clone"))
	c.pod("clone-1", controlledBy("apps.kruise.io/v1alpha1", "CloneSet", "clone"), func(p *corev1.Pod) {
		p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
	})
	c.pod("job-0", controlledBy("batch/v1", "Job", "job"))
	c.pod("task-0", controlledBy("argoproj.io/v1alpha1", "Workflow", "task"), func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	c.pod("bare", nil)
	c.pod("static", nil, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
	c.pod("other", nil, func(p *corev1.Pod) { p.Labels = nil })

	text := func(s *Survey) (all []string) {
		for _, w := range s.Workloads {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %d %s %s %t", w, w.Pods(), w.Named, w.Warning, w.Evict)))
		}
		for _, left := range s.Left {
			all = append(all, left.Pod.Name+" "+left.Why)
		}
		return all
	}
	for _, tc := range []struct {
		evict bool
		want  []string
	}{
		{false, []string{
			"CloneSet shop/clone 2 kubectl sidecarset does not know how", "DaemonSet shop/ds 1 its updateStrategy is OnDelete", "Deployment shop/owned 1 Mesh m controls it",
			"Deployment shop/paused 1 it is paused", "Deployment shop/web 2  Flux manages it", "StatefulSet shop/db 1 its own partition 2",
			"bare no controller", "job-0 it belongs to a Job", "task-0 it runs to completion",
		}},
		{true, []string{
			"CloneSet shop/clone 1 kubectl", "DaemonSet shop/ds 1", "Deployment shop/owned 1", "Deployment shop/paused 1", "Deployment shop/web 2", "StatefulSet shop/db 1",
			"bare", "clone-1 an annotation forbids", "job-0", "task-0",
		}},
	} {
		got := text(c.find(tc.evict))
		if len(got) != len(tc.want) {
			t.Errorf("evict %t: %q", tc.evict, got)
			continue
		}
		for i, want := range tc.want {
			if !strings.HasPrefix(got[i], want) {
				t.Errorf("evict %t: %q, want %q", tc.evict, got[i], want)
			}
		}
	}
}

func TestNothingIsReplacedThatWouldComeBackAsItIs(t *testing.T) {
	t.Parallel()
	inForce := func(change func(*appsv1beta1.SidecarSet)) *appsv1beta1.SidecarSet {
		set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "agent", Generation: 2}}
		set.Status.ObservedGeneration = 2
		set.Status.Conditions = []metav1.Condition{{Type: appsv1beta1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 2}}
		change(set)
		return set
	}
	for want, change := range map[string]func(*appsv1beta1.SidecarSet){
		"":                    func(*appsv1beta1.SidecarSet) {},
		"is being deleted":    func(s *appsv1beta1.SidecarSet) { s.DeletionTimestamp = new(metav1.Now()) },
		"injection is paused": func(s *appsv1beta1.SidecarSet) { s.Spec.InjectionStrategy.Paused = true },
		"rollout is paused":   func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.Paused = true },
		"names revisionName r1": func(s *appsv1beta1.SidecarSet) {
			s.Spec.InjectionStrategy.Revision = &appsv1beta1.SidecarSetInjectRevision{RevisionName: new("r1")}
		},
		"not observed generation 3": func(s *appsv1beta1.SidecarSet) { s.Generation = 3 },
		"it is not Ready":           func(s *appsv1beta1.SidecarSet) { s.Status.Conditions[0].Status = metav1.ConditionFalse },
	} {
		if got, _ := Stopped(inForce(change)); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("Stopped() = %q, want %q", got, want)
		}
	}

	c := newCluster(t, "  injectionStrategy: {paused: true}\n")
	c.deployment("web", 1)
	if s := c.find(true); len(s.Workloads) != 0 || len(s.Left) != 1 || !strings.Contains(s.Left[0].Why, "would not get the current content either") {
		t.Errorf("%+v", s)
	}
}

func TestOnePodIsTriedAndThenTheWorkloadRestarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 3)
		c.deployment("api", 1) // with a surge
		done, passed, err := c.run(t.Context(), false, 1)
		if err != nil || done != "api web " || passed != "" {
			t.Fatalf("done %q, passed %q, %v", done, passed, err)
		}
		if !slices.Equal(c.restarted, []string{"api", "web"}) || len(c.evicted) != 1 || !strings.HasPrefix(c.evicted[0], "web-") {
			t.Errorf("evicted %v, restarted %v", c.evicted, c.restarted)
		}
		if survey, err := Find(t.Context(), c.client, c.judge, c.pods(), false); err != nil || len(survey.Workloads) > 0 || len(survey.Left) > 0 {
			t.Errorf("again: %+v, %v", survey, err)
		}
	})
}

func notReady(pod *corev1.Pod, reason string) {
	pod.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
}

// However a new Pod fails, one Pod is lost, and no other workload is begun.
func TestAFailureStops(t *testing.T) {
	t.Parallel()
	for want, become := range map[string]func(*corev1.Pod, time.Duration){
		"was Ready and is not any more (container app: CrashLoopBackOff)": func(pod *corev1.Pod, age time.Duration) {
			if age > 10*time.Second {
				notReady(pod, "CrashLoopBackOff")
			}
		},
		"was Ready and is not any more": func(pod *corev1.Pod, age time.Duration) { // between two looks
			if age > 10*time.Second {
				pod.Status.Conditions[0].LastTransitionTime = metav1.Now()
			}
		},
		"does not become Ready (container app: ImagePullBackOff)": func(pod *corev1.Pod, _ time.Duration) { notReady(pod, "ImagePullBackOff") },
		"nothing has moved for 10m30s":                            func(pod *corev1.Pod, _ time.Duration) { notReady(pod, "ContainerCreating") },
		"does not carry the current content":                      func(pod *corev1.Pod, _ time.Duration) { pod.Annotations = nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "")
			c.become = become
			c.deployment("web", 3)
			c.deployment("web2", 3)
			done, passed, err := c.run(t.Context(), false, 1)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Deployment shop/web: ") || !strings.Contains(err.Error(), "new-1") ||
				!strings.Contains(err.Error(), "rollout undo agent") {
				t.Errorf("%v, want %q", err, want)
			}
			if len(c.evicted) != 1 || len(c.restarted) > 0 || done != "" || passed != "" {
				t.Errorf("evicted %v, restarted %v, done %q, passed %q", c.evicted, c.restarted, done, passed)
			}
		})
	}
}

// What the next Pod would get is asked before a Pod is lost.
func TestNothingIsLostIfTheNextPodWouldNotGetTheContent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 2)
		c.deployment("web2", 2)
		c.deployment("web3", 2)
		c.next = func(workload string) (string, error) {
			switch workload {
			case "web":
				return "no webhook is called", nil
			case "web2":
				return "", errors.New("the SidecarSet was changed")
			}
			return "", nil
		}
		done, passed, err := c.run(t.Context(), false, 1)
		if done != "" || passed != "web: no webhook is called\n" || err == nil || err.Error() != "Deployment shop/web2: the SidecarSet was changed" || len(c.evicted)+len(c.restarted) > 0 {
			t.Errorf("done %q, passed %q, evicted %v, %v", done, passed, c.evicted, err)
		}
	})
}

// A Pod that shows a reason of failure for less than a minute has only begun slowly.
func TestASlowBeginIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.become = func(pod *corev1.Pod, age time.Duration) {
			if age < 50*time.Second {
				notReady(pod, "CrashLoopBackOff")
			}
		}
		c.deployment("web", 2)
		if done, _, err := c.run(t.Context(), false, 1); err != nil || done != "web " {
			t.Errorf("%q, %v", done, err)
		}
	})
}

func TestAFailureAfterTheRestartStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.become = func(pod *corev1.Pod, age time.Duration) {
			if pod.Name != "new-1" && age > 20*time.Second {
				notReady(pod, "CrashLoopBackOff")
			}
		}
		c.deployment("web", 3)
		_, _, err := c.run(t.Context(), false, 1)
		if err == nil || !strings.Contains(err.Error(), "its new Pod new-") || !strings.Contains(err.Error(), "It was restarted") {
			t.Error(err)
		}
	})
}

// Budgets are asked for a minute. One that is not Ready may be evicted where one that is may not.
func TestBudgets(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]error{
		"one": apierrors.NewTooManyRequests("the disruption budget needs 3", 0),
		"two": apierrors.NewInternalError(errors.New("more than one PodDisruptionBudget")),
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "")
			c.deployment("web", 3)
			c.deployment("web2", 3)
			c.refuses = func(pod string) error {
				if strings.HasPrefix(pod, "web-") {
					return refusal
				}
				return nil
			}
			done, passed, err := c.run(t.Context(), false, 1)
			if err != nil || done != "web2 " || !strings.Contains(passed, "web: Pod web-") || !strings.Contains(passed, refusal.Error()) {
				t.Errorf("%s: done %q, passed %q, %v", name, done, passed, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 3)
		notReady(c.objects[3].(*corev1.Pod), "CrashLoopBackOff")
		c.refuses = func(pod string) error {
			if pod != "web-1" {
				return apierrors.NewTooManyRequests("no", 0)
			}
			return nil
		}
		c.become = func(pod *corev1.Pod, _ time.Duration) { pod.Status = c.objects[2].(*corev1.Pod).Status }
		if done, passed, err := c.run(t.Context(), false, 1); err != nil || done != "web " || !slices.Equal(c.evicted, []string{"web-1"}) {
			t.Errorf("done %q, passed %q, evicted %v, %v", done, passed, c.evicted, err)
		}
	})
}

func TestProtectedPodsAreNotTried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 2)
		protect := func(at int) {
			c.objects[at].SetAnnotations(map[string]string{"karpenter.sh/do-not-disrupt": "true"})
		}
		protect(2)
		if done, _, err := c.run(t.Context(), false, 1); err != nil || done != "web " || !slices.Equal(c.evicted, []string{"web-1"}) {
			t.Errorf("done %q, evicted %v, %v", done, c.evicted, err)
		}
		protect(3)
		if done, passed, err := c.run(t.Context(), false, 1); err != nil || done != "" || !strings.Contains(passed, "forbid to evict") {
			t.Errorf("done %q, passed %q, %v", done, passed, err)
		}
	})
}

func TestOtherPodsAreEvictedOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		for i := range 3 {
			c.pod(fmt.Sprint("clone-", i), controlledBy("apps.kruise.io/v1alpha1", "CloneSet", "clone"))
		}
		c.pod("job-0", controlledBy("batch/v1", "Job", "job"))
		atOnce := 0
		c.refuses = func(string) error {
			for _, born := range c.born {
				if time.Since(born) < 30*time.Second {
					atOnce++
				}
			}
			return nil
		}
		done, passed, err := c.run(t.Context(), true, 2)
		if err != nil || done != "clone " || passed != "" || len(c.evicted) != 3 || len(c.restarted) > 0 || atOnce > 0 {
			t.Errorf("done %q, passed %q, evicted %v, restarted %v, %d at once, %v", done, passed, c.evicted, c.restarted, atOnce, err)
		}
	})
}

func TestAnInterruptedRunSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 3)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, _, err := c.run(ctx, false, 1); err == nil || !strings.Contains(err.Error(), "interrupted after Pod web-") {
			t.Errorf("interrupted: %v", err)
		}
	})
}

// A rollout of the workload that is under way, such as that of an interrupted run, is waited for;
// but not one whose newest Pod needs to be replaced, since it may never end.
func TestARolloutThatIsUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, newest := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "")
			c.deployment("web", 3, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 })
			began := time.Now()
			c.then = func() {
				if newest {
					return
				}
				if err := c.replace(t.Context(), c.client, c.objects[2].(*corev1.Pod)); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(5*time.Minute, func() {
					d := &appsv1.Deployment{}
					if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, d); err != nil {
						t.Error(err)
					}
					d.Status.UpdatedReplicas = 3
					if err := c.client.Status().Update(t.Context(), d); err != nil {
						t.Error(err)
					}
				})
			}
			c.refuses = func(string) error {
				if waited := time.Since(began) > 4*time.Minute; waited == newest {
					t.Errorf("evicted after %s", time.Since(began))
				}
				return nil
			}
			_, _, _ = c.run(t.Context(), false, 1)
			if len(c.evicted) != 1 {
				t.Errorf("evicted %v: %q", c.evicted, c.said)
			}
		})
	}
}

func TestRolledOut(t *testing.T) {
	t.Parallel()
	deployment := func(change func(*appsv1.Deployment)) client.Object {
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(3))}, Status: appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3}}
		change(d)
		return d
	}
	statefulSet := func(change func(*appsv1.StatefulSet)) client.Object {
		s := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3))}, Status: appsv1.StatefulSetStatus{UpdatedReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 3}}
		change(s)
		return s
	}
	daemonSet := func(change func(*appsv1.DaemonSet)) client.Object {
		d := &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberAvailable: 3}}
		change(d)
		return d
	}
	for _, tc := range []struct {
		object client.Object
		want   string
	}{
		{deployment(func(*appsv1.Deployment) {}), "done"},
		{deployment(func(d *appsv1.Deployment) { d.Generation = 1 }), notObserved},
		{deployment(func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 }), "1 of 3 new Pods exist"},
		{deployment(func(d *appsv1.Deployment) { d.Status.Replicas = 4 }), "1 old Pods are still to end"},
		{deployment(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 2 }), "2 of 3 new Pods are available"},
		{deployment(func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded"}}
		}), "its rollout has made no progress within progressDeadlineSeconds"},
		{statefulSet(func(*appsv1.StatefulSet) {}), "done"},
		{statefulSet(func(s *appsv1.StatefulSet) { s.Status.UpdateRevision, s.Status.UpdatedReplicas = "b", 1 }), "1 of 3 Pods are new"},
		{statefulSet(func(s *appsv1.StatefulSet) { s.Status.ReadyReplicas = 2 }), "2 of 3 Pods are ready"},
		{statefulSet(func(s *appsv1.StatefulSet) { s.Status.AvailableReplicas = 2 }), "2 of 3 Pods are available"},
		{daemonSet(func(*appsv1.DaemonSet) {}), "done"},
		{daemonSet(func(d *appsv1.DaemonSet) { d.Generation = 1 }), notObserved},
		{daemonSet(func(d *appsv1.DaemonSet) { d.Status.UpdatedNumberScheduled = 1 }), "1 of 3 Pods are new"},
		{daemonSet(func(d *appsv1.DaemonSet) { d.Status.NumberAvailable = 1 }), "1 of 3 Pods are available"},
	} {
		done, says, err := rolledOut(tc.object)
		if done {
			says = "done"
		} else if err != nil {
			says = err.Error()
		}
		if says != tc.want {
			t.Errorf("%T: %q, want %q", tc.object, says, tc.want)
		}
	}
}

func TestSurges(t *testing.T) {
	t.Parallel()
	one := func(surge *intstr.IntOrString, kind appsv1.DeploymentStrategyType, replicas int32) client.Object {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas, Strategy: appsv1.DeploymentStrategy{Type: kind, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: surge}}}}
	}
	for _, tc := range []struct {
		object client.Object
		want   bool
	}{
		{one(nil, "", 1), true},
		{one(new(intstr.FromString("25%")), "", 1), true},
		{one(new(intstr.FromInt32(0)), "", 1), false},
		{one(nil, appsv1.RecreateDeploymentStrategyType, 1), false},
		{one(nil, "", 2), false},
		{&appsv1.StatefulSet{}, false},
	} {
		if got := surges(tc.object); got != tc.want {
			t.Errorf("surges(%+v) = %t", tc.object, got)
		}
	}
}
