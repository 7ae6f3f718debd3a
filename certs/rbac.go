package certs

// What certificates need in every mode, for config/rbac: every replica watches
// what API servers have been told, and the leader writes the bundle into it and
// tells people what it repaired. What a mode needs besides is the Role
// sidecarset-certificates in config/, which the components in config/certmanager
// replace.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-mutating-webhook,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-pods-0;sidecarset-pods-1;sidecarset-pods-2;sidecarset-pods-3;sidecarset-pods-4;sidecarset-pods-5;sidecarset-pods-6;sidecarset-pods-7;sidecarset-pods-8;sidecarset-pods-9;sidecarset-pods-10;sidecarset-pods-11;sidecarset-pods-12;sidecarset-pods-13;sidecarset-pods-14;sidecarset-pods-15,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=sidecarset-validating-webhook,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=sidecarsets.apps.kruise.io,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=sidecarset-system,verbs=create;patch
