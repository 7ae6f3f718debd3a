package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

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

// The node of the first updated Pod is switched off after the Pod was Ready. The Pod keeps its place,
// so no second node is tried. When the node is back, the rollout goes on.
func TestANodeThatIsSwitchedOffUnderTheTriedPod(t *testing.T) {
	t.Parallel()
	const pods, image = 4, "example.com/side:v2"
	f := newFleet(t, strings.Replace(rolling, "maxUnavailable: 2", "maxUnavailable: 1", 1), 0, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	for i := range pods {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", f.namespace, i)}}
		create(t, node)
		setReady(t, node, corev1.ConditionTrue)
		p := pod(f.namespace, fmt.Sprintf("p-%02d", i), "app=web")
		p.Spec.NodeName = node.Name
		create(t, p)
	}
	f.awaitCounters(t, pods, pods)
	f.stop() // so that the first Pod is not available before it has to be Ready for long
	f.setImage(t, image)
	first := f.tried(t, image)
	f.setMinReadySeconds(t, "300")
	f.kubelet.Start(t)
	await.Within(t, rolloutPatience, "the new image in "+first.Name, func(context.Context) error {
		if s := statusOfContainer(t, f.pod(t, first.Name), "side"); s.Image != image {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first.Spec.NodeName}}
	setReady(t, node, corev1.ConditionUnknown)
	setReady(t, f.pod(t, first.Name), corev1.ConditionFalse)
	f.setMinReadySeconds(t, "0") // now only this Pod holds the others
	f.await(t, "the Pod that the rollout waits for", func(set *appsv1beta1.SidecarSet) error {
		c := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionProgressing)
		if set.Status.ReadyPods != pods-1 || c == nil || !strings.Contains(c.Message, "The rollout waits for "+f.namespace+"/"+first.Name) {
			return fmt.Errorf("%+v", set.Status)
		}
		return nil
	})
	<-time.After(5 * time.Second) // at most a second passes between two decisions
	if got := f.images(t, "side")[image]; got != 1 {
		t.Errorf("%d Pods got the image, want one", got)
	}
	setReady(t, node, corev1.ConditionTrue)
	setReady(t, f.pod(t, first.Name), corev1.ConditionTrue)
	f.awaitCounters(t, pods, pods)
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
