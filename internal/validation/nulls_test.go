package validation_test

import (
	"encoding/json"
	"fmt"
	"testing"

	kjson "sigs.k8s.io/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/random"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/validation"
	"github.com/sidecarset/operator/test/rounds"
)

// Whichever list has a null, validation refuses it or the engine accepts it.
func TestNullsInListsAreRefusedOrTaken(t *testing.T) {
	g := random.New(5)
	refused, taken, manifests := 0, 0, rounds.Of(200, 30)
	for range manifests {
		manifest := g.SidecarSet()
		if problems := create(t, manifest); problems != nil {
			continue
		}
		for path, with := range withNulls(t, manifest) {
			if create(t, with) != nil {
				refused++
				continue
			}
			taken++
			if _, err := inject.Compile(fixtures.Stored(with)); err != nil {
				t.Errorf("a null in %s is accepted, and cannot be compiled: %v", path, err)
			}
		}
	}
	if refused < manifests/2 || taken == 0 {
		t.Errorf("%d refused, %d taken: the test is about nothing", refused, taken)
	}
}

func create(t *testing.T, manifest map[string]any) error {
	t.Helper()
	stored := fixtures.Stored(decoded(t, manifest))
	return validation.Create(typed(t, stored), validation.Environment{Object: stored}).ToAggregate()
}

// withNulls returns copies of an object that have a null at the end of one list.
func withNulls(t *testing.T, object map[string]any) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	var visit func(value any, path string, put func(any) map[string]any)
	visit = func(value any, path string, put func(any) map[string]any) {
		switch value := value.(type) {
		case []any:
			out[path] = put(append(append([]any{}, value...), nil))
			for i, elem := range value {
				visit(elem, fmt.Sprintf("%s[%d]", path, i), func(changed any) map[string]any {
					list := append([]any{}, value...)
					list[i] = changed
					return put(list)
				})
			}
		case map[string]any:
			for name, elem := range value {
				visit(elem, path+"."+name, func(changed any) map[string]any {
					members := map[string]any{}
					for k, v := range value {
						members[k] = v
					}
					members[name] = changed
					return put(members)
				})
			}
		}
	}
	visit(decoded(t, object), "", func(changed any) map[string]any { return changed.(map[string]any) })
	return out
}

// decoded gives values the types that a decoder of JSON gives them.
func decoded(t *testing.T, value map[string]any) (out map[string]any) {
	t.Helper()
	decodeInto(t, value, &out)
	return out
}

func typed(t *testing.T, value map[string]any) *appsv1beta1.SidecarSet {
	t.Helper()
	set := &appsv1beta1.SidecarSet{}
	decodeInto(t, value, set)
	return set
}

func decodeInto(t *testing.T, value map[string]any, out any) {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, out); err != nil {
		t.Fatal(err)
	}
}
