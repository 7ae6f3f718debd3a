package tracker_test

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
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tracker"
)

// crowd is a Tracker of many Pods, all of which have the same SidecarSets.
type crowd struct {
	*tracker.Tracker
	sidecarSets []*inject.Compiled
	now         time.Time
	pods        int
	hashes      string // annotation of the Pods
}

// newCrowd has Pods that have all of that many SidecarSets. Of the first ones, the revision is outdated.
func newCrowd(b *testing.B, pods, sets, outdated int) *crowd {
	b.Helper()
	c := &crowd{Tracker: tracker.New(nil), now: time.Unix(1_900_000_000, 0), pods: pods}
	var hashes podstate.Hashes
	for i := range sets {
		name := fmt.Sprintf("set-%02d", i)
		set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{appsv1beta1.AnnotationHash: strings.Repeat("bcdf2456", 8)}}}
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"inject": "yes"}}
		set.Spec.Containers = []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: "log", Image: image("log")}}}
		compiled := compiled(b, set)
		hashes = hashes.With(podstate.HashRecord{SidecarSetName: name, Hash: compiled.Hash, SidecarList: []string{"log"}, ControllerRevision: name + "-1"})
		if compiled.HashWithoutImage = compiled.Hash; i < outdated {
			compiled.Hash = strings.Repeat("zzzz2456", 8)
		}
		c.sidecarSets = append(c.sidecarSets, compiled)
	}
	c.hashes = hashes.String()
	c.SetTime(c.now)
	c.SetSnapshot(match.Build(c.sidecarSets, map[string]labels.Set{}))
	for i := range pods {
		c.Set(c.summary(b, i, true))
	}
	return c
}

// summary is of the i-th Pod: an app, two injected sidecars and a native one, with the fields of
// admission, the scheduler and the kubelet that a summary has. It has the memory profile that it has
// after decoding an event.
func (c *crowd) summary(b *testing.B, i int, ready bool) *podstate.Summary {
	b.Helper()
	deployment := i / 20
	app := fmt.Sprintf("shop-%d", deployment)
	var names []string
	for _, p := range c.sidecarSets {
		names = append(names, p.Name())
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: fmt.Sprintf("team-%d", deployment%50),
		Name:      fmt.Sprintf("%s-7c9d8f6b5%d-x%06d", app, deployment%9, i),
		UID:       types.UID(fmt.Sprintf("3f0c1d2e-4b5a-4c6d-8e7f-%012d", i)),
		Labels: map[string]string{
			"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app, "app.kubernetes.io/part-of": "shop",
			"pod-template-hash": fmt.Sprintf("7c9d8f6b5%d", deployment%9), "team": fmt.Sprint(deployment % 50), "inject": "yes",
		},
		Annotations: map[string]string{
			appsv1beta1.AnnotationInjectedList: strings.Join(names, ","), appsv1beta1.AnnotationHash: c.hashes, appsv1beta1.AnnotationHashWithoutImage: c.hashes,
		},
	}}
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: types.UID(fmt.Sprintf("5a1b2c3d-4e5f-4a6b-9c8d-%012d", deployment)), Controller: new(true)}}
	pod.Spec.NodeName = nodeName(i % nodesOfCrowd)
	pod.Spec.InitContainers = []corev1.Container{{Name: "proxy-init", Image: image("proxy-init")}, {Name: "vault", Image: image("vault")}}
	pod.Status.Phase = corev1.PodRunning
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: is, LastTransitionTime: metav1.NewTime(c.now)}}
	for _, name := range []string{app, "log", "mesh"} {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: image(name)})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: name, Image: image(name), Ready: true,
			ImageID:     "registry.example.com/shop/" + name + "@sha256:" + strings.Repeat("0123456789abcdef", 4),
			ContainerID: "containerd://" + strings.Repeat("fedcba9876543210", 4),
		})
	}
	return podstate.FromPod(decoded(b, pod))
}

