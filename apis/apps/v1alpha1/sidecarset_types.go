package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// SidecarSet says which sidecars go into which Pods. Every Pod that its
// selectors match receives its containers, volumes and metadata while the Pod
// is being created. Containers are never added to Pods that already run. New
// manifests should use apps.kruise.io/v1beta1.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="MATCHED",type="integer",JSONPath=".status.matchedPods",description="Pods that have this SidecarSet's sidecars"
// +kubebuilder:printcolumn:name="UPDATED",type="integer",JSONPath=".status.updatedPods",description="Matched Pods that have the current revision"
// +kubebuilder:printcolumn:name="READY",type="integer",JSONPath=".status.readyPods",description="Matched Pods that are ready"
// +kubebuilder:printcolumn:name="INJECTION",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="The reason of the condition Ready, Injecting if it is True: whether the next Pod that is selected will be injected"
// +kubebuilder:printcolumn:name="ROLLOUT",type="string",JSONPath=`.status.conditions[?(@.type=="Progressing")].reason`,description="The reason of the condition Progressing: the state of the update of running Pods"
// +kubebuilder:printcolumn:name="AGE",type="date",JSONPath=".metadata.creationTimestamp",description="Time since the SidecarSet was created"
// +kubebuilder:printcolumn:name="UNINJECTED",type="integer",priority=1,JSONPath=".status.uninjectedPods",description="Pods that are selected and do not have the sidecars"
// +kubebuilder:printcolumn:name="REVISION",type="string",priority=1,JSONPath=".status.latestRevision",description="The ControllerRevision that records the current revision"
// +kubebuilder:printcolumn:name="STRATEGY",type="string",priority=1,JSONPath=".spec.updateStrategy.type",description="Whether running Pods are updated"
// +kubebuilder:printcolumn:name="PAUSED",type="boolean",priority=1,JSONPath=".spec.injectionStrategy.paused",description="Whether injection into new Pods is paused"
// +kubebuilder:printcolumn:name="DEGRADED",type="string",priority=1,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`,description="The condition Degraded: whether Pods cannot be updated until a user does something"
type SidecarSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what to inject, into which Pods, and how running Pods are updated.
	Spec SidecarSetSpec `json:"spec,omitempty"`
	// Status is written by the operator; what users write here is ignored.
	Status appsv1beta1.SidecarSetStatus `json:"status,omitempty"`
}

// SidecarSetList is a list of SidecarSets.
//
// +kubebuilder:object:root=true
type SidecarSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SidecarSet `json:"items"`
}

// SidecarSetSpec is the desired state.
type SidecarSetSpec struct {
	// selector chooses Pods by their labels. It is required, and it may not be
	// empty: to select every Pod, use an explicit expression. It is evaluated when
	// a Pod is created. A change of a running Pod's labels changes the counters in
	// status, not the Pod.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// namespace restricts injection to one namespace. It takes precedence over
	// namespaceSelector. v1beta1 shows it as the namespaceSelector {matchLabels:
	// {kubernetes.io/metadata.name: <namespace>}}.
	Namespace string `json:"namespace,omitempty"`
	// namespaceSelector restricts injection to namespaces with these labels. Absent
	// means every namespace. It is ignored if namespace is set.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// initContainers are injected into the Pod's initContainers, sorted by name
	// across all SidecarSets. An init container with restartPolicy Always is a
	// native sidecar: it starts before the app's containers, and a Job does not
	// wait for it to end. All other fields of a container of a Pod may be used too:
	// kubectl explain pod.spec.initContainers.
	// +patchMergeKey=name
	// +patchStrategy=merge
	InitContainers []appsv1beta1.SidecarContainer `json:"initContainers,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// containers are injected into the Pod's containers in the order given here.
	// At least one container or init container is required, each with a name and
	// an image. An update may remove containers, but not add or rename them.
	// All other fields of a container of a Pod may be used too: kubectl explain
	// pod.spec.containers.
	// +patchMergeKey=name
	// +patchStrategy=merge
	Containers []appsv1beta1.SidecarContainer `json:"containers,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// volumes that the containers above mount or use as devices. A volume is added
	// to the Pod only if an injected container uses it and the Pod has no volume of
	// that name. It has all fields of a Pod's volume: kubectl explain
	// pod.spec.volumes.
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Volumes []corev1.Volume `json:"volumes,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// updateStrategy is whether and how the sidecars of running Pods are updated after a
	// change of this SidecarSet. injectionStrategy.revision uses it too.
	UpdateStrategy appsv1beta1.SidecarSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// injectionStrategy says what new Pods receive.
	InjectionStrategy appsv1beta1.SidecarSetInjectionStrategy `json:"injectionStrategy,omitempty"`

	// imagePullSecrets are added to the Pod's imagePullSecrets, without duplicates,
	// if at least one container is injected. The Secrets must exist in the Pod's
	// namespace.
	// +patchMergeKey=name
	// +patchStrategy=merge
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// revisionHistoryLimit is the number of revisions to keep, including the
	// current one. Default 10, at least 1. Revisions that matched Pods have, and
	// the revision that injectionStrategy.revision names, are kept beyond it.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`

	// patchPodMetadata sets annotations on new Pods that this SidecarSet selects.
	// The administrator must allow the keys in the ConfigMap kruise-configuration
	// in the operator's namespace, or in the namespace of the operator's flag
	// --revision-namespace. An annotation key may be in one entry only.
	PatchPodMetadata []appsv1beta1.SidecarSetPatchPodMetadata `json:"patchPodMetadata,omitempty"`
}
