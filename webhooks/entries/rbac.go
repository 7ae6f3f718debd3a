package entries

// Replicas of earlier versions publish Leases, and the leaders of those versions follow
// them. The rights let such a version work under these manifests: while this version is
// rolled out, and after `kubectl rollout undo`. See docs/design/0008.
//
// TODO(#9): remove both rules in v1.0.0, with the policy sidecarset-webhook-leases of
// config/overlays/hardened. No release publishes Leases, so only commits before the first
// release need the rights. PREVIOUS_COMMIT in the Makefile has to be a later commit then:
// TestTwoVersionsSideBySide runs it under these manifests.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=create;patch;delete
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=list;watch;delete
