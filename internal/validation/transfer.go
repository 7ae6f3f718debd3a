package validation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateTransferEnv checks where names of source containers come from. An
// entry that copies nothing is accepted, with a warning.
func validateTransferEnv(entries []appsv1beta1.TransferEnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range entries {
		from := entries[i].SourceContainerNameFrom
		if from != nil && from.FieldRef != nil {
			errs = append(errs, validateTransferPath(from.FieldRef, path.Index(i).Child("sourceContainerNameFrom", "fieldRef"))...)
		}
	}
	return errs
}

// validateTransferPath checks a fieldRef that names a label or annotation.
func validateTransferPath(ref *corev1.ObjectFieldSelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch ref.APIVersion {
	case "v1":
	case "":
		errs = append(errs, field.Required(path.Child("apiVersion"), "set it to v1"))
	default:
		errs = append(errs, field.Invalid(path.Child("apiVersion"), ref.APIVersion, "must be v1; correct it"))
	}
	at := path.Child("fieldPath")
	if ref.FieldPath == "" {
		return append(errs, field.Required(at, "name a label or annotation of the Pod, for example metadata.labels['app']"))
	}
	subscript, ok := validateSubscript(ref.FieldPath, at)
	if !ok {
		return append(errs, field.Invalid(at, ref.FieldPath, "error converting fieldPath: only metadata.labels['<key>'] and metadata.annotations['<key>'] can name a container; correct it"))
	}
	return append(errs, subscript...)
}
