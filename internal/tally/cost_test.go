package tally_test

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
	"github.com/sidecarset/operator/test/rounds"
)

// bytesPerPod is the goal of memory: 100,000 Pods in 100 MiB.
const bytesPerPod = 100 << 20 / 100_000

// realisticPod is the i-th Pod of a cluster: an app, two injected sidecars and a native one,
// with the fields of admission, the scheduler and the kubelet that a record reads.
func realisticPod(i int) *corev1.Pod {
	deployment := i / 20
	app := fmt.Sprintf("shop-%d", deployment)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("team-%d", deployment%50),
		Name:      fmt.Sprintf("%s-7c9d8f6b5%d-x%06d", app, deployment%9, i),
		UID:       types.UID(fmt.Sprintf("3f0c1d2e-4b5a-4c6d-8e7f-%012d", i)),
		Labels: map[string]string{
			"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app, "app.kubernetes.io/part-of": "shop",
			"pod-template-hash": fmt.Sprintf("7c9d8f6b5%d", deployment%9), "team": fmt.Sprint(deployment % 50), "inject": "yes",
		},
		Annotations: map[string]string{
			appsv1beta1.AnnotationInjectedList:     "logging,mesh",
			appsv1beta1.AnnotationHash:             hashes(i),
			appsv1beta1.AnnotationHashWithoutImage: hashes(i),
		},
	}}
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: types.UID(fmt.Sprintf("5a1b2c3d-4e5f-4a6b-9c8d-%012d", deployment)), Controller: new(true)}}
	pod.Spec.InitContainers = []corev1.Container{container("proxy-init"), container("vault")}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, name := range []string{app, "log", "mesh"} {
		pod.Spec.Containers = append(pod.Spec.Containers, container(name))
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: name, Image: "registry.example.com/shop/" + name + ":1.2.3", Ready: true,
			ImageID:     "registry.example.com/shop/" + name + "@sha256:" + strings.Repeat("0123456789abcdef", 4),
			ContainerID: "containerd://" + strings.Repeat("fedcba9876543210", 4),
		})
	}
	return pod
}

func container(name string) corev1.Container {
	return corev1.Container{Name: name, Image: "registry.example.com/shop/" + name + ":1.2.3"}
}

func hashes(i int) string {
	var h podstate.Hashes
	for _, set := range []string{"logging", "mesh"} {
		h = h.With(podstate.HashRecord{
			UpdateTimestamp: time.Unix(1767323045+int64(i), 0), SidecarSetName: set, Hash: strings.Repeat("bcdf2456", 8),
			SidecarList: []string{"log", "mesh"}, ControllerRevision: set + "-6f84bc646f",
		})
	}
	return h.String()
}

// decoded gives the Pod the memory layout that it has after decoding an event.
func decoded(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	wire, err := pod.Marshal()
	if err != nil {
		t.Fatalf("encoding a Pod: %v", err)
	}
	fresh := &corev1.Pod{}
	if err := fresh.Unmarshal(wire); err != nil {
		t.Fatalf("decoding a Pod: %v", err)
	}
	return fresh
}

// crowd has SidecarSets "logging" and "mesh" that select all Pods, and 98 that
// select none.
func crowd(t testing.TB, pods int) *tally.Tally {
	t.Helper()
	tl := tally.New(nil)
	programs := []*inject.Program{crowdProgram(t, "logging", "yes", "log"), crowdProgram(t, "mesh", "yes", "mesh")}
	for i := range 98 {
		name := fmt.Sprint("other-", i)
		programs = append(programs, crowdProgram(t, name, name, "log"))
	}
	tl.SetSnapshot(match.Build(programs, map[string]labels.Set{}))
	for i := range pods {
		tl.Set(podstate.FromPod(decoded(t, realisticPod(i))))
	}
	return tl
}

func crowdProgram(t testing.TB, name, label, container string) *inject.Program {
	t.Helper()
	set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{appsv1beta1.AnnotationHash: strings.Repeat("bcdf2456", 8)},
	}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"inject": label}}
	set.Spec.Containers = []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: container}}}
	return program(t, set)
}

func TestMemoryPerTrackedPod(t *testing.T) {
	rounds.NeedExactMemory(t)
	const pods = 20000
	before := heap()
	tl := crowd(t, pods)
	perPod := (heap() - before) / pods
	t.Logf("%d bytes for each of %d injected Pods, records and tally together", perPod, pods)
	if n := tl.State("mesh"); n.UpdatedReady != pods {
		t.Errorf("counters = %+v, want all of %d Pods updated and ready", n.Counters, pods)
	}
	if perPod > bytesPerPod {
		t.Errorf("a tracked Pod takes %d bytes, want %d at most", perPod, bytesPerPod)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	runtime.GC() // interned strings that nothing refers to go one cycle later
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// If only the readiness of a Pod changes, the tally changes counters and allocates nothing.
func TestPodEventsAllocateNothing(t *testing.T) {
	rounds.NeedExactMemory(t)
	tl := crowd(t, 100)
	flip := flipped(t, 7)
	i := 0
	allocations := testing.AllocsPerRun(1000, func() {
		i++
		tl.Set(flip[i%2])
		tl.Changed(func(string) {})
	})
	if allocations != 0 {
		t.Errorf("an event allocates %v times", allocations)
	}
}

// flipped returns the records of one Pod when it is ready and when it is not.
func flipped(t testing.TB, i int) [2]*podstate.Record {
	pod := decoded(t, realisticPod(i))
	ready := podstate.FromPod(pod)
	pod.Status.Conditions[1].Status = corev1.ConditionFalse
	return [2]*podstate.Record{ready, podstate.FromPod(pod)}
}

// BenchmarkPodEvent counts one change of readiness, of Pods in an order that the processor's
// cache cannot predict.
func BenchmarkPodEvent(b *testing.B) {
	for _, pods := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			tl := crowd(b, pods)
			flips := make([][2]*podstate.Record, min(pods, 20000))
			for i := range flips {
				flips[i] = flipped(b, i*7919%pods)
			}
			i := 0
			b.ReportAllocs()
			start := cpu(b)
			for b.Loop() {
				i++
				tl.Set(flips[i%len(flips)][i/len(flips)%2])
				tl.Changed(func(string) {})
			}
			b.ReportMetric(float64(cpu(b)-start)/float64(i), "cpu-ns/op")
		})
	}
}

// cpu is the processor time of this process, which depends little on how busy the machine is.
func cpu(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
