package tracker_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tracker"
	"github.com/sidecarset/operator/test/rounds"
)

func newTracker() *tracker.Tracker {
	return tracker.New([]string{excludedNamespace})
}

// After any events in any order, a Pass equals the Pass of a Tracker that has seen only the present objects,
// and Changed reports the SidecarSets whose Pass differs from the one before.
func TestATrackerEqualsAFreshOne(t *testing.T) {
	for seed := range uint64(rounds.Of(40, 5)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			w, tr := newWorld(t), newTracker()
			before := map[string]seen{}
			tr.SetNodes(maps.Clone(w.nodes))
			for step := range 300 {
				what := w.randomStep(r, tr)
				fresh := newTracker()
				fresh.SetNodes(maps.Clone(w.nodes))
				fresh.SetSnapshot(w.store())
				fresh.Replace(w.records())
				if tr.Pods() != fresh.Pods() || tr.Uncounted() != fresh.Uncounted() {
					t.Fatalf("step %d, %s: %d Pods are tracked, %d of them uncounted; want %d and %d", step, what, tr.Pods(), tr.Uncounted(), fresh.Pods(), fresh.Uncounted())
				}
				changed := map[string]bool{}
				tr.Changed(func(name string, _ bool) { changed[name] = true })
				for name, p := range w.sidecarSets {
					got, want := w.pass(tr, p), w.pass(fresh, p)
					if diff := cmp.Diff(want, got); diff != "" {
						t.Fatalf("step %d, %s: SidecarSet %s (-fresh +got):\n%s", step, what, name, diff)
					}
					if !changed[name] && !cmp.Equal(before[name], got) {
						t.Fatalf("step %d, %s: SidecarSet %s is not reported, before %+v, now %+v", step, what, name, before[name], got)
					}
					before[name] = got
				}
			}
		})
	}
}

// seen is what can be compared of a Pass.
type seen struct {
	tracker.Counters
	Uninjected, Blocked []appsv1beta1.SidecarSetPodGroup
	Revisions           map[podstate.Name]tracker.RevisionCount
	Differs, Undecided  bool
	Numbers             rollout.Numbers
}

// pass is a Pass that writes nothing: the SidecarSets are paused.
func (w *world) pass(tr *tracker.Tracker, p *inject.Compiled) seen {
	w.t.Helper()
	pass, ok := tr.Pass(tracker.Current{Compiled: p, Revision: p.Revision(), Since: time.Unix(1, 0), Status: rollout.Begun})
	if !ok || (pass.Plan == nil) != pass.Undecided || len(pass.Write) > 0 {
		w.t.Fatalf("SidecarSet %s: %v, %+v", p.Name(), ok, pass)
	}
	s := seen{pass.Counters, pass.Uninjected, nil, pass.Revisions, pass.Differs, pass.Undecided, rollout.Numbers{}}
	if pass.Plan != nil {
		s.Blocked, s.Numbers = pass.Plan.Blocked.List(), pass.Plan.Numbers
	}
	return s
}

// randomStep changes the world and reports to the Tracker what a watch would.
func (w *world) randomStep(r *rand.Rand, tr *tracker.Tracker) string {
	switch n := r.IntN(23); {
	case n == 22:
		return w.changeNode(r, tr)
	case n < 5:
		pod := w.randomPod(r)
		key := pod.Namespace + "/" + pod.Name
		old, deleted := w.pods[key], r.IntN(3) // an earlier Pod of the name: unseen, before or after
		if old != nil && deleted == 1 {
			tr.Delete(podstate.FromPod(old))
		}
		w.pods[key] = pod
		tr.Set(podstate.FromPod(pod))
		if old != nil && deleted == 2 {
			tr.Delete(podstate.FromPod(old))
		}
		return "create Pod " + key
	case n < 11:
		return w.changePod(r, tr)
	case n < 13:
		return w.deletePod(r, tr)
	case n < 14:
		for range r.IntN(4) {
			pod := w.randomPod(r)
			w.pods[pod.Namespace+"/"+pod.Name] = pod
		}
		maps.DeleteFunc(w.pods, func(string, *corev1.Pod) bool { return r.IntN(8) == 0 })
		tr.Replace(w.records())
		return "replace all Pods"
	case n < 15:
		name := pick(r, "a", "b", "new")
		w.namespaces[name] = labels.Set{"kubernetes.io/metadata.name": name}
		if r.IntN(2) == 0 {
			w.namespaces[name]["team"] = pick(r, "x", "y")
		}
		tr.SetSnapshot(w.store())
		return "relabel Namespace " + name
	case n < 17:
		name := fmt.Sprint("s", r.IntN(4))
		delete(w.sets, name)
		delete(w.sidecarSets, name)
		tr.SetSnapshot(w.store())
		return "delete SidecarSet " + name
	case n < 19:
		return w.editSet(r, tr)
	}
	set := w.randomSet(r)
	w.put(set)
	tr.SetSnapshot(w.store())
	return "put SidecarSet " + set.Name
}

// changeNode changes a Node, or deletes it.
func (w *world) changeNode(r *rand.Rand, tr *tracker.Tracker) string {
	name := podstate.MakeName(pick(r, "n0", "n1"))
	node := pick(r, nil, &inplace.Node{}, &inplace.Node{NotReady: true}, &inplace.Node{TooOld: true})
	if tr.SetNode(name, node); node == nil {
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

func (w *world) changePod(r *rand.Rand, tr *tracker.Tracker) string {
	key, pod := w.anyPod(r)
	if pod == nil {
		return "nothing"
	}
	w.randomChange(r, pod)
	tr.Set(podstate.FromPod(pod))
	return "change Pod " + key
}

func (w *world) deletePod(r *rand.Rand, tr *tracker.Tracker) string {
	key, pod := w.anyPod(r)
	if pod == nil {
		return "nothing"
	}
	delete(w.pods, key)
	tr.Delete(podstate.FromPod(pod))
	return "delete Pod " + key
}

// editSet changes one thing about a SidecarSet. Some changes concern neither the selection of
// Pods nor the comparison with them.
func (w *world) editSet(r *rand.Rand, tr *tracker.Tracker) string {
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
	tr.SetSnapshot(w.store())
	return fmt.Sprintf("edit %d of SidecarSet %s", what, set.Name)
}

func TestATrackerWithoutASnapshotKnowsNoSidecarSet(t *testing.T) {
	w, tr := newWorld(t), newTracker()
	tr.Set(&podstate.Summary{Namespace: podstate.MakeNamespace("a"), Name: "p", Active: true})
	if _, ok := tr.Pass(tracker.Current{Compiled: compiled(t, w.randomSet(rand.New(rand.NewPCG(1, 1))))}); ok || tr.Pods() != 1 {
		t.Errorf("known is %v, %d Pods; want false, 1", ok, tr.Pods())
	}
	tr.SetSnapshot(match.Build(nil, nil))
	tr.Changed(func(name string, _ bool) { t.Errorf("%s is reported", name) })
}