func image(name string) string { return "registry.example.com/shop/" + name + ":1.2.3" }

const nodesOfCrowd = 5000

func nodeName(i int) string { return fmt.Sprint("node-", i) }

// pass is one pass over the i-th SidecarSet.
func (c *crowd) pass(b *testing.B, i int) tracker.Pass {
	b.Helper()
	p, ok := c.Pass(tracker.Current{Compiled: c.sidecarSets[i], Revision: c.sidecarSets[i].Revision(), Since: c.now.Add(-time.Hour), Status: rollout.Begun})
	if !ok || int(p.Matched) != c.pods {
		b.Fatalf("%v, %+v", ok, p.Counters)
	}
	return p
}

// BenchmarkASecondOfTheLeader is what the tracker does in a second: 100,000 Pods have 20 SidecarSets,
// 100 Pods change, and each SidecarSet has passes as the debounce of package controllers spaces them: one a
// second, or ten in a rollout; but their passes take a fortieth of the time at most. In "rollout" one
// SidecarSet has a rollout, and in "rollouts" each.
func BenchmarkASecondOfTheLeader(b *testing.B) {
	const pods, sets, events = 100_000, 20, 100
	for name, outdated := range map[string]int{"quiet": 0, "rollout": 1, "rollouts": sets} {
		b.Run(name, func(b *testing.B) {
			c := newCrowd(b, pods, sets, outdated)
			changed := make([]*podstate.Summary, events)
			for i := range changed {
				changed[i] = c.summary(b, i*997%pods, i%2 == 0)
			}
			next := make([]time.Time, sets)
			start := cpu(b)
			for b.Loop() {
				c.now = c.now.Add(time.Second)
				c.SetTime(c.now)
				for _, r := range changed {
					c.Set(r)
				}
				for i := range next {
					interval := time.Second
					if i < outdated {
						interval /= 10
					}
					for at := later(next[i], c.now); at.Before(c.now.Add(time.Second)); at = next[i] {
						begin := time.Now()
						c.pass(b, i)
						next[i] = at.Add(max(interval, 40*time.Since(begin)))
					}
				}
			}
			b.ReportMetric(float64(cpu(b)-start)/float64(b.N)/1e9, "cores")
		})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
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

// BenchmarkAPass is one pass over the Pods of a SidecarSet, while all are current and while all are
// outdated.
func BenchmarkAPass(b *testing.B) {
	for _, outdated := range []int{0, 1} {
		b.Run(fmt.Sprintf("pods=10000/outdated=%d", outdated), func(b *testing.B) {
			c := newCrowd(b, 10_000, 1, outdated)
			start := cpu(b)
			for b.Loop() {
				c.pass(b, 0)
			}
			b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkAZoneFails has 1,500 of 5,000 Nodes turn NotReady, on which a third of 100,000 Pods runs.
// Then their Pods turn NotReady.
func BenchmarkAZoneFails(b *testing.B) {
	c := newCrowd(b, 100_000, 2, 0)
	states := map[podstate.Name]inplace.Node{}
	for i := range nodesOfCrowd {
		states[podstate.MakeName(nodeName(i))] = inplace.Node{}
	}
	c.SetNodes(states)
	start := cpu(b)
	for b.Loop() {
		for _, notReady := range []bool{true, false} {
			for i := range 1500 {
				c.SetNode(podstate.MakeName(nodeName(i)), &inplace.Node{NotReady: notReady})
			}
		}
	}
	b.ReportMetric(float64(cpu(b)-start)/float64(b.N)/2, "cpu-ns/zone")
}

// BenchmarkMemory reports what one Pod with two SidecarSets takes, its summary and the tracker together.
func BenchmarkMemory(b *testing.B) {
	const pods = 20_000
	for b.Loop() {
		before := heap()
		c := newCrowd(b, pods, 2, 0)
		b.ReportMetric(float64(heap()-before)/pods, "B/pod")
		runtime.KeepAlive(c)
	}
}
