package validation_test

import (
	"encoding/json"
	"testing"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/randfill"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/validation"
)

func FuzzValidationNeverPanics(f *testing.F) {
	for seed := range int64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		filler := randfill.NewWithSeed(seed).NilChance(.3).NumElements(0, 3).MaxDepth(12)
		var set, old, other appsv1beta1.SidecarSet
		filler.Fill(&set)
		filler.Fill(&old)
		filler.Fill(&other)
		other.Spec.Selector = set.Spec.Selector // so that they select the same Pods
		validateAll(t, &set, &old, validation.Environment{
			Base: &old.ObjectMeta, Conflicts: validation.FindConflicts(&set, []*appsv1beta1.SidecarSet{&old, &other}), Recorded: seed%2 == 0,
			Whitelist: validation.Whitelist{Content: allowAll}, Stored: []*appsv1beta1.SidecarSet{&old, &other},
		})
	})
}

// validateAll calls all checks for a SidecarSet that replaces another one.
func validateAll(t *testing.T, set, old *appsv1beta1.SidecarSet, env validation.Environment) {
	t.Helper()
	env.Object, env.Replaced = untyped(t, set), untyped(t, old)
	validation.Bounds(set, old, env.Object, env.Replaced)
	validation.Create(set, env)
	validation.Update(set, old, env)
	validation.Warnings(set, env)
}

// untyped is a SidecarSet as JSON values; nil if it cannot be encoded.
func untyped(t *testing.T, set *appsv1beta1.SidecarSet) map[string]any {
	t.Helper()
	data, err := json.Marshal(set)
	if err != nil {
		return nil
	}
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func FuzzValidationOfJSONNeverPanics(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{}],"patchPodMetadata":[{}]}}`), "{}")
	f.Add([]byte(`{"spec":{"containers":[{"name":"a","upgradeStrategy":{"upgradeType":"HotUpgrade"},"livenessProbe":{"novel":{}}},null],"volumes":[null,{}],"selector":{"matchLabels":{"a":"b"}}}}`), "{}")
	f.Fuzz(func(t *testing.T, data []byte, whitelist string) {
		var set appsv1beta1.SidecarSet
		var object map[string]any
		if kjson.UnmarshalCaseSensitivePreserveInts(data, &set) != nil || kjson.UnmarshalCaseSensitivePreserveInts(data, &object) != nil {
			return // the webhook refuses it first
		}
		other := set
		other.Name += "-2"
		env := validation.Environment{Object: object, Conflicts: validation.FindConflicts(&set, []*appsv1beta1.SidecarSet{&set, &other}), Whitelist: validation.Whitelist{Content: whitelist}}
		validation.Update(&set, &set, env)
		env.Replaced = map[string]any{"spec": map[string]any{"containers": []any{nil, map[string]any{"name": "a"}}, "initContainers": 1}}
		validation.Warnings(&set, env)
	})
}
