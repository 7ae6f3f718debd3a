// Package health reads a SidecarSet as deployment tools do: by kstatus, as Flux and Helm, and by
// the health check for Argo CD in docs/examples/gitops/argocd.
package health

import (
	"errors"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// Kstatus is what Flux, Helm and others read in an object: Current, InProgress, Failed …
func Kstatus(object *unstructured.Unstructured) (string, error) {
	result, err := status.Compute(object)
	if err != nil {
		return "", err
	}
	return result.Status.String(), nil
}

// customization is the health check for Argo CD, in the form in which Argo CD takes contributions. Callers are in a directory two
// below the root of the module.
const customization = "../../docs/examples/gitops/argocd/resource_customizations/apps.kruise.io/SidecarSet/"

// Argo is the status that this health check returns: Healthy, Progressing, Degraded or Suspended.
func Argo(object *unstructured.Unstructured) (string, error) {
	status, message, err := argo(object)
	if err == nil && message == "" {
		err = errors.New("the health check returns no message")
	}
	return status, err
}

func argo(object *unstructured.Unstructured) (status, message string, err error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable, lua.OpenString} { // all that Argo CD has
		state.Push(state.NewFunction(open))
		state.Call(0, 0)
	}
	state.SetGlobal("obj", valueOf(state, object.Object))
	if err := state.DoFile(customization + "health.lua"); err != nil {
		return "", "", err
	}
	health, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return "", "", errors.New("the health check returns no table")
	}
	return lua.LVAsString(health.RawGetString("status")), lua.LVAsString(health.RawGetString("message")), nil
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
