package sidecarsets

// The validating webhook reads a SidecarSet live if the SidecarSet under review names it as
// its base, or would be refused because of it.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=apps.kruise.io,resources=sidecarsets,verbs=get
//
// In a ConfigMap the administrator says which annotations patchPodMetadata may set.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups="",resources=configmaps,resourceNames=kruise-configuration,namespace=sidecarset-system,verbs=get
