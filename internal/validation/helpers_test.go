package validation_test

import (
	"encoding/json"
	"testing"

	kjson "sigs.k8s.io/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

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
