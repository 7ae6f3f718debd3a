// Package v1beta1 is the hub and storage version of the SidecarSet API. It
// holds types, wire constants and condition reasons, and no behaviour:
// defaults, validation and conversion are pure functions in internal/.
//
// The JSON is that of the OpenKruise 1.9 kind of the same group and name, so
// manifests, annotations and hashes written by either are read by the other.
// What is added is optional and additive: status.conditions,
// status.uninjectedPods and annotations under sidecarset.io/.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1beta1
