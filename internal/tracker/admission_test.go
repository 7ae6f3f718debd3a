package tracker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tracker"
	"github.com/sidecarset/operator/test/rounds"
)

// The tracker counts a SidecarSet as missing in a Pod exactly if admission would have injected
// it. No SidecarSet is missing in a Pod that admission has injected or leaves alone. In a Pod
// that was created without admission, every SidecarSet is missing that admission would have
// injected. Paused SidecarSets are not compared: they count the Pods that lack them.
func TestTheTrackerAgreesWithAdmission(t *testing.T) {
	injected, exempt, worlds := 0, 0, rounds.Of(400, 50)
	for seed := range uint64(worlds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 11))
			pod, snapshot := randomPod(r), randomSnapshot(t, r)
			plan, eligible := admit(t, snapshot, pod)
			past, admitted := tracked(t, snapshot, pod), tracked(t, snapshot, fixtures.Apply(t, plan, pod))
			for _, compiled := range snapshot.SidecarSets() {
				name, paused := compiled.Name(), compiled.Set.Spec.InjectionStrategy.Paused
				brings := len(compiled.Set.Spec.Containers)+len(compiled.Set.Spec.InitContainers) > 0
				taken := slices.Contains(plan.Injected, name)
				if got := admitted[name].Uninjected; got != 0 && !paused {
					t.Errorf("%s: %d of a Pod that was admitted are uninjected", name, got)
				}
				if got := admitted[name]; taken && brings && (got.Matched != 1 || got.Updated != 1) {
					t.Errorf("%s: the injected Pod counts as %+v", name, got)
				}
				if got := past[name].Uninjected; taken && brings && got != 1 || !eligible && got != 0 {
					t.Errorf("%s: past admission %d are uninjected; admission injects it: %v, eligible: %v", name, got, taken, eligible)
				}
			}
			injected += len(plan.Injected)
			if !eligible {
				exempt++
			}
		})
	}
	if injected < worlds/2 || exempt < worlds/10 {
		t.Errorf("%d injections and %d Pods that are left alone: the generator is one-sided", injected, exempt)
	}
}

// admit does what the Pod webhook does. A Pod that is left alone is not eligible.
func admit(t *testing.T, snapshot *match.Snapshot, pod map[string]any) (plan inject.Plan, eligible bool) {
	t.Helper()
	view := fixtures.View(t, pod)
	namespace := pod["metadata"].(map[string]any)["namespace"].(string)
	exclusions := inject.Exclusions{excludedNamespace}
	eligible = exclusions.Eligible(namespace, podstate.IsMirror(view.Annotations))
	if exclusions.Namespace(namespace) {
		return inject.Plan{}, eligible
	}
	selection, err := snapshot.Select(namespace, view.Labels, func(name string) (labels.Set, error) {
		return labels.Set{corev1.LabelMetadataName: name}, nil
	})
	if err != nil {
		t.Fatalf("Select: %v", err)
	}
	in := inject.Input{Pod: view, Now: fixtures.Now, Known: snapshot.Has}
	for _, compiled := range selection.SidecarSets {
		in.Candidates = append(in.Candidates, inject.Candidate{Current: compiled})
	}
	if plan, err = inject.Compute(in); err != nil {
		t.Fatalf("Compute: %v", err)
	}
	return plan, eligible
}

// tracked returns the counters if there is this Pod alone.
func tracked(t *testing.T, snapshot *match.Snapshot, pod map[string]any) map[string]tracker.Counters {
	t.Helper()
	typed := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pod, typed); err != nil {
		t.Fatalf("decoding the Pod: %v", err)
	}
	counted := newTracker()
	counted.SetSnapshot(snapshot)
	counted.Set(podstate.FromPod(typed))
	counters := map[string]tracker.Counters{}
	for _, compiled := range snapshot.SidecarSets() {
		pass, _ := counted.Pass(tracker.Current{Compiled: compiled})
		counters[compiled.Name()] = pass.Counters
	}
	return counters
}

func randomPod(r *rand.Rand) map[string]any {
	pod := fixtures.Pod("web").Container("app", "app:v1").Namespace([]string{"a", "a", "b", excludedNamespace}[r.IntN(4)])
	if r.IntN(6) == 0 {
		pod.Annotation(corev1.MirrorPodAnnotationKey, "")
	}
	return pod.Obj()
}

func randomSnapshot(t *testing.T, r *rand.Rand) *match.Snapshot {
	t.Helper()
	var sidecarSets []*inject.Compiled
	for i := range 1 + r.IntN(4) {
		name := fmt.Sprint("set-", i)
		set := fixtures.SidecarSet(name).PatchAnnotation("Retain", "example.com/"+name, "x")
		canary := i > 0 && r.IntN(3) == 0
		kinds := 5
		if canary {
			kinds = 4 // a SidecarSet without containers leaves no trace
			set.CanaryOf(fmt.Sprint("set-", r.IntN(i)))
		}
		switch r.IntN(kinds) {
		case 0:
			set.Native(name, "a:v1")
		case 1:
			set.Container(name, "a:v1").With("upgradeStrategy", map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:v1"})
		case 2:
			set.InitContainer(name, "a:v1")
		case 3:
			set.Container(name, "a:v1").Native(name+"-native", "b:v1")
		}
		if r.IntN(4) == 0 {
			set.InNamespace("b")
		}
		if r.IntN(6) == 0 {
			set.Paused()
		}
		sidecarSets = append(sidecarSets, fixtures.Compiled(t, set.Map()))
	}
	return match.Build(sidecarSets, map[string]labels.Set{
		"a": {corev1.LabelMetadataName: "a"}, "b": {corev1.LabelMetadataName: "b"}, excludedNamespace: {corev1.LabelMetadataName: excludedNamespace},
	})
}
