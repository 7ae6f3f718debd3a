package status_test

import (
	"os"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	computed "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// asObject returns the stored object with a status.
func asObject(t *testing.T, s appsv1beta1.SidecarSetStatus, injectionPaused bool) *unstructured.Unstructured {
	t.Helper()
	set := &appsv1beta1.SidecarSet{Status: s}
	set.Name, set.Generation = "log", s.ObservedGeneration
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.Spec.InjectionStrategy.Paused = injectionPaused
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: object}
}

// kstatus is what Flux and others read in an object.
func kstatus(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	result, err := computed.Compute(object)
	if err != nil {
		t.Fatal(err)
	}
	return result.Status.String()
}

// argo is what the health check of docs/status.md returns.
func argo(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\ndata:\n  resource.customizations.health")
	block, _, found := strings.Cut(rest, "```")
	var config struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte("data:\n  resource.customizations.health"+block), &config); err != nil || !found {
		t.Fatalf("docs/status.md has no health check: %v", err)
	}
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", luaValue(state, object.Object))
	for _, script := range config.Data {
		if err := state.DoString(script); err != nil {
			t.Fatal(err)
		}
	}
	health, ok := state.Get(-1).(*lua.LTable)
	if !ok || health.RawGetString("message").String() == "" {
		t.Fatalf("the health check returns %v", state.Get(-1))
	}
	return health.RawGetString("status").String()
}

func luaValue(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, member := range v {
			table.RawSetString(key, luaValue(state, member))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, element := range v {
			table.Append(luaValue(state, element))
		}
		return table
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	}
	return lua.LNil
}
