package inject_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/test/rounds"
)

// invariants are checked for a range of seeds by every run of the tests, and for more
// by the fuzzer.
var invariants = map[string]func(t *testing.T, w world){
	"injecting twice is injecting once":                  checkConverges,
	"the order of candidates does not matter":            checkDeterministic,
	"the Pod's own content stays byte for byte":          checkUntouched,
	"one after the other gives the same set of sidecars": checkOneByOne,
}

func TestInvariants(t *testing.T) {
	for name, invariant := range invariants {
		t.Run(name, func(t *testing.T) {
			taken, worlds := 0, rounds.Of(150, 20)
			for seed := range uint64(worlds) {
				w := newWorld(t, seed)
				if _, ok := compute(t, w); ok {
					taken++
				}
				if invariant(t, w); t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if 2*taken < worlds {
				t.Errorf("only %d of %d worlds are accepted: the invariants are hardly tested", taken, worlds)
			}
		})
	}
}

func FuzzInvariants(f *testing.F) {
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		for _, invariant := range invariants {
			invariant(t, w)
		}
	})
}

// Whatever is stored or admitted, nothing panics.
func FuzzCompileAndCompute(f *testing.F) {
	set, _ := json.Marshal(log().Mount("v", "/v").Volume("v").PullSecret("s").PatchAnnotation("MergePatchJson", "k", `{"a":1}`).Map())
	pod, _ := json.Marshal(app().Annotation("kruise.io/sidecarset-hash", `{"log":"h"}`).Obj())
	f.Add(set, pod)
	f.Add([]byte(`{"metadata":{"name":"x"},"spec":{"selector":{"matchLabels":{"a":"b"}},"containers":[{}]}}`), []byte(`{"spec":{"containers":[null,{"env":[null,{}]}]}}`))
	f.Fuzz(func(t *testing.T, setText, podText []byte) {
		var object, pod map[string]any
		if json.Unmarshal(setText, &object) != nil || json.Unmarshal(podText, &pod) != nil {
			return
		}
		p, err := inject.Compile(object)
		if p == nil && err == nil {
			t.Fatal("neither a compiled SidecarSet nor an error")
		}
		if p == nil {
			return
		}
		view, err := fixtures.ReadPod(pod)
		if err != nil {
			return
		}
		in := inject.Input{Pod: view, Candidates: []inject.Candidate{{Current: p}}}
		if plan, err := inject.Compute(in); err == nil {
			if text := plan.AppendPatch(nil); text != nil && !json.Valid(text) {
				t.Errorf("patch is no JSON: %s", text)
			}
		}
	})
}

// compute returns false where the users' choices conflict.
func compute(t *testing.T, w world) (inject.Plan, bool) {
	t.Helper()
	plan, err := inject.Compute(w.input(t, w.pod))
	if refusal := inject.Refusal(nil); err != nil && !errors.As(err, &refusal) {
		t.Fatalf("Compute: %v", err)
	}
	return plan, err == nil
}

// mergesMetadataOnly is true where no SidecarSet brings a container. Validation refuses
// such SidecarSets, and two merges into one annotation. No record shows that they were
// merged, so that each call merges once more.
func mergesMetadataOnly(plan inject.Plan) bool {
	_, merged := plan.Annotations["k/a~b"]
	_, other := plan.Annotations["other"]
	return len(plan.Insertions)+len(plan.Replacements) == 0 && (merged || other)
}

func checkDeterministic(t *testing.T, w world) {
	plan, ok := compute(t, w)
	r := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		shuffled := w
		shuffled.sets = slices.Clone(w.sets)
		r.Shuffle(len(shuffled.sets), func(i, j int) {
			shuffled.sets[i], shuffled.sets[j] = shuffled.sets[j], shuffled.sets[i]
		})
		other, otherOK := compute(t, shuffled)
		if ok != otherOK {
			t.Fatalf("accepted: %v and, shuffled, %v", ok, otherOK)
		}
		if diff := cmp.Diff(string(plan.AppendPatch(nil)), string(other.AppendPatch(nil))); diff != "" {
			t.Errorf("patches (-sorted +shuffled):\n%s", diff)
		}
		if diff := cmp.Diff(plan.Skipped, other.Skipped); diff != "" {
			t.Errorf("skipped (-sorted +shuffled):\n%s", diff)
		}
	}
}

// checkUntouched takes what we inject out of the result again and expects the
// Pod as it was, except for annotations and containers of ours.
func checkUntouched(t *testing.T, w world) {
	plan, ok := compute(t, w)
	if !ok {
		return
	}
	after := fixtures.Apply(t, plan, w.pod)
	for _, list := range []string{"initContainers", "containers"} {
		if diff := cmp.Diff(own(t, w.pod, list), own(t, after, list)); diff != "" {
			t.Errorf("%s of the user (-before +after):\n%s", list, diff)
		}
	}
	for _, list := range []string{"volumes", "imagePullSecrets"} {
		before, now := items(w.pod, list), items(after, list)
		if len(now) < len(before) || marshal(t, now[:len(before)]) != marshal(t, before) && len(before) > 0 {
			t.Errorf("%s were %v and are %v", list, before, now)
		}
	}
	for _, member := range []string{"labels", "name", "namespace"} {
		if diff := cmp.Diff(w.pod["metadata"].(map[string]any)[member], after["metadata"].(map[string]any)[member]); diff != "" {
			t.Errorf("%s (-before +after):\n%s", member, diff)
		}
	}
}

// own returns the JSON of the containers that have no IS_INJECTED=true.
func own(t *testing.T, pod map[string]any, list string) []string {
	var out []string
	view := fixtures.View(t, pod)
	views := view.Containers
	if list == "initContainers" {
		views = view.InitContainers
	}
	for i, c := range items(pod, list) {
		if !views[i].Injected {
			out = append(out, marshal(t, c))
		}
	}
	return out
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkOneByOne admits the Pod to one SidecarSet after the other, in any order, as several
// Pod webhooks and replicas do. The Pod is the same in the end, and so is the order of
// its containers, if it came without any of the sidecars.
func checkOneByOne(t *testing.T, w world) {
	plan, ok := compute(t, w)
	if !ok || hasCanary(plan) {
		return // a canary has to be seen together with its base
	}
	together := fixtures.Apply(t, plan, w.pod)
	pod := w.pod
	order := slices.Clone(w.sets)
	r := rand.New(rand.NewPCG(uint64(len(marshal(t, w.pod))), 3))
	r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for i := range order {
		part := w
		part.sets = order[:i+1]
		next, err := inject.Compute(part.input(t, pod))
		if err != nil {
			t.Fatalf("Compute with %d SidecarSets: %v", i+1, err)
		}
		pod = fixtures.Apply(t, next, pod)
	}
	// imagePullSecrets may differ: a SidecarSet without containers brings its own
	// only where another one injects.
	for _, l := range []string{"initContainers", "containers", "volumes"} {
		want, got := list(together, l), list(pod, l)
		if l == "volumes" || anyInjected(t, w.pod) {
			slices.Sort(want)
			slices.Sort(got)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-together +one by one):\n%s", l, diff)
		}
	}
}

// anyInjected reports whether the Pod has containers that were injected before.
func anyInjected(t *testing.T, pod map[string]any) bool {
	t.Helper()
	view := fixtures.View(t, pod)
	return slices.ContainsFunc(slices.Concat(view.InitContainers, view.Containers), func(c inject.ContainerView) bool { return c.Injected })
}

func hasCanary(plan inject.Plan) bool {
	return slices.ContainsFunc(plan.Skipped, func(s inject.Skip) bool { return s.Reason == inject.SkipCanary })
}
