package tally_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
	"github.com/sidecarset/operator/test/rounds"
)

func newTally() *tally.Tally {
	return tally.New([]string{excludedNamespace})
}

// After any events in any order, the counters and the plan are those of a new count, and Changed
// reports the SidecarSets whose State differs.
func TestTallyEqualsARecount(t *testing.T) {
	for seed := range uint64(rounds.Of(100, 10)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			w, tl := newWorld(t), newTally()
			before := map[string]tally.State{}
			tl.SetNodes(maps.Clone(w.nodes))
			for step := range 300 {
				what := w.randomStep(r, tl)
				checkReports(t, tl, before)
				for name, set := range w.sets {
					got, want := tl.State(name), w.recount(set)
					if !got.Known || got.Counters != want.Counters || got.Program != w.programs[name] {
						t.Fatalf("step %d, %s: SidecarSet %s counts %+v, a recount %+v", step, what, name, got.Counters, want)
					}
					if diff := cmp.Diff(want.revisions, got.Revisions); diff != "" {
						t.Fatalf("step %d, %s: revisions of SidecarSet %s (-recount +got):\n%s", step, what, name, diff)
					}
					if diff := cmp.Diff(want.uninjected, got.Uninjected); diff != "" {
						t.Fatalf("step %d, %s: uninjected Pods of SidecarSet %s (-recount +got):\n%s", step, what, name, diff)
					}
				}
				if got, want := tl.Pods(), w.activePods(); got != want {
					t.Fatalf("step %d, %s: %d Pods are tracked, want %d", step, what, got, want)
				}
				if step%10 == 0 { // it costs as much as all Pods
					checkAnew(t, w, tl, what)
				}
			}
		})
	}
}

// checkReports demands that Changed names each SidecarSet whose State differs from before.
func checkReports(t *testing.T, tl *tally.Tally, before map[string]tally.State) {
	t.Helper()
	named := map[string]bool{}
	tl.Changed(func(name string) { named[name] = true })
	for i := range 4 {
		name := fmt.Sprint("s", i)
		now := tl.State(name)
		now.Program, now.Content = nil, nil
		if last := before[name]; !named[name] && !reflect.DeepEqual(now, last) {
			t.Fatalf("SidecarSet %s is not reported, before %+v, now %+v", name, last, now)
		}
		before[name] = now
	}
}

// checkAnew compares a Tally with one that has seen only the present objects: what is known of the
// Pods and what is to be done with them.
func checkAnew(t *testing.T, w *world, tl *tally.Tally, what string) {
	t.Helper()
	fresh := newTally()
	fresh.SetNodes(maps.Clone(w.nodes))
	fresh.SetSnapshot(w.catalog())
	fresh.Replace(w.records())
	if tl.Uncounted() != fresh.Uncounted() {
		t.Fatalf("%s: %d Pods are uncounted, anew %d", what, tl.Uncounted(), fresh.Uncounted())
	}
	for name, p := range w.programs {
		current := tally.Current{Program: p, Revision: p.Revision(), Since: time.Unix(1, 0), Status: rollout.Begun}
		got, ok := tl.SetCurrent(name, current)
		want, _ := fresh.SetCurrent(name, current)
		if !ok || got.Numbers != want.Numbers {
			t.Fatalf("%s: SidecarSet %s is known: %v, its plan has %+v, anew %+v", what, name, ok, got.Numbers, want.Numbers)
		}
		if diff := cmp.Diff(want.Blocked.List(), got.Blocked.List()); diff != "" {
			t.Fatalf("%s: blocked Pods of SidecarSet %s (-anew +got):\n%s", what, name, diff)
		}
	}
}

func (w *world) activePods() (n int) {
	for _, pod := range w.pods {
		if podstate.FromPod(pod).Active {
			n++
		}
	}
	return n
}

// randomStep changes the world and reports to the Tally what a watch would.
func (w *world) randomStep(r *rand.Rand, tl *tally.Tally) string {
	switch n := r.IntN(23); {
	case n == 22:
		return w.changeNode(r, tl)
	case n < 5:
		pod := w.randomPod(r)
		key := pod.Namespace + "/" + pod.Name
		if old, ok := w.pods[key]; ok && r.IntN(2) == 0 {
			tl.Delete(podstate.FromPod(old))
		}
		w.pods[key] = pod
		tl.Set(podstate.FromPod(pod))
		return "create Pod " + key
	case n < 11:
		return w.changePod(r, tl)
	case n < 13:
		return w.deletePod(r, tl)
	case n < 14:
		for range r.IntN(4) {
			pod := w.randomPod(r)
			w.pods[pod.Namespace+"/"+pod.Name] = pod
		}
		maps.DeleteFunc(w.pods, func(string, *corev1.Pod) bool { return r.IntN(8) == 0 })
		tl.Replace(w.records())
		return "replace all Pods"
	case n < 15:
		name := pick(r, "a", "b", "new")
		w.namespaces[name] = labels.Set{"kubernetes.io/metadata.name": name}
		if r.IntN(2) == 0 {
			w.namespaces[name]["team"] = pick(r, "x", "y")
		}
		tl.SetSnapshot(w.catalog())
		return "relabel Namespace " + name
	case n < 17:
		name := fmt.Sprint("s", r.IntN(4))
		delete(w.sets, name)
		delete(w.programs, name)
		tl.SetSnapshot(w.catalog())
		return "delete SidecarSet " + name
	case n < 19:
		return w.editSet(r, tl)
	}
	set := w.randomSet(r)
	w.put(set)
	tl.SetSnapshot(w.catalog())
	return "put SidecarSet " + set.Name
}

