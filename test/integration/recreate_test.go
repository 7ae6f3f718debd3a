package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// TestRecreation lets Kubernetes' controllers replace the Pods that the leader evicts.
func TestRecreation(t *testing.T) {
	operator.NeedReplicas(t)
	t.Parallel()
	r := newPlane(t, 41, stand.Options{}, deploy.Recreate)
	together(t, map[string]func(*testing.T){
		"Outdated": r.testOutdated, "Uninjected": r.testUninjected, "Never": r.testNever, "Budget": r.testDisruptionBudget,
		"Pinned": r.testPinned, "Quota": r.testQuota, "NeverReady": r.testNeverReady, "NodeTooOld": r.testNodeTooOld, "Stuck": r.testStuck,
		"ScaledToZero": r.testScaledToZero, "RollsItselfOut": r.testRollsItselfOut, "Scaled": r.testScaled,
	})
	t.Run("Leader", r.testLeader)
	t.Run("LeaderAndABrokenApp", r.testLeaderAndABrokenApp)
}

const recreated = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate, maxUnavailable: 2}
containers: [{name: side, image: "example.com/side:v1"}]
`

func uids(pods []corev1.Pod) (all []types.UID) {
	for i := range pods {
		all = append(all, pods[i].UID)
	}
	slices.Sort(all)
	return all
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

// change gives the sidecar another variable, which no running Pod can follow.
func (a *app) change(t *testing.T, value string) {
	t.Helper()
	a.changeTo(t, "example.com/side:v1", value)
}

func (a *app) changeTo(t *testing.T, image, value string) {
	t.Helper()
	a.merge(t, map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
		"name": "side", "image": image, "env": []any{map[string]any{"name": "V", "value": value}},
	}}}})
}

func (a *app) setMode(t *testing.T, mode string) {
	t.Helper()
	a.merge(t, map[string]any{"metadata": map[string]any{"annotations": map[string]any{appsv1beta1.AnnotationRecreate: mode}}})
}

// awaitRecreated waits until the status says that a number of Pods are updated and ready.
func (a *app) awaitRecreated(t *testing.T, pods int) {
	t.Helper()
	a.await(t, "the recreation", func(s appsv1beta1.SidecarSetStatus) error {
		if int(s.MatchedPods) != pods || int(s.UpdatedReadyPods) != pods || s.UninjectedPods != 0 {
			return fmt.Errorf("%+v, want %d updated and ready Pods", s, pods)
		}
		return nil
	})
}

// recreationPatience allows for an eviction that fails after the API server has counted it. The
// PodDisruptionBudget then allows no eviction for two minutes, and the leader may wait as
// long again before it retries the refused Pods.
const recreationPatience = 6 * time.Minute

// await waits for a status of the present generation.
func (a *app) await(t *testing.T, what string, check func(appsv1beta1.SidecarSetStatus) error) {
	t.Helper()
	await.Within(t, recreationPatience, what, func(ctx context.Context) error {
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

// readyPods counts the ready Pods of a namespace, from a watch of its own.
type readyPods struct {
	mu    sync.Mutex
	ready map[types.UID]bool
	least int
	lows  []string // what made the number so low
}

func (r *plane) watchReady(t *testing.T, namespace string) *readyPods {
	t.Helper()
	list := &corev1.PodList{}
	if err := r.api.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	w := &readyPods{ready: map[types.UID]bool{}}
	for i := range list.Items {
		w.see(&list.Items[i], false)
	}
	w.least, w.lows = len(w.ready), nil
	events, err := r.api.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for event := range events.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok {
				w.see(p, event.Type == watch.Deleted)
			}
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(events.Stop)
	return w
}

func (w *readyPods) see(p *corev1.Pod, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ready := isReady(p)
	if gone || p.DeletionTimestamp != nil || !ready {
		delete(w.ready, p.UID)
	} else {
		w.ready[p.UID] = true
	}
	if len(w.ready) < w.least {
		w.least = len(w.ready)
		w.lows = append(w.lows, fmt.Sprintf("%s: gone %v, deleted %v, conditions %+v", p.Name, gone, p.DeletionTimestamp != nil, p.Status.Conditions))
	}
}

// wantAtLeast checks that never fewer Pods were ready, and that at times not all were.
func (w *readyPods) wantAtLeast(t *testing.T, least, all int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.least < least || w.least == all {
		t.Errorf("%d Pods were ready at times, want %d or more of %d, and fewer than all:\n%s", w.least, least, all, strings.Join(w.lows, "\n"))
	}
}

// Pods that cannot be updated in place are replaced, two at a time. Pods without a controller
// that replaces them, and Pods of a Job, remain, and the status names them.
func (r *plane) testOutdated(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", recreated)
	r.deploy(t, namespace, 6)
	bare := pod(namespace, "bare", "app=web")
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "job"}}
	job.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"stand.test/run-for": "1h"}}, Spec: pod("", "").Spec}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	for _, object := range []client.Object{bare, job} {
		if err := r.api.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	a.awaitRecreated(t, 8)
	watched, before := r.watchReady(t, namespace), r.list(t, namespace)
	a.change(t, "2")
	var blocked []appsv1beta1.SidecarSetPodGroup
	a.await(t, "all but two Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if blocked = s.BlockedPods; s.UpdatedReadyPods != 6 || s.MatchedPods != 8 || len(blocked) != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	watched.wantAtLeast(t, 6, 8)
	if got := blocked[0].Reason + " " + blocked[1].Reason; got != "ControlledByJob NoController" || blocked[1].First[0] != namespace+"/bare" {
		t.Errorf("blocked Pods are %+v", blocked)
	}
	await.Within(t, rolloutPatience, "the end of the evicted Pods, and of no other", func(context.Context) error {
		after := uids(r.list(t, namespace))
		for i := range before {
			p := &before[i]
			if owner := metav1.GetControllerOf(p); slices.Contains(after, p.UID) != (owner == nil || owner.Kind == "Job") {
				return fmt.Errorf("Pod %s of %v is still there: %v", p.Name, owner, slices.Contains(after, p.UID))
			}
		}
		return nil
	})
}

// Pods that are older than the SidecarSet are replaced by Pods that have its sidecars.
func (r *plane) testUninjected(t *testing.T) {
	namespace := r.namespace(t)
	r.deploy(t, namespace, 3)
	watched := r.watchReady(t, namespace)
	a := r.inject(t, namespace, "Uninjected", recreated)
	a.awaitRecreated(t, 3)
	watched.wantAtLeast(t, 1, 3)
}

func (r *plane) testNever(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Never", recreated)
	r.deploy(t, namespace, 2)
	before := uids(r.list(t, namespace))
	a.change(t, "2")
	a.await(t, "blocked Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if len(s.BlockedPods) != 1 || s.BlockedPods[0].Pods != 2 {
			return fmt.Errorf("%+v", s.BlockedPods)
		}
		return nil
	})
	if after := uids(r.list(t, namespace)); !slices.Equal(before, after) {
		t.Errorf("the Pods were %v, and are %v", before, after)
	}
	a.setMode(t, "Outdated")
	a.awaitRecreated(t, 2)
}

// A PodDisruptionBudget that allows one Pod at a time is stricter than maxUnavailable.
func (r *plane) testDisruptionBudget(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", recreated)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	budget.Spec.MaxUnavailable, budget.Spec.Selector = new(intstr.FromInt32(1)), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	if err := r.api.Create(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	r.deploy(t, namespace, 4)
	await.Within(t, rolloutPatience, "the PodDisruptionBudget", func(ctx context.Context) error {
		if err := r.api.Get(ctx, client.ObjectKeyFromObject(budget), budget); err != nil {
			return err
		}
		if budget.Status.DisruptionsAllowed != 1 {
			return fmt.Errorf("%+v", budget.Status)
		}
		return nil
	})
	watched := r.watchReady(t, namespace)
	a.change(t, "2")
	a.awaitRecreated(t, 4)
	watched.wantAtLeast(t, 3, 4)
}

// If a replacement would not get the current content, the Pod is not evicted.
func (r *plane) testPinned(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "All", recreated)
	r.deploy(t, namespace, 2)
	a.awaitRecreated(t, 2)
	set, err := testkit.Get(t.Context(), r.api, a.set.GetName())
	if err != nil {
		t.Fatal(err)
	}
	a.merge(t, map[string]any{"spec": map[string]any{"injectionStrategy": map[string]any{"revision": map[string]any{"revisionName": set.Status.LatestRevision}}}})
	before := uids(r.list(t, namespace))
	a.change(t, "2")
	a.await(t, "the reason", func(s appsv1beta1.SidecarSetStatus) error {
		if len(s.BlockedPods) != 1 || s.BlockedPods[0].Reason != "ReplacementOutdated" || s.BlockedPods[0].Pods != 2 {
			return fmt.Errorf("%+v", s.BlockedPods)
		}
		return nil
	})
	if after := uids(r.list(t, namespace)); !slices.Equal(before, after) {
		t.Errorf("the Pods were %v, and are %v", before, after)
	}
}

// If replacements cannot be created, the leader evicts three Pods at most, in two minutes too.
// When they can, all Pods are ready again, and ten minutes later the leader goes on.
func (r *plane) testQuota(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", recreated)
	r.deploy(t, namespace, 6)
	a.awaitRecreated(t, 6)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}}
	quota.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
	if err := r.api.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitPodsForbidden(t, r.api, namespace)
	watched := r.watchReady(t, namespace)
	a.change(t, "2")
	a.await(t, "an eviction", func(s appsv1beta1.SidecarSetStatus) error {
		if s.MatchedPods == 6 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	<-time.After(2 * time.Minute)
	watched.wantAtLeast(t, 3, 6)
	if err := r.api.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	r.wakeControllers(t, namespace)
	a.await(t, "six ready Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if s.ReadyPods != 6 || s.UpdatedReadyPods < 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if testkit.Scaled(false, true) {
		<-time.After(10 * time.Minute) // as long as three evictions without a new Pod stop others
		a.awaitRecreated(t, 6)
	}
}

// wakeControllers makes the controllers of a namespace's ReplicaSets try at once what they
// would try again minutes later.
func (r *plane) wakeControllers(t *testing.T, namespace string) {
	t.Helper()
	list := &appsv1.ReplicaSetList{}
	if err := r.api.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if err := r.api.Patch(t.Context(), &list.Items[i], client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"stand.test/wake":"up"}}}`))); err != nil {
			t.Fatal(err)
		}
	}
}

