package podstate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// largePod has that many SidecarSets and containers, and that many bytes in a label.
func largePod(sets, containers, label int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: strings.Repeat("p", 50), UID: "u", ResourceVersion: "1", Generation: 1,
		Labels: map[string]string{"app": strings.Repeat("l", label)}, Annotations: map[string]string{},
	}}
	var names []string
	var hashes, others podstate.Hashes
	for i := range sets {
		name := fmt.Sprint("set-", i)
		names = append(names, name)
		hashes = hashes.With(podstate.HashRecord{SidecarSetName: name, Hash: "v1"})
		others = others.With(podstate.HashRecord{SidecarSetName: name, Hash: "without"})
	}
	pod.Annotations[appsv1beta1.AnnotationInjectedList] = strings.Join(names, ",")
	pod.Annotations[appsv1beta1.AnnotationHash] = hashes.String()
	pod.Annotations[appsv1beta1.AnnotationHashWithoutImage] = others.String()
	for i := range containers {
		name := fmt.Sprint("c-", i)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: "v1"})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, Image: "v1", ImageID: "r@sha256:v1", Ready: true})
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return pod
}

// updated is the Pod as the API server has it after each of its SidecarSets has updated
// one container.
func updated(t *testing.T, pod *corev1.Pod, sets int) *corev1.Pod {
	t.Helper()
	pod = pod.DeepCopy()
	for i := range sets {
		set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("set-", i)}}
		set.Spec.Containers = []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: fmt.Sprint("c-", i), Image: "v2"}}}
		program := &inject.Compiled{Set: set, Selector: labels.Everything(), NamespaceSelector: labels.Everything(), Hash: "v2", HashWithoutImage: "without"}
		u, err := inplace.UpdateInPlace(inplace.UpdateInput{Pod: pod, Compiled: program, Revision: inplace.RevisionOf(program), Now: time.Unix(1000, 0)})
		if err != nil || u.Patch == nil {
			t.Fatalf("SidecarSet %d does not update the Pod: %+v, %v", i, u.Verdict, err)
		}
		var patch struct {
			Metadata struct{ Annotations map[string]string }
		}
		if err := json.Unmarshal(u.Patch, &patch); err != nil {
			t.Fatal(err)
		}
		for key, value := range patch.Metadata.Annotations {
			pod.Annotations[key] = value
		}
		pod.Spec.Containers[i].Image = "v2"
		pod.Generation++
	}
	return pod
}

// A write of the leader must not make a Pod too large to be tracked: the Pod would leave the
// budget, and the leader would disturb the next one.
func TestAnUpdateMakesNoPodTooLarge(t *testing.T) {
	for _, shape := range []struct{ sets, containers int }{{1, 1}, {10, 15}, {2, 40}, {12, 12}} {
		within, beyond := 0, 0
		for label := 0; label < podstate.MaxSummaryBytes; label += 20 {
			pod := largePod(shape.sets, shape.containers, label)
			if r := podstate.FromPod(pod); r.TooLarge { // it is not updated
				if !r.Active || r.FullName() != "a/"+pod.Name || r.Injections != nil || r.Containers != nil || r.Labels != (podstate.LabelSet{}) {
					t.Fatalf("of a Pod that is too large it keeps %+v", r)
				}
				beyond++
				continue
			}
			within++
			if podstate.FromPod(updated(t, pod, shape.sets)).TooLarge {
				t.Errorf("%d SidecarSets, %d containers, %d bytes of labels: the Pod is too large after the update", shape.sets, shape.containers, label)
			}
		}
		if within == 0 || beyond == 0 {
			t.Errorf("%+v: %d Pods are within the bound and %d are not, so that nothing is shown", shape, within, beyond)
		}
	}
}
