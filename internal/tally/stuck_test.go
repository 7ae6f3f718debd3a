package tally_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// stuckWorld is what TestOnlyPodsStuckForTheCurrentContentAreEvicted draws from, with what is true in it.
type stuckWorld struct {
	*rebuilt
	mode    string
	content int
	pods    []*corev1.Pod
	stuck   map[types.UID]bool // for the current content
	older   *inject.Program    // nil at first
	uids    int
}

func (w *stuckWorld) change(t *testing.T) {
	t.Helper()
	image := fmt.Sprint("v", w.content)
	w.older = w.program
	w.rebuilt.change(t, w.mode, image, func(s *appsv1beta1.SidecarSet) {
		s.Spec.Containers[0].Image = image
		s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(100))
	})
	w.program.HashWithoutImage = "without"
	w.reload()
	w.current(1000)
}

// say reports that a Pod is stuck, or is not, for a Program.
func (w *stuckWorld) say(p *corev1.Pod, program *inject.Program, reason inplace.Reason) {
	take := rollout.Take{UID: p.UID, Namespace: podstate.MakeNamespace(p.Namespace), Name: p.Name}
	w.SetStuck(program, take, reason)
}

func (w *stuckWorld) step(t *testing.T, r *rand.Rand) {
	t.Helper()
	i := r.IntN(len(w.pods))
	p := w.pods[i]
	switch r.IntN(8) {
	case 0:
		w.content++
		w.stuck = map[types.UID]bool{}
		w.change(t)
	case 1:
		w.mode = pick(r, "Outdated", "All", "Uninjected", "Never")
		w.change(t)
	case 2:
		w.uids++
		next := of(carrier(i, "v1"), 500)
		next.UID = types.UID(fmt.Sprint("another-", w.uids))
		w.pods[i] = next
		set(w.Tally, next)
	case 3:
		next := p.DeepCopy()
		next.OwnerReferences = pick(r, nil, of(carrier(i, "v1"), 500).OwnerReferences)
		w.pods[i] = next
		set(w.Tally, next)
	case 4:
		if w.older != nil && w.older.Hash != w.program.Hash {
			w.say(p, w.older, inplace.NodeTooOld) // an answer that comes too late
		}
	case 5:
		w.say(p, w.program, "")
		delete(w.stuck, p.UID)
	default:
		w.say(p, w.program, pick(r, inplace.NodeTooOld, inplace.ResourcesHeldElsewhere))
		w.stuck[p.UID] = true
	}
}

// check compares the ways of all Pods with what they have to be.
func (w *stuckWorld) check(t *testing.T, seed uint64, step int) {
	t.Helper()
	inPlace := map[types.UID]bool{}
	for _, p := range w.pods {
		evicted := w.stuck[p.UID] && (w.mode == "Outdated" || w.mode == "All") && p.OwnerReferences != nil
		inPlace[p.UID] = !evicted
	}
	given := map[types.UID]bool{}
	takes := w.Due("log", 100).Updates
	for _, take := range takes {
		given[take.UID] = true
		if want := map[bool]inplace.Way{true: inplace.Images, false: inplace.Recreate}[inPlace[take.UID]]; take.Way != want {
			t.Fatalf("seed %d, step %d, mode %s: %s is given out for way %v, want %v", seed, step, w.mode, take.UID, take.Way, want)
		}
		if take.Way == inplace.Recreate {
			w.NotEvicted("log", take)
		}
	}
	for _, take := range takes {
		w.WithQueue("log", func(q *rollout.Queue) { q.Retry(take) })
	}
	for uid, in := range inPlace {
		if in && !given[uid] {
			t.Fatalf("seed %d, step %d, mode %s: %s is not given out", seed, step, w.mode, uid)
		}
	}
	if len(takes) < len(w.pods) && len(given) < 3 { // at most three are evicted before the first replacement is ready
		t.Fatalf("seed %d, step %d, mode %s: %d of %d Pods are given out", seed, step, w.mode, len(takes), len(w.pods))
	}
}

// Contents, modes and Pods change, and answers of the executor come, in any order: a Pod is
// evicted only while it is stuck for the current content, and may be evicted.
func TestOnlyPodsStuckForTheCurrentContentAreEvicted(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := &stuckWorld{rebuilt: newRebuilt(t, "Outdated"), mode: "Outdated", content: 2, stuck: map[types.UID]bool{}}
		w.change(t)
		for i := range 5 {
			w.pods = append(w.pods, of(carrier(i, "v1"), 500))
			set(w.Tally, w.pods[i])
		}
		w.lead()
		for step := range 60 {
			w.step(t, r)
			w.check(t, seed, step)
		}
	}
}
