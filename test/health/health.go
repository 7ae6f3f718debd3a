// Package health reads a SidecarSet as deployment tools do: by kstatus, as Flux and Helm, and by
// the health check for Argo CD that docs/reference/status.md has.
package health

import (
	"errors"
	"fmt"
	"os"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

// Kstatus is what Flux, Helm and others read in an object: Current, InProgress, Failed …
func Kstatus(object *unstructured.Unstructured) (string, error) {
	result, err := status.Compute(object)
	if err != nil {
		return "", err
	}
	return result.Status.String(), nil
}

// Argo is what the health check of docs/reference/status.md returns: Healthy, Progressing, Degraded or
// Suspended. It is called from a directory two below the root of the module.
func Argo(object *unstructured.Unstructured) (string, error) {
	text, err := os.ReadFile("../../docs/reference/status.md")
	if err != nil {
		return "", err
	}
	const head = "data:\n  resource.customizations.health"
	_, rest, _ := strings.Cut(string(text), "```yaml\n"+head)
	block, _, found := strings.Cut(rest, "```")
	var config struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(head+block), &config); err != nil || !found {
		return "", fmt.Errorf("docs/reference/status.md has no health check: %w", err)
	}
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", valueOf(state, object.Object))
	for _, script := range config.Data {
		if err := state.DoString(script); err != nil {
			return "", err
		}
	}
	health, ok := state.Get(-1).(*lua.LTable)
	if !ok || health.RawGetString("message").String() == "" {
		return "", errors.New("the health check returns no message")
	}
	return health.RawGetString("status").String(), nil
}

func valueOf(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, member := range v {
			table.RawSetString(key, valueOf(state, member))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, element := range v {
			table.Append(valueOf(state, element))
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
