package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
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

// maxLocated is how many children of a value are tried.
const maxLocated = 1_000

// locate finds the member that an object cannot be decoded for: a decoder does not
// say which element of a list it was in, and says nothing about quantities. locate
// descends into the first child that cannot be decoded on its own, in the same
// place. A step of a path is a member's name or an index. If none of the first
// maxLocated children of a value fails, locate names the value itself.
func locate(value any, path []any, cause error) error {
	switch value := value.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(value))
		for _, name := range names[:min(len(names), maxLocated)] {
			if err := decodeAlone(value[name], append(path, name)); err != nil {
				return locate(value[name], append(path, name), err)
			}
		}
	case []any:
		for i, elem := range value[:min(len(value), maxLocated)] {
			if err := decodeAlone(elem, append(path, i)); err != nil {
				return locate(elem, append(path, i), err)
			}
		}
	}
	return &MemberError{fieldPath(path), explain(cause)}
}

// decodeAlone decodes a SidecarSet that has nothing but this value.
func decodeAlone(value any, path []any) error {
	for _, step := range slices.Backward(path) {
		if name, isName := step.(string); isName {
			value = map[string]any{name: value}
		} else {
			value = []any{value}
		}
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return utiljson.Unmarshal(text, &appsv1beta1.SidecarSet{})
}

func fieldPath(steps []any) string {
	if len(steps) == 0 {
		return ""
	}
	var path *field.Path
	for _, step := range steps {
		switch step := step.(type) {
		case string:
			path = path.Child(step)
		case int:
			path = path.Index(step)
		}
	}
	return path.String()
}

// explain says in JSON's words what a decoder says in Go's.
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
