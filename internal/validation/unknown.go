package validation

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// withoutGuesses drops the complaint that a value lacks all of several members
// where it has one that this build does not know: that may be the one.
func withoutGuesses(errs field.ErrorList, object map[string]any) field.ErrorList {
	unknown := sets.New[string]()
	spec, _ := object["spec"].(map[string]any)
	path := field.NewPath("spec")
	for _, list := range []string{"initContainers", "containers"} {
		findUnknown(spec[list], reflect.TypeFor[[]appsv1beta1.SidecarContainer](), path.Child(list), unknown)
	}
	findUnknown(spec["volumes"], reflect.TypeFor[[]corev1.Volume](), path.Child("volumes"), unknown)
	return slices.DeleteFunc(errs, func(err *field.Error) bool {
		return err.Type == field.ErrorTypeRequired && unknown.Has(err.Field)
	})
}

// findUnknown adds the paths of all objects that have a member which their type
// lacks. Null means absent.
func findUnknown(value any, t reflect.Type, path *field.Path, unknown sets.Set[string]) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := value.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, elem := range value {
				findUnknown(elem, t.Elem(), path.Index(i), unknown)
			}
		}
	case map[string]any:
		if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return
		}
		members := membersOf(t)
		for name, elem := range value {
			if known, ok := members[name]; ok {
				findUnknown(elem, known, path.Child(name), unknown)
			} else if elem != nil {
				unknown.Insert(path.String())
			}
		}
	}
}

// membersOf are the types of a struct's members by their name in JSON.
func membersOf(t reflect.Type) map[string]reflect.Type {
	members := make(map[string]reflect.Type, t.NumField())
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			members[name] = f.Type
		}
	}
	return members
}
