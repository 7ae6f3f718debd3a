package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sidecarset/operator/internal/hub"
)

// Pack replaces the spec of a SidecarSet by its JSON text, in place: a tree of JSON values
// takes up to ten times as much memory. A packed object, and a spec that cannot be written,
// stay as they are.
func Pack(object map[string]any) {
	spec, isObject := object["spec"].(map[string]any)
	if !isObject {
		return
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(spec) != nil {
		return
	}
	object["spec"] = text.String()
}

// Unpack returns a SidecarSet with its spec as JSON values: the object itself, if
// it is not packed, or else one that shares all but the spec with it.
func Unpack(object map[string]any) (map[string]any, error) {
	packed, isPacked := object["spec"].(string)
	if !isPacked {
		return object, nil
	}
	var spec map[string]any
	if err := utiljson.Unmarshal([]byte(packed), &spec); err != nil || spec == nil { // keeps integers
		return nil, &FieldError{SidecarSet: hub.NameOf(object), Field: "spec", Err: errors.New("must be an object")}
	}
	unpacked := maps.Clone(object)
	unpacked["spec"] = spec
	return unpacked, nil
}

// SpecOf returns the spec of a SidecarSet, packed or not, as Compile reads it:
// defaulted if it was stored without its webhook.
func SpecOf(object map[string]any) (map[string]any, error) {
	object, err := defaulted(object)
	spec, _ := object["spec"].(map[string]any)
	return spec, err
}

// cloneObject copies JSON values of whatever Go types they have.
func cloneObject(object map[string]any) (map[string]any, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if err := utiljson.Unmarshal(data, &out); err != nil {
		return nil, err
	}
	return out, nil
}

func text(object map[string]any, name string) string {
	s, _ := object[name].(string)
	return s
}
