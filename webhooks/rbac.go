package webhooks

// What the webhooks need besides what every process follows, for config/rbac. A
// Namespace that the Catalog does not know yet is read live, and so is a
// SidecarSet that another one names as its base.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=apps.kruise.io,resources=sidecarsets,verbs=get
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups="",resources=namespaces,verbs=get
//
// Which annotations patchPodMetadata may set is the administrator's to say.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups="",resources=configmaps,resourceNames=kruise-configuration,namespace=sidecarset-system,verbs=get
