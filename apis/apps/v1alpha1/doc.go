// Package v1alpha1 is the older, still served version of the SidecarSet API:
// types only. It differs from v1beta1, the storage version, in two places:
// spec.namespace exists only here, and spec.customVersion only there, where
// v1alpha1 uses the label apps.kruise.io/sidecarset-custom-version. Everything
// below spec is therefore shared with v1beta1 by alias, so that the JSON of the
// two, and the hash computed from it, cannot drift apart.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1alpha1
