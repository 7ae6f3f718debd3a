package sidecarsets

// The validating webhook reads a SidecarSet live if the SidecarSet under review names it as
// its base, or would be refused because of it.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=apps.kruise.io,resources=sidecarsets,verbs=get
//
// In a ConfigMap the administrator says which annotations patchPodMetadata may set.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups="",resources=configmaps,resourceNames=kruise-configuration,namespace=sidecarset-system,verbs=get
//
// It asks the API server about containers and volumes, as a PodTemplate that is created under
// dry-run. RBAC does not tell a dry run from a real one.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups="",resources=podtemplates,namespace=sidecarset-system,verbs=create
