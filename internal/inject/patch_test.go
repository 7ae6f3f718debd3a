package inject_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

func apply(t testing.TB, plan inject.Plan, pod map[string]any) map[string]any {
	t.Helper()
	return fixtures.Apply(t, plan, pod)
}

// operation is one element of a JSON patch.
type operation struct{ Op, Path string }

func operations(t testing.TB, plan inject.Plan) (ops []operation) {
	t.Helper()
	if plan.Empty() {
		return nil
	}
	if err := json.Unmarshal(plan.AppendPatch(nil), &ops); err != nil {
		t.Fatalf("decoding the patch: %v", err)
	}
	return ops
}

func TestAppendPatchAppends(t *testing.T) {
	const before = "as it was"
	pod := app().Obj()
	in := fixtures.Input(t, pod, log().Map())
	for range 2 { // the second plan is empty
		plan, err := inject.Compute(in)
		if err != nil {
			t.Fatalf("Compute: %v", err)
		}
		rest, found := strings.CutPrefix(string(plan.AppendPatch([]byte(before))), before)
		if !found || rest != string(plan.AppendPatch(nil)) || (rest == "") != plan.Empty() {
			t.Errorf("appended %q; the plan is empty: %v", rest, plan.Empty())
		}
		in.Pod = fixtures.View(t, apply(t, plan, pod))
	}
}
