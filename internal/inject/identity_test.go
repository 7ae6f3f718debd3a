package inject_test

import (
	"testing"

	"github.com/sidecarset/operator/internal/inject"
)

func TestIdentityChangesWithWhatDecidesAboutNewPods(t *testing.T) {
	base := func() map[string]any {
		return map[string]any{
			"metadata": map[string]any{"name": "a", "uid": "u", "generation": int64(1), "annotations": map[string]any{"k": "v"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "args": []any{"a b"}}}},
			"status":   map[string]any{"observedGeneration": int64(1), "latestRevision": "a-1", "matchedPods": int64(1)},
		}
	}
	in := func(object map[string]any, member string) map[string]any { return object[member].(map[string]any) }
	container := func(object map[string]any) map[string]any {
		return in(object, "spec")["containers"].([]any)[0].(map[string]any)
	}
	tests := map[string]struct {
		change  func(map[string]any)
		differs bool
	}{
		"nothing":                    {func(map[string]any) {}, false},
		"a counter":                  {func(o map[string]any) { in(o, "status")["matchedPods"] = int64(2) }, false},
		"a label":                    {func(o map[string]any) { in(o, "metadata")["labels"] = map[string]any{"a": "b"} }, false},
		"a resourceVersion":          {func(o map[string]any) { in(o, "metadata")["resourceVersion"] = "7" }, false},
		"an annotation":              {func(o map[string]any) { in(o, "metadata")["annotations"] = map[string]any{"k": "w"} }, true},
		"another object of the name": {func(o map[string]any) { in(o, "metadata")["uid"] = "w" }, true},
		"the generation":             {func(o map[string]any) { in(o, "metadata")["generation"] = int64(2) }, true},
		"its deletion":               {func(o map[string]any) { in(o, "metadata")["deletionTimestamp"] = "2026-01-02T03:04:05Z" }, true},
		"the recorded revision":      {func(o map[string]any) { in(o, "status")["latestRevision"] = "a-2" }, true},
		"an image":                   {func(o map[string]any) { container(o)["image"] = "i" }, true},
		"one argument made two":      {func(o map[string]any) { container(o)["args"] = []any{"a", "b"} }, true},
		"the custom version":         {func(o map[string]any) { in(o, "spec")["customVersion"] = "2" }, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			changed := base()
			tc.change(changed)
			if differs := inject.IdentityOf(base()) != inject.IdentityOf(changed); differs != tc.differs {
				t.Errorf("differs: %v, want %v", differs, tc.differs)
			}
			before := base()
			inject.Pack(before)
			inject.Pack(changed)
			if differs := inject.IdentityOf(before) != inject.IdentityOf(changed); differs != tc.differs {
				t.Errorf("packed: differs: %v, want %v", differs, tc.differs)
			}
		})
	}
}
