package certs

// RBAC that certificates need in every mode. What mode self needs in addition is
// in config/rbac/certificates_role.yaml; the components in config/certmanager
// replace that file.
//
// Every replica watches the published bundles. It may watch all
// MutatingWebhookConfigurations, because it looks for other injectors too.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=sidecarset-validating-webhook,verbs=list;watch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=sidecarsets.apps.kruise.io,verbs=list;watch
//
// The leader writes the bundle into these objects, and emits events about repairs.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-mutating-webhook,verbs=patch
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=sidecarset-validating-webhook,verbs=patch
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=sidecarsets.apps.kruise.io,verbs=patch
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=events.k8s.io,resources=events,namespace=sidecarset-system,verbs=create;patch
