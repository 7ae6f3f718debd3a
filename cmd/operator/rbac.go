package operator

// Rights that no single part owns, for config/rbac. The other markers are next to the
// code that needs them.
//
// There are three roles. A marker without roleName is for every process
// (sidecarset-operator). roleName=sidecarset-webhook is for processes that answer
// webhooks, roleName=sidecarset-controller for processes that may lead. The default
// installation binds all three to one ServiceAccount. The hardened installation binds
// the last one only to processes that the network does not reach. So the rights to
// write Pods, webhook configurations and the CRD belong there.
//
// The leader's Lease, and the Event that names its holder.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=create
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=coordination.k8s.io,resources=leases,resourceNames=sidecarset-operator,namespace=sidecarset-system,verbs=get;update
// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=events,namespace=sidecarset-system,verbs=create;patch
//
// Every process follows SidecarSets, the labels of Namespaces and the recorded
// revisions. Replicas list the revisions of a SidecarSet that names one of them.
// +kubebuilder:rbac:groups=apps.kruise.io,resources=sidecarsets,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,namespace=sidecarset-system,verbs=list;watch
//
// The API server authenticates and authorizes clients of /metrics.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
