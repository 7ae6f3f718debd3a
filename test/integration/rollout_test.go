package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

const rolling = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate, maxUnavailable: 2}
containers: [{name: side, image: "example.com/side:v1"}]
`

// rolloutPatience is the longest time for changes of many Pods while other tests run.
const rolloutPatience = 3 * time.Minute

// insist calls write until it succeeds. It tries again if the API server does not get an answer
// of the operator in time, or if an overloaded replica asks to try again.
func insist(t *testing.T, write func(context.Context) error) {
	t.Helper()
	await.Within(t, rolloutPatience, "a write", func(ctx context.Context) error {
		err := write(ctx)
		if err != nil && !apierrors.IsInternalError(err) && !strings.Contains(err.Error(), "try again") {
			t.Fatal(err)
		}
		return err
	})
}

// fleet is the Pods of a namespace, run by a test kubelet.
type fleet struct {
	namespace string
	set       *unstructured.Unstructured
	kubelet   *testkit.Kubelet
	stop      func() // the kubelet
}

// newFleet creates a SidecarSet and that many Pods with it, and waits until they run.
func newFleet(t *testing.T, spec string, pods int, kubelet *testkit.Kubelet) *fleet {
	t.Helper()
	f := &fleet{namespace: testkit.Namespace(t, api, nil), kubelet: kubelet}
	f.set = createSidecarSet(t, f.namespace, spec)
	awaitInjected(t, f.set, f.namespace, "app=web")
	f.kubelet.Client, f.kubelet.Namespace = api, f.namespace
	f.stop = f.kubelet.Start(t)
	for i := range pods {
		p := pod(f.namespace, fmt.Sprintf("p-%02d", i), "app=web", fmt.Sprintf("number=%d", i))
		p.Spec.TerminationGracePeriodSeconds = new(int64(0))
		create(t, p)
	}
	f.awaitCounters(t, pods, pods)
	return f
}

// awaitCounters waits until a number of the matched Pods are updated and ready.
func (f *fleet) awaitCounters(t *testing.T, updated, matched int) {
	t.Helper()
	f.await(t, "the rollout", func(set *appsv1beta1.SidecarSet) error {
		s := set.Status
		if int(s.MatchedPods) != matched || int(s.UpdatedPods) != updated || int(s.UpdatedReadyPods) != updated || s.ObservedGeneration != set.Generation {
			return fmt.Errorf("generation %d of %d, %+v, want %d of %d Pods updated and ready", s.ObservedGeneration, set.Generation, testkit.CountersOf(set), updated, matched)
		}
		return nil
	})
}

// await waits until check returns nil for the stored SidecarSet.
func (f *fleet) await(t *testing.T, what string, check func(*appsv1beta1.SidecarSet) error) {
	t.Helper()
	await.Within(t, rolloutPatience, what+" of SidecarSet "+f.set.GetName(), func(ctx context.Context) error {
		set, err := testkit.Get(ctx, api, f.set.GetName())
		if err != nil {
			return err
		}
		return check(set)
	})
}

// update changes the SidecarSet's spec by a merge patch.
func (f *fleet) update(t *testing.T, spec map[string]any) {
	t.Helper()
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.SetName(f.set.GetName())
	patch(t, set, map[string]any{"spec": spec})
}

func (f *fleet) setStrategy(t *testing.T, strategy map[string]any) {
	t.Helper()
	f.update(t, map[string]any{"updateStrategy": strategy})
}

// setImage gives the sidecar another image.
func (f *fleet) setImage(t *testing.T, image string) {
	t.Helper()
	f.update(t, map[string]any{"containers": []any{map[string]any{"name": "side", "image": image}}})
}

func (f *fleet) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	if err := api.List(t.Context(), list, client.InNamespace(f.namespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (f *fleet) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: name}, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// images counts the Pods by the image in the spec of their container.
func (f *fleet) images(t *testing.T, container string) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, p := range f.pods(t) {
		count[testkit.WantedImage(&p, container)]++
	}
	return count
}

func (f *fleet) awaitImages(t *testing.T, container string, want map[string]int) {
	t.Helper()
	await.Within(t, rolloutPatience, "the images of "+container, func(context.Context) error {
		if got := f.images(t, container); !maps.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

// patch applies a merge patch.
func patch(t *testing.T, object client.Object, change any) {
	t.Helper()
	body, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	insist(t, func(ctx context.Context) error {
		return api.Patch(ctx, object, client.RawPatch(types.MergePatchType, body))
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

func TestAnImageIsRolledThroughRunningPods(t *testing.T) {
	t.Parallel()
	const pods = 20
	f := newFleet(t, rolling, pods, &testkit.Kubelet{
		Pull:          50 * time.Millisecond,
		ShowsNotReady: func(p *corev1.Pod) bool { return p.Labels["number"] < "5" }, // the others stay Ready throughout
	})
	before := map[string]*corev1.Pod{}
	for _, p := range f.pods(t) {
		before[p.Name] = &p
	}
	watched := testkit.WatchDisturbed(t, api, f.namespace)
	f.setImage(t, "example.com/side:v2")
	f.awaitCounters(t, pods, pods)
	watched.Want(t, 2, pods)

	set, err := testkit.Get(t.Context(), api, f.set.GetName())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.pods(t) {
		wantRolled(t, before[p.Name], &p, set)
	}
}

// wantRolled checks what a user and OpenKruise see of an update in place.
func wantRolled(t *testing.T, before, p *corev1.Pod, set *appsv1beta1.SidecarSet) {
	t.Helper()
	if image := testkit.WantedImage(p, "side"); image != "example.com/side:v2" {
		t.Errorf("%s: the sidecar's image is %s", p.Name, image)
	}
	for _, s := range p.Status.ContainerStatuses {
		if want := map[string]int32{"app": 0, "side": 1}[s.Name]; s.RestartCount != want {
			t.Errorf("%s: container %s was started again %d times, want %d", p.Name, s.Name, s.RestartCount, want)
		}
	}
	if got, want := podstate.ParseHashes(p.Annotations[appsv1beta1.AnnotationHash]).Hash(set.Name), set.Annotations[appsv1beta1.AnnotationHash]; got != want {
		t.Errorf("%s records the hash %s, want %s", p.Name, got, want)
	}
	await.Within(t, rolloutPatience, "the condition of "+p.Name, func(ctx context.Context) error {
		if err := api.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		return wantUpgradable(p, corev1.ConditionTrue, "AllSidecarsetUpgradable", map[string]bool{set.Name: true})
	})
	if p.Generation != 0 && before.Generation+1 != p.Generation { // before 1.33, Pods have none
		t.Errorf("%s: the spec was written %d times, want once", p.Name, p.Generation-before.Generation)
	}
}

func wantUpgradable(p *corev1.Pod, status corev1.ConditionStatus, reason string, said map[string]bool) error {
	message, err := json.Marshal(said)
	if err != nil {
		return err
	}
	for _, c := range p.Status.Conditions {
		if c.Type == appsv1beta1.PodConditionUpgradable && c.Status == status && c.Reason == reason && c.Message == string(message) {
			return nil
		}
	}
	return fmt.Errorf("the conditions of %s are %+v, want %s %s %s", p.Name, p.Status.Conditions, status, reason, message)
}

func statusOfContainer(t *testing.T, p *corev1.Pod, name string) corev1.ContainerStatus {
	t.Helper()
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("Pod %s reports nothing of container %s", p.Name, name)
	return corev1.ContainerStatus{}
}

// An image hurts its Pods after they were Ready: the kubelet evicts them, or they turn not Ready. Then as
// many Pods have it as had it before the first was hurt, and no other Pod gets it.
func TestAnImageThatHurtsItsPods(t *testing.T) {
	t.Parallel()
	evicted := func(t *testing.T, p *corev1.Pod) {
		if err := api.Status().Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed","reason":"Evicted"}}`))); err != nil {
			t.Fatal(err)
		}
	}
	notReady := func(t *testing.T, p *corev1.Pod) { setReady(t, p, corev1.ConditionFalse) }
	for name, tc := range map[string]struct {
		hurt           func(*testing.T, *corev1.Pod)
		after          time.Duration // the start of the image
		maxUnavailable any
		minReady       string
		most           int
	}{
		"evicted at once": {evicted, 0, 1, "30", 1},
		"not Ready later": {notReady, 22 * time.Second, "100%", "15", 2}, // two after 15 s, four after 30
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const image = "example.com/side:hurts"
			f := newFleet(t, rolling, 6, &testkit.Kubelet{Pull: 20 * time.Millisecond})
			f.setMinReadySeconds(t, tc.minReady)
			f.setStrategy(t, map[string]any{"maxUnavailable": tc.maxUnavailable})
			f.setImage(t, image)
			began, hurt := map[types.UID]time.Time{}, map[types.UID]bool{}
			var end time.Time
			for give := time.Now().Add(rolloutPatience); time.Now().Before(give) && (end.IsZero() || time.Now().Before(end)); <-time.After(500 * time.Millisecond) {
				for _, p := range f.pods(t) {
					if s := statusOfContainer(t, &p, "side"); s.Image != image || p.Status.Phase != corev1.PodRunning || hurt[p.UID] {
						continue
					}
					if began[p.UID].IsZero() {
						began[p.UID] = time.Now()
					}
					if time.Since(began[p.UID]) >= tc.after {
						tc.hurt(t, &p)
						hurt[p.UID] = true
						if end.IsZero() {
							end = time.Now().Add(15 * time.Second)
						}
					}
				}
			}
			if len(began) == 0 || len(hurt) == 0 || len(began) > tc.most {
				t.Errorf("%d Pods ran the image, and %d were hurt, want %d at most", len(began), len(hurt), tc.most)
			}
			f.await(t, "what the others wait for", func(set *appsv1beta1.SidecarSet) error {
				c := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionProgressing)
				if c == nil || c.Reason != appsv1beta1.ReasonRollingOut || !strings.Contains(c.Message, "waits for "+f.namespace+"/p-") && set.Status.DisappearedPods == 0 {
					return fmt.Errorf("%d Pods disappeared; %+v", set.Status.DisappearedPods, set.Status.Conditions)
				}
				return nil
			})
		})
	}
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
