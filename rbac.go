package main

// What the process needs besides what stands on its parts, for config/rbac.
//
// The leader's lease, and an event that says who holds it.
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=create;get;update
// +kubebuilder:rbac:groups="",resources=events,namespace=sidecarset-system,verbs=create;patch
//
// Whoever reads /metrics is authenticated and authorized by the API server.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