// The leader is killed while evicted Pods are not replaced yet. The next leader keeps the
// budget, and completes the recreation.
func (r *plane) testLeader(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", recreated)
	r.deploy(t, namespace, 6)
	a.awaitRecreated(t, 6)
	watched := r.watchReady(t, namespace)
	next := r.startNext(t)
	a.change(t, "2")
	a.await(t, "the first replacements", func(s appsv1beta1.SidecarSetStatus) error {
		if s.UpdatedPods == 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	r.killLeader(t, next)
	a.awaitRecreated(t, 6)
	watched.wantAtLeast(t, 4, 6)
}

// The default installation has no right to evict Pods. The status says what is missing.
func TestEvictingTakesARightOfItsOwn(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	owned := pod(namespace, "owned", "app=web")
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "none", Controller: new(true)}}
	create(t, owned)
	set := newSidecarSet(t, namespace, recreated)
	set.SetAnnotations(map[string]string{appsv1beta1.AnnotationRecreate: "Uninjected", appsv1beta1.AnnotationMinReadySeconds: "0"})
	create(t, set)
	t.Cleanup(func() { deleteSidecarSet(t, set) })
	await.Within(t, rolloutPatience, "the refusal", func(ctx context.Context) error { // a new leader waits half a minute
		set, err := testkit.Get(ctx, api, set.GetName())
		if err != nil {
			return err
		}
		blocked := set.Status.BlockedPods
		if len(blocked) != 1 || blocked[0].Reason != "EvictionRefused" || !strings.Contains(blocked[0].Message, "config/recreate") {
			return fmt.Errorf("blocked Pods are %+v", blocked)
		}
		return nil
	})
	if e := awaitEvent(t, set, corev1.EventTypeWarning, appsv1beta1.ReasonPodRefused); !strings.Contains(e.Message, "refused to evict 1 Pods") || !strings.Contains(e.Message, "config/recreate") {
		t.Errorf("the Event says %q", e.Message)
	}
}
