package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MemberError names the member that keeps a SidecarSet from being decoded.
type MemberError struct {
	Path string // "" is the object itself
	// Err says what is wrong with the value, in the words of JSON.
	Err error
}

func (e *MemberError) Error() string {
	return strings.TrimPrefix(e.Path+": ", ": ") + e.Err.Error() + "; correct it"
}

func (e *MemberError) Unwrap() error { return e.Err }

// maxLocated is how many children of a value locate tries.
const maxLocated = 1_000

// locate finds the member because of which an object cannot be decoded: the decoder's error
// does not say which element of a list it is in, and names no member for a quantity. locate
// descends into the first child that cannot be decoded on its own, in the same place: alone
// makes an object that contains only the given value, in the place of this one. If none of
// the first maxLocated children of a value fails, locate names the value itself.
func locate(value any, path *field.Path, alone func(any) any, cause error) error {
	switch value := value.(type) {
	case map[string]any:
		if _, err := decode(alone(map[string]any{})); err != nil {
			break // no object is wanted here
		}
		names := slices.Sorted(maps.Keys(value))
		for _, name := range names[:min(len(names), maxLocated)] {
			member := func(v any) any { return alone(map[string]any{name: v}) }
			if _, err := decode(member(value[name])); err != nil {
				return locate(value[name], path.Child(name), member, err)
			}
		}
	case []any:
		if _, err := decode(alone([]any{})); err != nil {
			break
		}
		element := func(v any) any { return alone([]any{v}) }
		for i, elem := range value[:min(len(value), maxLocated)] {
			if _, err := decode(element(elem)); err != nil {
				return locate(elem, path.Index(i), element, err)
			}
		}
	}
	if path == nil { // the object itself
		return &MemberError{"", explain(cause)}
	}
	return &MemberError{path.String(), explain(cause)}
}

// explain translates a decoder's error from the words of Go to the words of JSON.
func explain(cause error) error {
	var mismatch *json.UnmarshalTypeError
	if !errors.As(cause, &mismatch) {
		return cause
	}
	want := "an object"
	switch mismatch.Type.Kind() {
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	case reflect.Int32, reflect.Int64, reflect.Int:
		want = "a whole number that fits into " + mismatch.Type.Kind().String()
	case reflect.Slice:
		want = "a list"
	}
	return fmt.Errorf("must be %s, not %s", want, mismatch.Value)
}
