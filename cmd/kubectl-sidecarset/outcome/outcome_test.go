package outcome

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inplace"
)

const stored = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: agent, annotations: {sidecarset.io/min-ready-seconds: "0"}}
spec:
  selector: {matchLabels: {app: web}}
  containers:
  - {name: agent, image: "agent:v1", resources: {requests: {cpu: 10m}}}
`

func worldOf(t *testing.T, manifest string) (*clusterview.View, map[string]any) {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
		t.Fatal(err)
	}
	object, err := clusterview.Stored(object)
	if err != nil {
		t.Fatal(err)
	}
	return clusterview.New(clusterview.Parts{SidecarSets: []map[string]any{object}, Namespaces: map[string]labels.Set{"shop": {}}, Now: time.Unix(1_767_225_600, 0)}), object
}

// inputOf is a change of the stored SidecarSet, with that many running Pods.
func inputOf(t *testing.T, change string, pods int) Input {
	t.Helper()
	in := Input{Resizes: true, Node: func(string) (inplace.Node, error) { return inplace.Node{}, nil }}
	in.Before, in.Old = worldOf(t, stored)
	in.After, in.New = worldOf(t, change)
	for i := range pods {
		running := injected(t, in.Before, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "app", Image: "app:v1"}}},
		})
		running.CreationTimestamp = metav1.NewTime(in.Before.Now.Add(-time.Hour))
		running.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: running.CreationTimestamp}}}
		for _, c := range running.Spec.Containers {
			running.Status.ContainerStatuses = append(running.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: c.Name, Image: c.Image, ImageID: "x@sha256:1", ContainerID: "x://" + c.Name, Ready: true, Started: new(true), Resources: &c.Resources,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: running.CreationTimestamp}},
			})
		}
		in.Pods = append(in.Pods, running)
	}
	return in
}

// injected is a Pod as the webhook injects it.
func injected(t *testing.T, w *clusterview.View, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		t.Fatal(err)
	}
	decision, err := w.Decide(t.Context(), pod.Namespace, object)
	if err != nil || decision.Refused != nil {
		t.Fatalf("injecting a Pod: %v, %v", err, decision.Refused)
	}
	out := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fixtures.Apply(t, decision.Plan, object), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAnOldAPIServerResizesNoPod(t *testing.T) {
	t.Parallel()
	in := inputOf(t, replaced(t, "cpu: 10m", "cpu: 20m"), 2)
	in.Resizes = false
	out, err := Of(t.Context(), in)
	if err != nil || len(out.Pods) != 1 || out.Pods[0].Outcome != Recreate || out.Pods[0].Reason != string(inplace.ResizeUnsupported) {
		t.Fatalf("%+v, %v", out, err)
	}
}

// A Pod that lost its record is one that only a new Pod can replace.
func TestAPodWithoutAKnownRevisionHasToBeRecreated(t *testing.T) {
	t.Parallel()
	in := inputOf(t, replaced(t, "agent:v1", "agent:v2"), 1)
	delete(in.Pods[0].Annotations, "kruise.io/sidecarset-hash")
	delete(in.Pods[0].Annotations, "kruise.io/sidecarset-hash-without-image")
	out, err := Of(t.Context(), in)
	if err != nil || len(out.Pods) != 1 || out.Pods[0].Outcome != Recreate || out.Pods[0].Reason != string(inplace.RevisionUnknown) {
		t.Fatalf("%+v, %v", out, err)
	}
}

func TestDownPodsAreNoPartOfTheBudget(t *testing.T) {
	t.Parallel()
	in := inputOf(t, replaced(t, "agent:v1", "agent:v2")+"  updateStrategy: {maxUnavailable: 0}\n", 3)
	in.Pods[1].Status.Conditions[0].Status = corev1.ConditionFalse
	out, err := Of(t.Context(), in)
	if err != nil || len(out.Pods) != 2 || out.Pods[0].Outcome != InPlace || out.Pods[0].First[0] != "shop/web-001" || out.Pods[1].Reason != "Budget" {
		t.Fatalf("%+v, %v", out, err)
	}
}

func replaced(t *testing.T, old, now string) string {
	t.Helper()
	text := strings.ReplaceAll(stored, old, now)
	if text == stored {
		t.Fatalf("the manifest has no %q", old)
	}
	return text
}
