package validation

import (
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateTransferEnv checks how entries find the name of their source container. An entry
// that copies nothing is accepted, with a warning.
func validateTransferEnv(entries []appsv1beta1.TransferEnvVar, path place) {
	for i := range entries {
		from := entries[i].SourceContainerNameFrom
		if from != nil && from.FieldRef != nil {
			validateTransferPath(from.FieldRef, path.Index(i).Child("sourceContainerNameFrom", "fieldRef"))
		}
	}
}

// validateTransferPath checks a fieldRef that names a label or annotation.
func validateTransferPath(ref *corev1.ObjectFieldSelector, path place) {
	requireText(ref.APIVersion, path.Child("apiVersion"), "set it to v1")
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		path.Child("apiVersion").invalid(ref.APIVersion, "must be v1; correct it")
	}
	at := path.Child("fieldPath")
	requireText(ref.FieldPath, at, "name a label or annotation of the Pod, for example metadata.labels['app']")
	if ref.FieldPath != "" && !validateSubscript(ref.FieldPath, at) {
		at.invalid(ref.FieldPath, "error converting fieldPath: only metadata.labels['<key>'] and metadata.annotations['<key>'] can name a container; correct it")
	}
}
