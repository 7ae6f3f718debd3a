package validation

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Pruned returns the members of a SidecarSet, in the version in which its author writes it,
// that the schema of that version does not have. API servers drop them before they call the
// webhook, or refuse the SidecarSet if the client asks for that, as kubectl does. Members of
// containers and volumes that are not known are no such members: see Warnings.
func Pruned(sent map[string]any) (errs field.ErrorList) {
	report := func(path *field.Path, name string, known map[string]reflect.Type) {
		if isPreserved(path.String()) {
			return
		}
		errs = append(errs, field.Forbidden(path.Child(name), "is unknown, so that kubectl refuses it and API servers drop it; "+correction(name, known, "remove it")))
	}
	spec := reflect.TypeFor[appsv1beta1.SidecarSetSpec]()
	if sent["apiVersion"] == appsv1alpha1.GroupVersion.String() {
		spec = reflect.TypeFor[appsv1alpha1.SidecarSetSpec]()
	}
	findUnknownIn(sent["metadata"], reflect.TypeFor[metav1.ObjectMeta](), field.NewPath("metadata"), false, report)
	findUnknownIn(sent["spec"], spec, field.NewPath("spec"), false, report)
	return errs
}

// isPreserved reports whether the schema keeps unknown members of the object at a path: those
// of volumes and containers, except in the members that Pods' containers do not have.
func isPreserved(path string) bool {
	if strings.HasPrefix(path, "spec.volumes[") {
		return true
	}
	if !strings.HasPrefix(path, "spec.containers[") && !strings.HasPrefix(path, "spec.initContainers[") {
		return false
	}
	_, member, isMember := strings.Cut(path, "].")
	if !isMember { // of the container itself
		return true
	}
	_, ofPods := membersOf(reflect.TypeFor[corev1.Container]())[member[:strings.IndexAny(member+".", ".[")]]
	return ofPods
}

// IgnoredSelector is the warning about a namespaceSelector of v1alpha1 that has no effect.
const IgnoredSelector = "spec.namespaceSelector: is ignored beside spec.namespace; remove one of them"

// Ignored warns about members of a v1alpha1 manifest that the conversion to v1beta1 drops.
func Ignored(sent map[string]any) []string {
	spec := specOf(sent)
	namespace, _ := spec["namespace"].(string)
	if sent["apiVersion"] == appsv1alpha1.GroupVersion.String() && namespace != "" && spec["namespaceSelector"] != nil {
		return []string{IgnoredSelector}
	}
	return nil
}
