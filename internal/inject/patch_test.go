package inject_test

import (
	"encoding/json"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/inject"
)

// apply carries a plan out without JSON patch.
func apply(t testing.TB, plan inject.Plan, pod map[string]any) map[string]any {
	t.Helper()
	out, err := plan.Apply(pod)
	if err != nil {
		t.Fatalf("Apply: %v", err)
	}
	return out
}

// checkPatch checks that the three ways to carry out a plan agree: Operations
// and AppendPatch say the same, and a patch library makes of them what Apply does.
func checkPatch(t testing.TB, plan inject.Plan, pod map[string]any) {
	t.Helper()
	const before = "as it was"
	rendered := plan.AppendPatch([]byte(before))
	if string(rendered[:len(before)]) != before {
		t.Fatalf("AppendPatch changed what it appends to: %s", rendered)
	}
	rendered = rendered[len(before):]
	if plan.Empty() {
		if len(rendered) != 0 || len(plan.Operations()) != 0 {
			t.Errorf("an empty plan renders %s, %v", rendered, plan.Operations())
		}
		return
	}
	marshalled, err := json.Marshal(plan.Operations())
	if err != nil {
		t.Fatalf("marshalling operations: %v", err)
	}
	if diff := cmp.Diff(values(t, marshalled), values(t, rendered)); diff != "" {
		t.Errorf("AppendPatch differs from Operations (-operations +rendered):\n%s", diff)
	}
	patch, err := jsonpatch.DecodePatch(rendered)
	if err != nil {
		t.Fatalf("decoding the patch: %v", err)
	}
	document, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	options := jsonpatch.NewApplyOptions()
	options.EscapeHTML = false
	patched, err := patch.ApplyWithOptions(document, options)
	if err != nil {
		t.Fatalf("applying the patch: %v\n%s", err, rendered)
	}
	applied, err := json.Marshal(apply(t, plan, pod))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(values(t, applied), values(t, patched)); diff != "" {
		t.Errorf("patched Pod differs from applied plan (-applied +patched):\n%s", diff)
	}
}

func values(t testing.TB, text []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
