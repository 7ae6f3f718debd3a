package entries

// Replicas of earlier versions publish Leases, and their leaders follow them. The
// rights stay, so that such a version works under these manifests: while this version is
// rolled out, and after `kubectl rollout undo`. See docs/design/0008.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=create;patch;delete
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=list;watch;delete
