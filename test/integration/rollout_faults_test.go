package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// If running Pods cannot follow a change, their condition says so, until the SidecarSet has its
// earlier content again.
func TestTheConditionSaysThatPodsCannotFollow(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rolling, 3, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	name := f.set.GetName()
	change := func(env any) {
		f.update(t, map[string]any{"containers": []any{map[string]any{"name": "side", "image": "example.com/side:v1", "env": env}}})
	}
	condition := func(status corev1.ConditionStatus, reason string, upgradable bool) {
		t.Helper()
		await.Within(t, rolloutPatience, "the conditions", func(context.Context) error {
			for _, p := range f.pods(t) {
				if err := wantUpgradable(&p, status, reason, map[string]bool{name: upgradable}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	change([]any{map[string]any{"name": "A", "value": "1"}})
	condition(corev1.ConditionFalse, "UpdateImmutableField", false)
	f.awaitCounters(t, 0, 3)
	change(nil)
	condition(corev1.ConditionTrue, "AllSidecarsetUpgradable", true)
	f.awaitCounters(t, 3, 3)
	for _, p := range f.pods(t) {
		if p.Generation > 1 { // before 1.33, Pods have none
			t.Errorf("the spec of %s was written", p.Name)
		}
	}
}

// Two SidecarSets in one Pod, and another writer of each Pod, 25 times a second.
func TestUpdatesKeepChangesOfOtherWriters(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rolling, 4, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	second := *f
	second.set = createSidecarSet(t, f.namespace, strings.NewReplacer("name: side", "name: mesh", "side:v1", "mesh:v1", "app: web", "both: web").Replace(rolling))
	awaitInjected(t, second.set, f.namespace, "app=web", "both=web")
	for i := range 4 {
		create(t, pod(f.namespace, fmt.Sprintf("both-%d", i), "app=web", "both=web"))
	}
	f.awaitCounters(t, 8, 8)
	second.awaitCounters(t, 4, 4)

	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	counts := map[string]int{}
	writing.Go(func() {
		pause := time.Tick(10 * time.Millisecond)
		for i := 1; ctx.Err() == nil; i++ {
			<-pause
			name := fmt.Sprintf("both-%d", i%4)
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name}}
			body := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/count":"%d"}}}`, i)
			if api.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(body))) == nil {
				counts[name] = i
			}
		}
	})
	f.setImage(t, "example.com/side:v2")
	second.update(t, map[string]any{"containers": []any{map[string]any{"name": "mesh", "image": "example.com/mesh:v2"}}})
	f.awaitCounters(t, 8, 8)
	second.awaitCounters(t, 4, 4)
	stop()
	writing.Wait()
	said := map[string]bool{f.set.GetName(): true, second.set.GetName(): true}
	for i := range 4 {
		name := fmt.Sprintf("both-%d", i)
		p := f.pod(t, name)
		if side, mesh := testkit.WantedImage(p, "side"), testkit.WantedImage(p, "mesh"); side != "example.com/side:v2" || mesh != "example.com/mesh:v2" {
			t.Errorf("%s has the images %s and %s", name, side, mesh)
		}
		if got, want := p.Annotations["example.com/count"], fmt.Sprint(counts[name]); got < want && len(got) <= len(want) {
			t.Errorf("%s: the other writer's last value was %s, and %s is left", name, want, got)
		}
		await.Within(t, rolloutPatience, "the condition of "+name, func(context.Context) error {
			return wantUpgradable(f.pod(t, name), corev1.ConditionTrue, "AllSidecarsetUpgradable", said)
		})
	}
}

// The operator continues a rollout that OpenKruise began. Updated Pods stay as they are, and
// Pods in flight count against the budget.
func TestARolloutOfOpenKruiseIsAdopted(t *testing.T) {
	t.Parallel()
	f := newFleet(t, strings.Replace(rolling, "type: RollingUpdate", "type: RollingUpdate, paused: true", 1), 6, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	f.setImage(t, "example.com/side:v2")
	set := testkit.AwaitObserved(t, api, f.set.GetName())
	for _, name := range []string{"p-00", "p-01", "p-02"} { // these updates are complete
		f.updateAsOpenKruise(t, name, set)
	}
	f.awaitCounters(t, 3, 6)
	f.stop()
	f.updateAsOpenKruise(t, "p-03", set) // this Pod is in flight
	before := map[string]corev1.Pod{}
	for _, p := range f.pods(t) {
		before[p.Name] = p
	}
	f.update(t, map[string]any{"updateStrategy": map[string]any{"paused": false, "maxUnavailable": 2}})
	f.awaitImages(t, "side", map[string]int{"example.com/side:v1": 1, "example.com/side:v2": 5})
	watched := testkit.WatchDisturbed(t, api, f.namespace)
	f.kubelet.Start(t)
	f.awaitCounters(t, 6, 6)
	if most, _ := watched.Count(); most > 2 {
		t.Errorf("%d Pods were disturbed at the same time", most)
	}
	for _, name := range []string{"p-00", "p-01", "p-02"} {
		was, is := before[name], f.pod(t, name) // the operator may write a condition
		if diff := cmp.Diff(was.Annotations, is.Annotations); was.Generation != is.Generation || diff != "" {
			t.Errorf("%s was done, and has been written: generation %d, and now %d; annotations (-before +now):\n%s", name, was.Generation, is.Generation, diff)
		}
	}
	for _, p := range f.pods(t) {
		if s := statusOfContainer(t, &p, "side"); s.RestartCount != 1 {
			t.Errorf("the sidecar of %s was started again %d times", p.Name, s.RestartCount)
		}
	}
}

// updateAsOpenKruise writes what OpenKruise 1.9 writes when it updates a Pod in place.
func (f *fleet) updateAsOpenKruise(t *testing.T, name string, set *appsv1beta1.SidecarSet) {
	t.Helper()
	await.Within(t, rolloutPatience, "an update by OpenKruise", func(ctx context.Context) error {
		p := f.pod(t, name)
		now := time.Now().UTC().Format(time.RFC3339)
		hash := set.Annotations[appsv1beta1.AnnotationHash]
		state := fmt.Sprintf(`{"%s":{"revision":"%s","updateTimestamp":"%s","lastContainerStatuses":{"side":{"imageID":"%s"}}}}`,
			set.Name, hash, now, statusOfContainer(t, p, "side").ImageID)
		p.Annotations[appsv1beta1.AnnotationInPlaceUpdateState] = state
		p.Annotations[appsv1beta1.AnnotationHash] = fmt.Sprintf(`{"%s":{"updateTimestamp":"%s","hash":"%s","sidecarSetName":"%[1]s","sidecarList":["side"],"controllerRevision":"%[4]s"}}`,
			set.Name, now, hash, set.Status.LatestRevision)
		for i := range p.Spec.Containers {
			if c := &p.Spec.Containers[i]; c.Name == "side" {
				c.Image = "example.com/side:v2"
			}
		}
		return api.Update(ctx, p)
	})
}

// The kubelet evicts each Pod that runs a bad image, in one event: it is Ready, and then Failed. Then no
// other Pod gets the image for ten minutes.
func TestAnImageWhosePodsAreEvicted(t *testing.T) {
	t.Parallel()
	const image = "example.com/side:evicted"
	f := newFleet(t, rolling, 6, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.SetName(f.set.GetName())
	patch(t, set, map[string]any{"metadata": map[string]any{"annotations": map[string]any{appsv1beta1.AnnotationMinReadySeconds: "30"}}})
	f.update(t, map[string]any{"updateStrategy": map[string]any{"maxUnavailable": 1}})
	f.setImage(t, image)
	evicted := map[types.UID]bool{}
	var end time.Time
	for give := time.Now().Add(rolloutPatience); time.Now().Before(give) && (end.IsZero() || time.Now().Before(end)); <-time.After(500 * time.Millisecond) {
		for _, p := range f.pods(t) {
			if s := statusOfContainer(t, &p, "side"); s.Image == image && p.Status.Phase == corev1.PodRunning && !evicted[p.UID] {
				evicted[p.UID], end = true, time.Now().Add(15*time.Second)
				failed := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed","reason":"Evicted"}}`))
				if err := api.Status().Patch(t.Context(), &p, failed); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(evicted) != 1 {
		t.Errorf("%d Pods got the image and were evicted, want one", len(evicted))
	}
	f.await(t, "the evicted Pod", func(set *appsv1beta1.SidecarSet) error {
		if set.Status.DisappearedPods != 1 || set.Status.DisappearedUntil == nil {
			return fmt.Errorf("%d Pods disappeared until %v", set.Status.DisappearedPods, set.Status.DisappearedUntil)
		}
		return nil
	})
}

// A queue of Pods that wait for a node gets the new content beside a rollout, and holds nothing up.
func TestAQueueOfPodsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	const queue = 200
	f := newFleet(t, rolling, 4, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	waiting := make([]*corev1.Pod, queue)
	for i := range waiting {
		waiting[i] = pod(f.namespace, fmt.Sprintf("waiting-%03d", i), "app=web")
		waiting[i].Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/queue"}}
	}
	if err := testkit.Each(waiting, 16, func(p *corev1.Pod) error { return api.Create(t.Context(), p) }); err != nil {
		t.Fatal(err)
	}
	f.setImage(t, "example.com/side:v2")
	f.await(t, "the rollout", func(set *appsv1beta1.SidecarSet) error {
		if s := set.Status; s.UpdatedPods != queue+4 || s.UpdatedReadyPods != 4 {
			return fmt.Errorf("%+v of %d Pods", testkit.CountersOf(set), queue+4)
		}
		return nil
	})
}
