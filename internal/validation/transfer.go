package validation

import (
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateTransferEnv checks how entries find the name of their source container: in a label
// or annotation of the Pod. An entry that copies nothing is accepted, with a warning.
func validateTransferEnv(entries []appsv1beta1.TransferEnvVar, path place) {
	for i := range entries {
		from := entries[i].SourceContainerNameFrom
		if from == nil || from.FieldRef == nil {
			continue
		}
		ref, at := from.FieldRef, path.Index(i).Child("sourceContainerNameFrom", "fieldRef")
		requireText(ref.APIVersion, at.Child("apiVersion"), "set it to v1")
		if ref.APIVersion != "" && ref.APIVersion != "v1" {
			at.Child("apiVersion").invalid(ref.APIVersion, "must be v1; correct it")
		}
		fieldPath := at.Child("fieldPath")
		requireText(ref.FieldPath, fieldPath, "name a label or annotation of the Pod, for example metadata.labels['app']")
		if ref.FieldPath != "" && !validateSubscript(ref.FieldPath, fieldPath) {
			fieldPath.invalid(ref.FieldPath, "error converting fieldPath: only metadata.labels['<key>'] and metadata.annotations['<key>'] can name a container; correct it")
		}
	}
}
