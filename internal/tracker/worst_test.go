package tracker_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/test/rounds"
)

// mostBytesPerPod bounds the memory of one Pod on the leader, whatever a user writes
// into the Pod.
const mostBytesPerPod = 4096

// mostAllocations bounds the work of one event: a few for each of 256 entries.
const mostAllocations = 1000

// worstPods are the most expensive known Pods that an API server stores (1.5 MiB, 256 KiB of
// annotations). No string of one Pod occurs in another.
var worstPods = map[string]func(pod *corev1.Pod, serial string){
	"a list as long as is read": func(pod *corev1.Pod, serial string) {
		pod.Annotations[appsv1beta1.AnnotationInjectedList] = repeat(63<<10, func(i int) string { return fmt.Sprint(serial, strings.Repeat("x", 253-20), i, ",") })
	},
	"long names, hashes and revisions": func(pod *corev1.Pod, serial string) {
		var list, hashes strings.Builder
		for i := range 60 {
			name := fmt.Sprint(serial, strings.Repeat("n", 220), i)
			fmt.Fprintf(&list, "%s,", name)
			fmt.Fprintf(&hashes, `,"%s":{"hash":"%s%s%d","controllerRevision":"%[1]s-%[3]s"}`, name, strings.Repeat("h", 200), serial, i)
		}
		pod.Annotations[appsv1beta1.AnnotationInjectedList] = list.String()
		pod.Annotations[appsv1beta1.AnnotationHash] = "{" + hashes.String()[1:] + "}"
	},
	"a megabyte of labels": func(pod *corev1.Pod, serial string) {
		for i := range 20_000 {
			pod.Labels[fmt.Sprint(serial, i)] = strings.Repeat("v", 40)
		}
	},
	"many containers": func(pod *corev1.Pod, serial string) {
		pod.Annotations[appsv1beta1.AnnotationInjectedList] = "log"
		addContainers(pod, 5000, func(i int) (string, string) { return fmt.Sprint(serial, "-", i), fmt.Sprint(serial, "/", i, ":v1") })
	},
	"a long record of the operator's own": func(pod *corev1.Pod, serial string) {
		var list, sets strings.Builder
		for i := range 25 {
			name := fmt.Sprint(serial, i)
			fmt.Fprintf(&list, "%s,", name)
			fmt.Fprintf(&sets, `,"%s":{"generation":1,"at":"2026-01-02T03:04:05Z","wasReady":true,"containers":{"x":{"id":""}`, name)
			for j := range 4 {
				fmt.Fprintf(&sets, `,"c%d":{"id":"%s"}`, j, strings.Repeat("i", 250)+serial)
			}
			sets.WriteString("}}")
		}
		addContainers(pod, 4, func(i int) (string, string) { return fmt.Sprint("c", i), fmt.Sprint(serial, i) })
		pod.Annotations[appsv1beta1.AnnotationInjectedList] = list.String()
		pod.Annotations[appsv1beta1.AnnotationInPlace] = `{"v":1,"uid":"` + string(pod.UID) + `","sets":{` + sets.String()[1:] + "}}"
	},
	"values of 64 KiB": func(pod *corev1.Pod, serial string) {
		pod.Annotations[appsv1beta1.AnnotationInjectedList] = "log" + strings.Repeat(" ", 60<<10)
		addContainers(pod, 40, func(i int) (string, string) { return fmt.Sprint("c", i), fmt.Sprint(serial, i) })
		long := "{" + strings.Repeat(" ", 60<<10) + `"log":"` + serial + `"}`
		pod.Annotations[appsv1beta1.AnnotationHash] = long
		pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer] = long
		pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState] = "{" + strings.Repeat(" ", 60<<10) + "}"
		pod.Annotations[appsv1beta1.AnnotationInPlace] = `{"v":1,"uid":"` + string(pod.UID) + `","sets":{"log":{"generation":1,"at":"2026-01-02T03:04:05Z"}}` + strings.Repeat(" ", 60<<10) + "}"
	},
}

func repeat(size int, piece func(int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		b.WriteString(piece(i))
	}
	return b.String()
}

func addContainers(pod *corev1.Pod, n int, of func(int) (name, image string)) {
	for i := range n {
		name, image := of(i)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: image})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, ImageID: "id"})
	}
}

func worstPod(serial int, fill func(*corev1.Pod, string)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: fmt.Sprintf("%0253d", serial), UID: types.UID(fmt.Sprintf("3f0c1d2e-4b5a-4c6d-8e7f-%012d", serial)),
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{},
	}}
	pod.Status.Phase = corev1.PodRunning
	fill(pod, fmt.Sprintf("%05x", serial))
	return pod
}

func TestNoPodTakesMoreThanItsBound(t *testing.T) {
	rounds.NeedExactMemory(t)
	const pods = 20
	for name, fill := range worstPods {
		t.Run(name, func(t *testing.T) {
			set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "log", Annotations: map[string]string{appsv1beta1.AnnotationHash: "h1"}}}
			set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			set.Spec.Containers = []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: "log"}}}
			tr := newTracker()
			tr.SetSnapshot(match.Build([]*inject.Compiled{compiled(t, set)}, map[string]labels.Set{}))
			before := heap()
			for i := range pods {
				tr.Set(podstate.FromPod(decoded(t, worstPod(i, fill))))
			}
			perPod := (heap() - before) / pods
			runtime.KeepAlive(tr)
			t.Logf("%d bytes for each Pod", perPod)
			if perPod > mostBytesPerPod {
				t.Errorf("a Pod takes %d bytes, want %d at most", perPod, mostBytesPerPod)
			}
			if tr.Pods() != pods {
				t.Errorf("%d Pods are tracked, want %d", tr.Pods(), pods)
			}
			pod := worstPod(0, fill)
			if n := testing.AllocsPerRun(1, func() { podstate.FromPod(pod) }); n > mostAllocations {
				t.Errorf("an event makes %v allocations, want %d at most", n, mostAllocations)
			}
		})
	}
}

// decoded is the Pod with the memory profile that it has after decoding an event.
func decoded(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	wire, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	fresh := &corev1.Pod{}
	if err := fresh.Unmarshal(wire); err != nil {
		t.Fatal(err)
	}
	return fresh
}

// heap is the size of what is in use.
func heap() int64 {
	for range 3 { // interned strings that nothing refers to go one cycle later
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
