package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

// awaitRollout waits until Progressing and Degraded have these reasons for the
// SidecarSet's present generation, and returns the status.
func (f *fleet) awaitRollout(t *testing.T, progressing, degraded string) appsv1beta1.SidecarSetStatus {
	t.Helper()
	var found appsv1beta1.SidecarSetStatus
	f.await(t, "the rollout to be "+progressing, func(set *appsv1beta1.SidecarSet) error {
		found = set.Status
		for kind, want := range map[string]string{appsv1beta1.ConditionProgressing: progressing, appsv1beta1.ConditionDegraded: degraded} {
			if c := meta.FindStatusCondition(set.Status.Conditions, kind); c == nil || c.Reason != want || c.ObservedGeneration != set.Generation {
				return fmt.Errorf("%s of generation %d is %+v, want %s", kind, set.Generation, c, want)
			}
		}
		return nil
	})
	return found
}

func (f *fleet) setStrategy(t *testing.T, strategy map[string]any) {
	t.Helper()
	f.update(t, map[string]any{"updateStrategy": strategy})
}

// If an image cannot be pulled, as many Pods become unavailable as maxUnavailable allows. The status
// says by which rule the others wait, and for which Pod. A minute later it says that the sidecars do
// not run. A good image repairs the Pods.
func TestStatusTellsThatARolloutWaits(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rolling, 4, &testkit.Kubelet{
		Pull:          50 * time.Millisecond,
		Missing:       func(image string) bool { return strings.HasSuffix(image, ":missing") },
		ShowsNotReady: func(*corev1.Pod) bool { return true },
	})
	f.setImage(t, "example.com/side:missing")
	f.awaitRollout(t, "RollingOut", "AsExpected")
	awaitEvent(t, f.set, corev1.EventTypeNormal, appsv1beta1.ReasonRollingOut)
	status := f.awaitRollout(t, "RollingOut", "SidecarsNotRunning")
	if c := meta.FindStatusCondition(status.Conditions, appsv1beta1.ConditionProgressing); !strings.Contains(c.Message, "SlowStart: ") || !strings.Contains(c.Message, f.namespace+"/p-0") || !strings.Contains(c.Message, "ImagePull") {
		t.Errorf("Progressing says %q, want the rule, a Pod and the kubelet's reason", c.Message)
	}
	if e := awaitEvent(t, f.set, corev1.EventTypeWarning, appsv1beta1.ReasonSidecarsNotRunning); !strings.Contains(e.Message, "ImagePull") {
		t.Errorf("the Event says %q", e.Message)
	}
	f.setImage(t, "example.com/side:v3")
	f.awaitRollout(t, "Complete", "AsExpected")
}

// Pods that cannot follow are counted and named with a reason: those whose sidecar
// changed in more than its image, and those whose update the API server refuses.
func TestStatusNamesPodsThatCannotFollow(t *testing.T) {
	t.Parallel()
	f := newFleet(t, rolling, 4, &testkit.Kubelet{})
	f.update(t, map[string]any{"containers": []any{map[string]any{
		"name": "side", "image": "example.com/side:v2", "env": []any{map[string]any{"name": "A", "value": "b"}},
	}}})
	want := []appsv1beta1.SidecarSetPodGroup{{Reason: "ImmutableFieldChanged", Pods: 4, First: f.names(0, 1, 2)}}
	if diff := cmp.Diff(want, f.awaitRollout(t, "PodsBlocked", "PodsBlocked").BlockedPods); diff != "" {
		t.Errorf("blocked Pods (-want +got):\n%s", diff)
	}
	e := awaitEvent(t, f.set, corev1.EventTypeNormal, appsv1beta1.ReasonNotUpgradable)
	if want := "SidecarSet in-place update detected 4 not upgradable pod(s) in this round, will skip them."; e.Message != want {
		t.Errorf("the Event says %q, want %q", e.Message, want)
	}

	f.update(t, map[string]any{"containers": []any{map[string]any{"name": "side", "image": "example.com/side:v1", "env": nil}}})
	f.awaitRollout(t, "Complete", "AsExpected")
	relabel(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.namespace}}, map[string]any{"pod-security.kubernetes.io/enforce": "restricted"})
	testkit.AwaitPodsForbidden(t, api, f.namespace)
	f.setImage(t, "example.com/side:v3")
	refused := f.awaitRollout(t, "PodsBlocked", "PodsBlocked").BlockedPods
	if len(refused) != 1 || refused[0].Reason != "WriteRejected" || !strings.Contains(refused[0].Message, "violates PodSecurity") {
		t.Errorf("blocked Pods are %+v, want them refused by Pod Security", refused)
	}
	if e := awaitEvent(t, f.set, corev1.EventTypeWarning, appsv1beta1.ReasonPodUpdateRejected); !strings.Contains(e.Message, "violates PodSecurity") {
		t.Errorf("the Event says %q", e.Message)
	}
}

func (f *fleet) names(numbers ...int) []string {
	names := make([]string, len(numbers))
	for i, n := range numbers {
		names[i] = fmt.Sprintf("%s/p-%02d", f.namespace, n)
	}
	return names
}

// Pods without sidecars are named with the reason.
func TestStatusSaysWhyPodsAreNotInjected(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	create(t, pod(namespace, "older", "app=web"))
	set := createSidecarSet(t, namespace, strings.Replace(oneSidecar, "containers:", "injectionStrategy: {paused: true}\ncontainers:", 1))
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Uninjected: 1})
	<-time.After(1100 * time.Millisecond) // API servers store times in whole seconds
	create(t, pod(namespace, "missed", "app=web"))
	faked := pod(namespace, "faked", "app=web")
	faked.Annotations = map[string]string{appsv1beta1.AnnotationInjectedList: set.GetName()}
	create(t, faked)
	pause(t, set, false)
	awaitInjected(t, set, namespace, "app=web")
	removed := pod(namespace, "removed", "app=web")
	create(t, removed)
	patch(t, removed, map[string]any{"metadata": map[string]any{"annotations": map[string]any{appsv1beta1.AnnotationInjectedList: nil}}})
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Uninjected: 4})
	got, err := testkit.Get(t.Context(), api, set.GetName())
	if err != nil {
		t.Fatal(err)
	}
	one := func(reason, pod string) appsv1beta1.SidecarSetPodGroup {
		return appsv1beta1.SidecarSetPodGroup{Reason: reason, Pods: 1, First: []string{client.ObjectKey{Namespace: namespace, Name: pod}.String()}}
	}
	want := []appsv1beta1.SidecarSetPodGroup{
		one(appsv1beta1.ReasonMissedAtCreation, "missed"), one(appsv1beta1.ReasonOlderThanSidecarSet, "older"),
		one(appsv1beta1.ReasonRecordRemoved, "removed"), one(appsv1beta1.ReasonSidecarsMissing, "faked"),
	}
	if diff := cmp.Diff(want, got.Status.Uninjected); diff != "" {
		t.Errorf("uninjected Pods (-want +got):\n%s", diff)
	}
}
