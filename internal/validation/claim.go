package validation

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// validateTemplateMetadata refuses what only an object of its own can have.
func validateTemplateMetadata(meta *metav1.ObjectMeta, path place) {
	for name, value := range fieldsOf(reflect.ValueOf(meta).Elem()) {
		if name != "labels" && name != "annotations" && !value.IsZero() {
			path.Child(name).forbidden("a template has labels and annotations only; remove it")
		}
	}
}

// validateClaimOptions checks what a claim may say besides its size and modes.
func validateClaimOptions(spec *corev1.PersistentVolumeClaimSpec, path place) {
	if spec.Selector != nil {
		validateTerms(spec.Selector, path.Child("selector"))
	}
	validateText(spec.VolumeAttributesClassName, path.Child("volumeAttributesClassName"), validation.IsDNS1123Subdomain)
	source, reference := spec.DataSource, spec.DataSourceRef
	if source != nil {
		validateDataSource(source.APIGroup, source.Kind, source.Name, path.Child("dataSource"))
	}
	if reference == nil {
		return
	}
	validateDataSource(reference.APIGroup, reference.Kind, reference.Name, path.Child("dataSourceRef"))
	validateText(reference.Namespace, path.Child("dataSourceRef", "namespace"), validation.IsDNS1123Label)
	elsewhere := reference.Namespace != nil && *reference.Namespace != ""
	same := source != nil && source.Kind == reference.Kind && source.Name == reference.Name && reflect.DeepEqual(source.APIGroup, reference.APIGroup)
	if source != nil && (elsewhere || !same) {
		path.Child("dataSource").invalid(source.Name, "must be the same as dataSourceRef, and must not be set together with a dataSourceRef that has a namespace; remove it")
	}
}

func validateDataSource(group *string, kind, name string, path place) {
	requireText(name, path.Child("name"), "name the object that the volume is made from")
	requireText(kind, path.Child("kind"), "say of which kind the object is, for example VolumeSnapshot")
	validateText(group, path.Child("apiGroup"), validation.IsDNS1123Subdomain)
	if (group == nil || *group == "") && kind != "" && kind != "PersistentVolumeClaim" {
		path.Child("kind").invalid(kind, "must be PersistentVolumeClaim if apiGroup is not set; correct it, or set apiGroup")
	}
}
