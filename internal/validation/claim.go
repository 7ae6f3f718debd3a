package validation

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateTemplateMetadata refuses what only an object of its own can have.
func validateTemplateMetadata(meta *metav1.ObjectMeta, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	value := reflect.ValueOf(meta).Elem()
	for name, f := range fieldsOf(value.Type()) {
		if name != "labels" && name != "annotations" && !value.FieldByIndex(f.Index).IsZero() {
			errs = append(errs, field.Forbidden(path.Child(name), "a template has labels and annotations only; remove it"))
		}
	}
	return errs
}

// validateClaimOptions checks what a claim may say besides its size and modes.
func validateClaimOptions(spec *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Selector != nil {
		errs = append(errs, validateTerms(spec.Selector, path.Child("selector"))...)
	}
	if class := spec.VolumeAttributesClassName; class != nil && *class != "" {
		errs = append(errs, invalid(path.Child("volumeAttributesClassName"), *class, validation.IsDNS1123Subdomain(*class))...)
	}
	source, reference := spec.DataSource, spec.DataSourceRef
	if source != nil {
		errs = append(errs, validateDataSource(source.APIGroup, source.Kind, source.Name, path.Child("dataSource"))...)
	}
	if reference == nil {
		return errs
	}
	errs = append(errs, validateDataSource(reference.APIGroup, reference.Kind, reference.Name, path.Child("dataSourceRef"))...)
	elsewhere := reference.Namespace != nil && *reference.Namespace != ""
	if elsewhere {
		errs = append(errs, invalid(path.Child("dataSourceRef", "namespace"), *reference.Namespace, validation.IsDNS1123Label(*reference.Namespace))...)
	}
	same := source != nil && source.Kind == reference.Kind && source.Name == reference.Name && reflect.DeepEqual(source.APIGroup, reference.APIGroup)
	if source != nil && (elsewhere || !same) {
		errs = append(errs, field.Invalid(path.Child("dataSource"), source.Name, "must be the same as dataSourceRef, and may not stand beside a dataSourceRef with a namespace; remove it"))
	}
	return errs
}

func validateDataSource(group *string, kind, name string, path *field.Path) field.ErrorList {
	errs := requireText(name, path.Child("name"), "name the object that the volume is made from")
	errs = append(errs, requireText(kind, path.Child("kind"), "say of which kind the object is, for example VolumeSnapshot")...)
	switch {
	case group != nil && *group != "":
		return append(errs, invalid(path.Child("apiGroup"), *group, validation.IsDNS1123Subdomain(*group))...)
	case kind != "" && kind != "PersistentVolumeClaim":
		return append(errs, field.Invalid(path.Child("kind"), kind, "must be PersistentVolumeClaim where there is no apiGroup; correct it or set apiGroup"))
	}
	return errs
}
