package certs

// What certificates need, for config/rbac. The Secret: any replica may create
// it and reads it, the leader rotates it; RBAC cannot restrict create to a name.
// +kubebuilder:rbac:groups="",resources=secrets,namespace=sidecarset-system,verbs=create
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=sidecarset-webhook-certs,namespace=sidecarset-system,verbs=get;update
//
// Every replica watches what the API server has been told, and the leader
// writes the bundle into it.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-mutating-webhook,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=sidecarset-validating-webhook,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=sidecarsets.apps.kruise.io,verbs=get;list;watch;patch
