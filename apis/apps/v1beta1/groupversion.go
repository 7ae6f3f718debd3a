package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every type in this package.
	GroupVersion = schema.GroupVersion{Group: "apps.kruise.io", Version: "v1beta1"}

	// Kind is the kind of SidecarSet, for owner references and unstructured reads.
	Kind = GroupVersion.WithKind("SidecarSet")

	// Resource is the plural resource that the API server serves SidecarSets under.
	Resource = GroupVersion.WithResource("sidecarsets")
)

// AddToScheme registers this package's types with a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &SidecarSet{}, &SidecarSetList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
