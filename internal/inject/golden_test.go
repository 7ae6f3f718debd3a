package inject_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

func TestGoldenInjections(t *testing.T) {
	fixtures.RunCases(t, func(t *testing.T, c *fixtures.Case) fixtures.Outcome {
		plan, err := inject.Compute(caseInput(t, c, c.Pod))
		if err != nil {
			return fixtures.Outcome{Refused: err.Error()}
		}
		pod := fixtures.Apply(t, plan, c.Pod)
		again, err := inject.Compute(caseInput(t, c, pod))
		if err != nil || !again.Empty() && !anyEnforced(c) {
			t.Errorf("injecting the result again: %v, patch %s", err, again.AppendPatch(nil))
		}
		if diff := cmp.Diff(pod, fixtures.Apply(t, again, pod)); diff != "" {
			t.Errorf("injecting the result again (-once +twice):\n%s", diff)
		}
		return fixtures.Outcome{Pod: pod}
	})
}

// anyEnforced reports whether sidecars are put in again by each call.
func anyEnforced(c *fixtures.Case) bool {
	return slices.ContainsFunc(c.SidecarSets, func(set map[string]any) bool {
		return annotation(set, appsv1beta1.AnnotationEnforce) == "true"
	})
}

func caseInput(t *testing.T, c *fixtures.Case, pod map[string]any) inject.Input {
	t.Helper()
	in := inject.Input{Pod: fixtures.View(t, pod), Now: fixtures.Now}
	store := c.Snapshot(t)
	selection, err := store.Select(c.Namespace, in.Pod.Labels, func(name string) (labels.Set, error) {
		set, ok := store.NamespaceLabels(name)
		if !ok {
			t.Errorf("Namespace %s is not declared by the case", name)
		}
		return set, nil
	})
	if err != nil {
		t.Fatalf("Select: %v", err)
	}
	for _, p := range selection.SidecarSets {
		in.Candidates = append(in.Candidates, inject.Candidate{Current: p, History: store.History(p.Name()), Draw: 0.5})
	}
	return in
}
