package members_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/members"
)

// others are the members of a spec that Pods do not get.
var others = []string{"selector", "namespace", "namespaceSelector", "updateStrategy", "injectionStrategy", "revisionHistoryLimit", "customVersion"}

// A developer who adds a member to a spec says here or in members.Injected what it is.
func TestEachMemberOfASpecIsKnown(t *testing.T) {
	pod := typesOf(reflect.TypeFor[corev1.PodSpec]())
	for _, spec := range []reflect.Type{reflect.TypeFor[appsv1beta1.SidecarSetSpec](), reflect.TypeFor[appsv1alpha1.SidecarSetSpec]()} {
		of := typesOf(spec)
		for _, m := range members.Injected {
			typ, has := of[m.Name]
			switch delete(of, m.Name); {
			case !has:
				t.Errorf("%s has no member %s", spec, m.Name)
			case m.Kind == members.Containers && (typ != reflect.TypeFor[[]appsv1beta1.SidecarContainer]() || pod[m.Name] != reflect.TypeFor[[]corev1.Container]()),
				m.Kind == members.Objects && typ != pod[m.Name],
				m.Kind == members.Metadata && pod[m.Name] != nil:
				t.Errorf("%s.%s is a %s, which is not of the kind that the table says", spec, m.Name, typ)
			case typ.Kind() != reflect.Slice:
				t.Errorf("%s.%s is no list", spec, m.Name)
			}
		}
		for name := range of {
			if !slices.Contains(others, name) {
				t.Errorf("%s.%s is new: add it to members.Injected if Pods get it, or else to this test", spec, name)
			}
		}
	}
}

func typesOf(spec reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for f := range spec.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		all[name] = f.Type
	}
	return all
}
