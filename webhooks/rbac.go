package webhooks

// What the webhooks need, for config/rbac. The Catalog follows SidecarSets and
// the labels of Namespaces; a Namespace that it does not know yet is read live.
// +kubebuilder:rbac:groups=apps.kruise.io,resources=sidecarsets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
//
// Recorded revisions that SidecarSets inject.
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,namespace=sidecarset-system,verbs=get;list;watch
//
// Which annotations patchPodMetadata may set is the administrator's to say.
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=kruise-configuration,namespace=sidecarset-system,verbs=get
