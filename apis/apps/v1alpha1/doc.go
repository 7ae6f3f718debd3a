// Package v1alpha1 is the older, still served version of the SidecarSet API:
// types only. It differs from v1beta1, the storage version, in two places:
// spec.namespace exists only here, and spec.customVersion only there; v1alpha1
// has the label apps.kruise.io/sidecarset-custom-version instead. All types
// below spec and status are those of v1beta1, so that the JSON of both versions, and the
// hash of it, are equal.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1alpha1
