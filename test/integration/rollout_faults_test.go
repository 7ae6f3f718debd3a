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

// A queue of Pods that wait for a node gets the new revision beside a rollout, and holds nothing up.
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

// tried waits until Pods have an image, and returns the first of them.
func (f *fleet) tried(t *testing.T, image string) (first *corev1.Pod) {
	t.Helper()
	await.Within(t, rolloutPatience, "a Pod with "+image, func(context.Context) error {
		for _, p := range f.pods(t) {
			if testkit.WantedImage(&p, "side") == image {
				first = &p
				return nil
			}
		}
		return fmt.Errorf("the images are %v", f.images(t, "side"))
	})
	return first
}

func (f *fleet) setMinReadySeconds(t *testing.T, seconds string) {
	t.Helper()
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.SetName(f.set.GetName())
	patch(t, set, map[string]any{"metadata": map[string]any{"annotations": map[string]any{appsv1beta1.AnnotationMinReadySeconds: seconds}}})
}

// setReady writes the condition Ready of a Pod or a Node, as the node controller does.
func setReady(t *testing.T, object client.Object, status corev1.ConditionStatus) {
	t.Helper()
	body := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q,"lastTransitionTime":%q}]}}`, status, time.Now().UTC().Format(time.RFC3339))
	insist(t, func(ctx context.Context) error {
		return api.Status().Patch(ctx, object, client.RawPatch(types.StrategicMergePatchType, []byte(body)))
	})
}

// A user debugs Pods during a rollout: with a container in each Pod, which makes a new generation of
// its spec, and with a copy, which has the annotations of its Pod. Each Pod is updated once, and the
// copy is left alone.
func TestPodsThatAreDebuggedDuringARollout(t *testing.T) {
	t.Parallel()
	const pods, image = 4, "example.com/side:v2"
	f := newFleet(t, rolling, pods, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	watched := testkit.WatchDisturbed(t, api, f.namespace, client.MatchingLabels{"app": "web"})
	f.stop() // so that the first Pod stays in flight
	f.setImage(t, image)
	first := f.tried(t, image)
	debug := func(pod string, options ...string) {
		testkit.Kubectl(t, cluster, "", append([]string{"-n", f.namespace, "debug", pod, "--image=example.com/debug:v1", "--attach=false", "--profile=general"}, options...)...)
	}
	for _, p := range f.pods(t) {
		debug(p.Name, "--target=side")
	}
	debug(first.Name, "--copy-to=copy")
	f.kubelet.Start(t)
	f.awaitCounters(t, pods, pods)
	watched.Want(t, 2, pods)
	for _, p := range f.pods(t) {
		if p.Name == "copy" {
			continue
		}
		if s := statusOfContainer(t, &p, "side"); s.RestartCount != 1 || len(p.Spec.EphemeralContainers) != 1 {
			t.Errorf("the sidecar of %s was started again %d times, want once; %d containers debug it, want one", p.Name, s.RestartCount, len(p.Spec.EphemeralContainers))
		}
	}
	if f.pod(t, "copy").Generation > 1 { // before 1.33, Pods have none
		t.Error("the spec of the copy was written")
	}
}