// changeNode changes a Node, or deletes it.
func (w *world) changeNode(r *rand.Rand, tl *tally.Tally) string {
	name := podstate.MakeName(pick(r, "n0", "n1"))
	node := pick(r, nil, &inplace.Node{}, &inplace.Node{NotReady: true}, &inplace.Node{TooOld: true})
	if tl.SetNode(name, node); node == nil {
		delete(w.nodes, name)
	} else {
		w.nodes[name] = *node
	}
	return "change a Node"
}

func (w *world) anyPod(r *rand.Rand) (string, *corev1.Pod) {
	keys := slices.Sorted(maps.Keys(w.pods))
	if len(keys) == 0 {
		return "", nil
	}
	key := pick(r, keys...)
	return key, w.pods[key]
}

func (w *world) changePod(r *rand.Rand, tl *tally.Tally) string {
	key, pod := w.anyPod(r)
	if pod == nil {
		return "nothing"
	}
	w.randomChange(r, pod)
	tl.Set(podstate.FromPod(pod))
	return "change Pod " + key
}

func (w *world) deletePod(r *rand.Rand, tl *tally.Tally) string {
	key, pod := w.anyPod(r)
	if pod == nil {
		return "nothing"
	}
	delete(w.pods, key)
	tl.Delete(podstate.FromPod(pod))
	return "delete Pod " + key
}

// editSet changes one thing about a SidecarSet. Some changes concern neither the selection of
// Pods nor the comparison with them.
func (w *world) editSet(r *rand.Rand, tl *tally.Tally) string {
	names := slices.Sorted(maps.Keys(w.sets))
	if len(names) == 0 {
		return "nothing"
	}
	set, other := w.sets[pick(r, names...)].DeepCopy(), w.randomSet(r)
	set.Generation++
	what := r.IntN(7)
	switch what {
	case 0:
		set.Spec.InjectionStrategy.Paused = !set.Spec.InjectionStrategy.Paused
	case 1:
		set.Status.MatchedPods++
	case 2:
		set.Annotations[appsv1beta1.AnnotationHash] = pick(r, "h1", "h2")
	case 3:
		set.Annotations[appsv1beta1.AnnotationCanary] = pick(r, "true", "false")
		set.Annotations[appsv1beta1.AnnotationBase] = pick(r, names...)
	case 4:
		for i := range set.Spec.Containers {
			set.Spec.Containers[i].UpgradeStrategy.HotUpgradeEmptyImage = pick(r, "", "empty:1", "hot:1")
		}
	case 5:
		set.Spec.Containers, set.Spec.InitContainers = other.Spec.Containers, other.Spec.InitContainers
	case 6:
		set.Spec.NamespaceSelector = other.Spec.NamespaceSelector
	}
	w.put(set)
	tl.SetSnapshot(w.catalog())
	return fmt.Sprintf("edit %d of SidecarSet %s", what, set.Name)
}

func TestDeleteSparesAPodThatTookTheName(t *testing.T) {
	w, tl := newWorld(t), newTally()
	set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "s0"}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Containers = []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: "log"}}}
	w.put(set)
	tl.SetSnapshot(w.catalog())
	old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "old", Labels: map[string]string{"app": "web"}}}
	young := old.DeepCopy()
	young.UID = "young"
	tl.Set(podstate.FromPod(old))
	tl.Set(podstate.FromPod(young))
	tl.Delete(podstate.FromPod(old))
	if diff := cmp.Diff(tally.Counters{Uninjected: 1}, tl.State("s0").Counters); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

func TestTallyWithoutASnapshotCountsNothing(t *testing.T) {
	tl := newTally()
	tl.Set(&podstate.Record{Namespace: podstate.MakeNamespace("a"), Name: "p", Active: true})
	if known := tl.State("s0").Known; known || tl.Pods() != 1 {
		t.Errorf("known is %v, %d Pods; want false, 1", known, tl.Pods())
	}
	tl.SetSnapshot(match.Build(nil, nil))
	tl.Changed(func(name string) { t.Errorf("%s is reported", name) })
}
