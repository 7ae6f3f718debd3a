// Package v1beta1 is the hub and storage version of the SidecarSet API. It has
// types, annotation keys and condition reasons, and no behaviour: defaults,
// validation and conversion are pure functions in internal/.
//
// The JSON is that of the OpenKruise 1.9 kind with the same group and name. So
// each program can read manifests, annotations and hashes that the other one
// wrote. The additions are optional: status.conditions, status.uninjectedPods
// and annotations under sidecarset.io/.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1beta1
