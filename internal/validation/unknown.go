package validation

import (
	"encoding/json"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// withoutGuesses drops the error that a value lacks all of several members if the value has a
// member that this build does not know, which may be the required one.
func withoutGuesses(errs field.ErrorList, object map[string]any) field.ErrorList {
	having := sets.New[string]()
	findUnknown(object, func(path *field.Path, _ string, _ map[string]reflect.Type) { having.Insert(path.String()) })
	return slices.DeleteFunc(errs, func(err *field.Error) bool {
		return err.Type == field.ErrorTypeRequired && having.Has(err.Field)
	})
}

// found is called for a member that its object's type lacks, with the place of the object, the
// name of the member, and the members of the type.
type found func(path *field.Path, name string, known map[string]reflect.Type)

// findUnknown looks through the parts of a SidecarSet that its schema does not
// describe. Null means absent.
func findUnknown(object map[string]any, report found) {
	spec, path := specOf(object), field.NewPath("spec")
	for _, list := range []string{"initContainers", "containers"} {
		findUnknownIn(spec[list], reflect.TypeFor[[]appsv1beta1.SidecarContainer](), path.Child(list), false, report)
	}
	findUnknownIn(spec["volumes"], reflect.TypeFor[[]corev1.Volume](), path.Child("volumes"), false, report)
}

// findUnknownIn looks through a value for members that a reader of the type does not find.
// With anyCase the reader is encoding/json, which compares names without case. No type has a
// pointer to a list.
func findUnknownIn(value any, t reflect.Type, path *field.Path, anyCase bool, report found) {
	switch value := value.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, elem := range value {
				findUnknownIn(elem, t.Elem(), path.Index(i), anyCase, report)
			}
		}
	case map[string]any:
		members := membersOf(t)
		if members == nil {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(value)) {
			known, ok := members[name]
			if !ok && anyCase {
				for candidate, t := range members {
					if strings.EqualFold(candidate, name) {
						known, ok = t, true
					}
				}
			}
			if ok {
				findUnknownIn(value[name], known, path.Child(name), anyCase, report)
			} else if value[name] != nil {
				report(path, name, members)
			}
		}
	}
}

// fieldsOf are the fields of a struct by their name in JSON, in the order of their
// declaration.
func fieldsOf(object reflect.Value) iter.Seq2[string, reflect.Value] {
	return func(yield func(string, reflect.Value) bool) {
		for _, f := range reflect.VisibleFields(object.Type()) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" && !yield(name, object.FieldByIndex(f.Index)) {
				return
			}
		}
	}
}

// membersOf are the types of the members of a struct, or of a struct that a pointer points to;
// nil for a type of other values. A struct with its own UnmarshalJSON is a text or a number.
func membersOf(t reflect.Type) map[string]reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	types := make(map[string]reflect.Type, t.NumField())
	for name, f := range fieldsOf(reflect.Zero(t)) {
		types[name] = f.Type()
	}
	return types
}
