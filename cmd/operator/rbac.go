package operator

// What the process needs besides what stands on its parts, for config/rbac.
//
// There are three roles. A marker without roleName is for every process
// (sidecarset-operator); roleName=sidecarset-webhook is for those that answer
// webhooks, and roleName=sidecarset-controller for those that may lead. The
// default installation gives all three to one ServiceAccount, the hardened one
// keeps the last from the processes that the network reaches: what writes Pods,
// webhook configurations or the CRD belongs there.
//
// The leader's lease, and an event that says who holds it.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=create
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=coordination.k8s.io,resources=leases,resourceNames=sidecarset-operator,namespace=sidecarset-system,verbs=get;update
// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=events,namespace=sidecarset-system,verbs=create;patch
//
// Every process follows SidecarSets, the labels of Namespaces and the recorded
// revisions.
// +kubebuilder:rbac:groups=apps.kruise.io,resources=sidecarsets,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,namespace=sidecarset-system,verbs=list;watch
//
// Whoever reads /metrics is authenticated and authorized by the API server.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
