package inject_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

func TestPackedSidecarSetsAreTheSame(t *testing.T) {
	tests := map[string]*fixtures.SidecarSetBuilder{
		"short": log().Spec("invented", map[string]any{"a": []any{int64(1), 1.5, true, nil, "<&>"}}),
		"long":  log().With("args", []any{strings.Repeat("long ", 10_000)}),
	}
	for name, set := range tests {
		t.Run(name, func(t *testing.T) {
			object, want := set.Map(), set.Map()
			inject.Pack(object)
			text, packed := object["spec"].(string)
			if !packed {
				t.Error("the spec is no text")
			}
			inject.Pack(object) // packing twice is packing once
			if object["spec"] != text {
				t.Error("packed twice, it differs")
			}
			got, err := inject.Unpack(object)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("unpacked (-want +got):\n%s", diff)
			}
			if object["spec"] != text {
				t.Error("Unpack changed its argument")
			}
			pod := app().Obj()
			plain, _ := injected(t, fixtures.Input(t, pod, want), pod)
			fromPacked, _ := injected(t, fixtures.Input(t, pod, object), pod)
			if diff := cmp.Diff(plain, fromPacked); diff != "" {
				t.Errorf("Pod (-plain +packed):\n%s", diff)
			}
		})
	}
}

func TestSpecOfIsDefaulted(t *testing.T) {
	manifest := log().Manifest()
	inject.Pack(manifest)
	got, err := inject.SpecOf(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(log().Map()["spec"], any(got)); diff != "" {
		t.Errorf("spec (-stored +got):\n%s", diff)
	}
}

func TestCompileRefusesABrokenPackedSpec(t *testing.T) {
	for _, spec := range []string{"", "x", "null", "[]"} {
		if _, err := inject.Compile(map[string]any{"metadata": map[string]any{"name": "log"}, "spec": spec}); err == nil || !strings.Contains(err.Error(), "spec") {
			t.Errorf("%q: error %v", spec, err)
		}
	}
}
