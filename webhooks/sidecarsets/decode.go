package sidecarsets

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/conversion"
	"github.com/sidecarset/operator/internal/defaults"
)

// readSidecarSet decodes a SidecarSet of a version that we serve, as JSON.
func readSidecarSet(raw []byte) (map[string]any, error) {
	if len(raw) == 0 {
		return nil, errors.New("the request holds no object")
	}
	var object map[string]any
	if err := utiljson.Unmarshal(raw, &object); err != nil {
		return nil, fmt.Errorf("reading the object of the request: %w", err)
	}
	if kind := object["kind"]; kind != appsv1beta1.Kind.Kind {
		return nil, fmt.Errorf("unexpected kind: %v, want SidecarSet", kind)
	}
	switch object["apiVersion"] {
	case appsv1alpha1.GroupVersion.String(), appsv1beta1.GroupVersion.String():
		return object, nil
	}
	return nil, unsupportedVersion(object["apiVersion"])
}

func unsupportedVersion(apiVersion any) error {
	name := fmt.Sprint(apiVersion)
	if gv, err := schema.ParseGroupVersion(name); err == nil && gv.Group == appsv1beta1.GroupVersion.Group {
		name = gv.Version
	}
	return fmt.Errorf("unsupported version: %s; use v1beta1 or v1alpha1 of %s", name, appsv1beta1.GroupVersion.Group)
}

// hubSidecarSet is a SidecarSet of the hub version: as JSON, with members that
// this build does not know, and as our type.
type hubSidecarSet struct {
	object map[string]any
	set    *appsv1beta1.SidecarSet
}

// toHub converts an object to the hub version and decodes it. An error names the
// member whose value has the wrong type.
func toHub(object map[string]any) (*hubSidecarSet, error) {
	hub, err := conversion.ToV1beta1(object)
	if err != nil {
		return nil, err // names the object and the member
	}
	var set appsv1beta1.SidecarSet
	if err := decodeInto(&set, hub); err != nil {
		return nil, fmt.Errorf("%s: %w", describeSidecarSet(object), locate(hub, nil, err))
	}
	return &hubSidecarSet{hub, &set}, nil
}

// storedSidecarSet is one that may have been stored while no webhook looked at
// it, defaulted. One that cannot be decoded is nil.
func storedSidecarSet(object map[string]any) *hubSidecarSet {
	object = runtime.DeepCopyJSON(object)
	defaults.Apply(object)
	stored, err := toHub(object)
	if err != nil {
		return nil
	}
	return stored
}

func decodeInto(set *appsv1beta1.SidecarSet, object any) error {
	data, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return utiljson.Unmarshal(data, set)
}

// describeSidecarSet is how an object is called in messages.
func describeSidecarSet(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return fmt.Sprintf("SidecarSet %q", name)
}

// locate finds the member that an object cannot be decoded for: the decoder
// does not say which element of a list it was in, and nothing at all about
// quantities and the like. It descends into whichever child cannot be decoded on
// its own, in the same place. A step of a path is a member's name or an index. Of
// a value with very many children it tries the first maxLocated, and names the
// value itself if those can be decoded.
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
	return fmt.Errorf("%s: %s; correct it", fieldPath(path), explain(cause))
}

const maxLocated = 1_000

// decodeAlone decodes a SidecarSet that has nothing but this value.
func decodeAlone(value any, path []any) error {
	for _, step := range slices.Backward(path) {
		if name, isName := step.(string); isName {
			value = map[string]any{name: value}
		} else {
			value = []any{value}
		}
	}
	return decodeInto(&appsv1beta1.SidecarSet{}, value)
}

func fieldPath(steps []any) *field.Path {
	var path *field.Path
	for _, step := range steps {
		switch step := step.(type) {
		case string:
			path = path.Child(step)
		case int:
			path = path.Index(step)
		}
	}
	return path
}

// explain says in JSON's words what a decoder says in Go's.
func explain(cause error) string {
	var mismatch *json.UnmarshalTypeError
	if !errors.As(cause, &mismatch) {
		return cause.Error()
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
	return fmt.Sprintf("must be %s, not %s", want, mismatch.Value)
}
