package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// SidecarSet says which sidecars go into which Pods. Every Pod that its
// selectors match receives its containers, volumes and metadata while the Pod
// is being created. Containers are never added to Pods that already run.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
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
	Status SidecarSetStatus `json:"status,omitempty"`
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
	// namespaceSelector restricts injection to namespaces with these labels. Absent
	// means every namespace. To select one namespace by its name, use matchLabels
	// {kubernetes.io/metadata.name: <name>}.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// initContainers are injected into the Pod's initContainers, sorted by name
	// across all SidecarSets. An init container with restartPolicy Always is a
	// native sidecar: it starts before the app's containers, and a Job does not
	// wait for it to end. All other fields of a container of a Pod may be used too:
	// kubectl explain pod.spec.initContainers.
	// +patchMergeKey=name
	// +patchStrategy=merge
	InitContainers []SidecarContainer `json:"initContainers,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
	// containers are injected into the Pod's containers in the order given here.
	// At least one container or init container is required, each with a name and
	// an image. An update may remove containers, but not add or rename them.
	// All other fields of a container of a Pod may be used too: kubectl explain
	// pod.spec.containers.
	// +patchMergeKey=name
	// +patchStrategy=merge
	Containers []SidecarContainer `json:"containers,omitempty" patchStrategy:"merge" patchMergeKey:"name"`
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
	UpdateStrategy SidecarSetUpdateStrategy `json:"updateStrategy,omitempty"`
	// injectionStrategy says what new Pods receive.
	InjectionStrategy SidecarSetInjectionStrategy `json:"injectionStrategy,omitempty"`

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
	PatchPodMetadata []SidecarSetPatchPodMetadata `json:"patchPodMetadata,omitempty"`

	// customVersion names the current revision, so that
	// injectionStrategy.revision can refer to it later. In v1alpha1 it is the
	// label apps.kruise.io/sidecarset-custom-version.
	CustomVersion string `json:"customVersion,omitempty"`
}

// SidecarContainer is a container of a Pod plus the rules of its injection.
// Every member of a Pod's container except resources.claims may be used. Members
// that are newer than the operator are kept as they were written.
type SidecarContainer struct {
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	corev1.Container `json:",inline"`

	// podInjectPolicy places the sidecar before (BeforeAppContainer) or after
	// (AfterAppContainer) the Pod's own containers of the same list. Default
	// BeforeAppContainer for containers, AfterAppContainer for initContainers.
	PodInjectPolicy PodInjectPolicyType `json:"podInjectPolicy,omitempty"`
	// upgradeStrategy says how the sidecar is replaced in running Pods; for a hot
	// upgrade, two containers are injected. Default ColdUpgrade. It has no effect
	// on an init container that is not a native sidecar.
	UpgradeStrategy SidecarContainerUpgradeStrategy `json:"upgradeStrategy,omitempty"`
	// shareVolumePolicy, if its type is enabled, also mounts into the sidecar every
	// volume that the app's containers mount, at the same paths, and copies the
	// variables that a subPathExpr refers to. A path that the sidecar itself uses,
	// as a mount or a device, stays as it is. Default disabled.
	ShareVolumePolicy ShareVolumePolicy `json:"shareVolumePolicy,omitempty"`
	// shareVolumeDevicePolicy, if its type is enabled, shares the raw block devices
	// of the app's containers in the same way, each volume once. Absent means
	// disabled.
	ShareVolumeDevicePolicy *ShareVolumePolicy `json:"shareVolumeDevicePolicy,omitempty"`
	// transferEnv copies environment variables from the app's containers into the
	// sidecar, with their value or valueFrom. A variable that the sidecar itself
	// sets stays as it is. Sidecars and init containers cannot be sources.
	TransferEnv []TransferEnvVar `json:"transferEnv,omitempty"`
	// resourcesPolicy computes the sidecar's resources from the resources of the app's
	// containers when the Pod is created. It cannot be combined with
	// resources.limits and resources.requests. Among initContainers only native
	// sidecars may have it.
	ResourcesPolicy *ResourcesPolicy `json:"resourcesPolicy,omitempty"`
}

// PodInjectPolicyType is the place of a sidecar relative to the app's containers.
type PodInjectPolicyType string

// The values of PodInjectPolicyType.
const (
	BeforeAppContainer PodInjectPolicyType = "BeforeAppContainer"
	AfterAppContainer  PodInjectPolicyType = "AfterAppContainer"
)

// SidecarContainerUpgradeType says how a sidecar is replaced in a running Pod.
type SidecarContainerUpgradeType string

// The values of SidecarContainerUpgradeType.
const (
	// SidecarContainerColdUpgrade restarts the sidecar with its new image.
	SidecarContainerColdUpgrade SidecarContainerUpgradeType = "ColdUpgrade"
	// SidecarContainerHotUpgrade injects the sidecar twice and lets a new
	// version take over from the old one without a gap.
	SidecarContainerHotUpgrade SidecarContainerUpgradeType = "HotUpgrade"
)

// SidecarContainerUpgradeStrategy says how one sidecar is replaced.
type SidecarContainerUpgradeStrategy struct {
	// upgradeType is ColdUpgrade (default) or HotUpgrade. It cannot be changed
	// once set.
	UpgradeType SidecarContainerUpgradeType `json:"upgradeType,omitempty"`
	// hotUpgradeEmptyImage is the image of the idle container of a hot-upgrade
	// pair. It is required with upgradeType HotUpgrade, and allowed only with it.
	HotUpgradeEmptyImage string `json:"hotUpgradeEmptyImage,omitempty"`
}

// ShareVolumePolicyType switches sharing on or off.
type ShareVolumePolicyType string

// The values of ShareVolumePolicyType.
const (
	ShareVolumePolicyEnabled  ShareVolumePolicyType = "enabled"
	ShareVolumePolicyDisabled ShareVolumePolicyType = "disabled"
)

// ShareVolumePolicy reports whether the app's volume mounts or devices are shared
// with a sidecar.
type ShareVolumePolicy struct {
	// type is enabled or disabled (default).
	Type ShareVolumePolicyType `json:"type,omitempty"`
}

// TransferEnvVar names environment variables to copy from a container of the
// Pod into the sidecar.
type TransferEnvVar struct {
	// sourceContainerName is the app container to copy from.
	SourceContainerName string `json:"sourceContainerName,omitempty"`
	// sourceContainerNameFrom takes that name from a label or annotation of the Pod
	// instead. It takes precedence over sourceContainerName.
	SourceContainerNameFrom *SourceContainerNameSource `json:"sourceContainerNameFrom,omitempty"`
	// envName is a variable to copy.
	EnvName string `json:"envName,omitempty"`
	// envNames are further variables to copy.
	EnvNames []string `json:"envNames,omitempty"`
}

// SourceContainerNameSource says where to read the name of a source container.
type SourceContainerNameSource struct {
	// fieldRef names a label, metadata.labels['<key>'], or an annotation,
	// metadata.annotations['<key>'], of the Pod. If the Pod does not have the key,
	// nothing is copied.
	FieldRef *corev1.ObjectFieldSelector `json:"fieldRef,omitempty"`
}

// TargetContainersMode says how the resources of several containers combine.
type TargetContainersMode string

// The values of TargetContainersMode.
const (
	TargetContainersModeSum TargetContainersMode = "sum"
	TargetContainersModeMax TargetContainersMode = "max"
)

// ResourcesPolicy computes a sidecar's resources from the resources of other containers.
type ResourcesPolicy struct {
	// targetContainersMode is sum or max: how the target containers' resources
	// combine into the variables cpu and memory.
	// +kubebuilder:validation:Enum=sum;max
	TargetContainersMode TargetContainersMode `json:"targetContainersMode"`
	// targetContainersNameRegex chooses the target containers by name (RE2, not
	// anchored) among the Pod's containers and native sidecars that no SidecarSet
	// injects. Default .*: all of them.
	// +kubebuilder:default=".*"
	TargetContainersNameRegex string `json:"targetContainersNameRegex,omitempty"`
	// resourcesExpr has the expressions. At least one of limits and requests is
	// required.
	ResourcesExpr ResourcesExpr `json:"resourcesExpr"`
}

// ResourcesExpr has the expressions for limits and requests.
type ResourcesExpr struct {
	// limits computes the sidecar's limits. If a target container has no limit, the
	// sidecar has none either.
	Limits *ResourceExprLimits `json:"limits,omitempty"`
	// requests computes the sidecar's requests. A container without a request
	// counts as 0. If a container has only a limit, Kubernetes sets the request to
	// it.
	Requests *ResourceExprRequests `json:"requests,omitempty"`
}

// ResourceExprLimits computes limits; an absent expression sets none.
type ResourceExprLimits struct {
	// cpu is an expression over the variable cpu, such as max(cpu*50%, 50m).
	CPU string `json:"cpu,omitempty"`
	// memory is an expression over the variable memory, such as 200Mi.
	Memory string `json:"memory,omitempty"`
}

// ResourceExprRequests computes requests; an absent expression sets none.
type ResourceExprRequests struct {
	// cpu is an expression over the variable cpu, such as cpu*10%.
	CPU string `json:"cpu,omitempty"`
	// memory is an expression over the variable memory, such as max(memory/4, 64Mi).
	Memory string `json:"memory,omitempty"`
}

// SidecarSetInjectionStrategy says what new Pods receive.
type SidecarSetInjectionStrategy struct {
	// paused stops injection into new Pods. Existing Pods keep their sidecars. Pods
	// that are created while paused do not get the sidecars later. Default false.
	Paused bool `json:"paused,omitempty"`
	// revision injects a recorded revision instead of the current spec. Absent
	// means the current spec.
	Revision *SidecarSetInjectRevision `json:"revision,omitempty"`
}

// SidecarSetInjectRevisionPolicy says when a recorded revision is injected.
type SidecarSetInjectRevisionPolicy string

// The values of SidecarSetInjectRevisionPolicy.
const (
	// AlwaysSidecarSetInjectRevisionPolicy injects the recorded revision into every
	// new Pod.
	AlwaysSidecarSetInjectRevisionPolicy SidecarSetInjectRevisionPolicy = "Always"
	// PartialSidecarSetInjectRevisionPolicy injects the recorded revision into the
	// new Pods that the update strategy keeps on the old revision, and the current
	// one into the others.
	PartialSidecarSetInjectRevisionPolicy SidecarSetInjectRevisionPolicy = "Partial"
)

// SidecarSetInjectRevision names a recorded revision. revisionName takes
// precedence over customVersion.
type SidecarSetInjectRevision struct {
	// customVersion is the spec.customVersion that the revision was recorded under.
	CustomVersion *string `json:"customVersion,omitempty"`
	// revisionName is the name of the revision's ControllerRevision.
	RevisionName *string `json:"revisionName,omitempty"`
	// policy is Always (default) or Partial. Always: every new Pod gets the
	// recorded revision. Partial: Pods that updateStrategy.selector does not select
	// get it, and so does a random share of the other Pods, if
	// updateStrategy.partition is a percentage. A partition that is a number has no
	// effect here. While updateStrategy.paused is true, every new Pod gets the
	// recorded revision.
	// +kubebuilder:validation:Enum=Always;Partial
	// +kubebuilder:default=Always
	Policy SidecarSetInjectRevisionPolicy `json:"policy,omitempty"`
}

// SidecarSetPatchPolicyType says what happens if the Pod already has the
// annotation.
type SidecarSetPatchPolicyType string

// The values of SidecarSetPatchPolicyType.
const (
	// SidecarSetRetainPatchPolicy keeps the Pod's value if it has one.
	SidecarSetRetainPatchPolicy SidecarSetPatchPolicyType = "Retain"
	// SidecarSetOverwritePatchPolicy replaces the Pod's value.
	SidecarSetOverwritePatchPolicy SidecarSetPatchPolicyType = "Overwrite"
	// SidecarSetMergePatchJsonPatchPolicy merges JSON into the Pod's value (RFC 7386).
	SidecarSetMergePatchJsonPatchPolicy SidecarSetPatchPolicyType = "MergePatchJson" //nolint:revive,staticcheck // wire name
)

// SidecarSetPatchPodMetadata sets annotations on Pods.
type SidecarSetPatchPodMetadata struct {
	// annotations to set on Pods; at least one. The operator's own keys are
	// refused.
	Annotations map[string]string `json:"annotations,omitempty"`
	// patchPolicy says what happens if the Pod already has the annotation. Retain
	// (default) keeps the Pod's value, Overwrite replaces it, and MergePatchJson
	// merges both as JSON objects (RFC 7386).
	PatchPolicy SidecarSetPatchPolicyType `json:"patchPolicy,omitempty"`
}

// SidecarSetUpdateStrategyType is whether running Pods are updated.
type SidecarSetUpdateStrategyType string

// The values of SidecarSetUpdateStrategyType.
const (
	// NotUpdateSidecarSetStrategyType does not change running Pods.
	NotUpdateSidecarSetStrategyType SidecarSetUpdateStrategyType = "NotUpdate"
	// RollingUpdateSidecarSetStrategyType updates running Pods in place, some at a
	// time.
	RollingUpdateSidecarSetStrategyType SidecarSetUpdateStrategyType = "RollingUpdate"
)

// SidecarSetUpdateStrategy is how running Pods are updated.
type SidecarSetUpdateStrategy struct {
	// type is RollingUpdate (default) or NotUpdate. RollingUpdate: the sidecars of
	// running Pods are updated in place, if only images, cpu and memory changed. NotUpdate: running
	// Pods keep their sidecars, and new Pods get the new ones.
	Type SidecarSetUpdateStrategyType `json:"type,omitempty"`
	// paused stops a rolling update where it is. Default false.
	Paused bool `json:"paused,omitempty"`
	// selector restricts the update to Pods with these labels. It cannot be
	// combined with partition. Absent means all matched Pods.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// partition is the number (5) or percentage ("10%") of matched Pods that stay
	// on the old revision. Default 0.
	Partition *intstr.IntOrString `json:"partition,omitempty"`
	// maxUnavailable is the number (2) or percentage ("20%") of matched Pods that
	// may be unavailable during the update. Default 1.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// priorityStrategy orders the Pods of the update by their labels.
	PriorityStrategy *UpdatePriorityStrategy `json:"priorityStrategy,omitempty"`
	// scatterStrategy spreads Pods that have the same label value over the update.
	ScatterStrategy []UpdateScatterTerm `json:"scatterStrategy,omitempty"`
}

// UpdatePriorityStrategy orders the Pods of an update. Only one of its two
// lists may be used.
type UpdatePriorityStrategy struct {
	// orderPriority sorts by the trailing number of label values, largest first.
	OrderPriority []UpdatePriorityOrderTerm `json:"orderPriority,omitempty"`
	// weightPriority sorts by the sum of the weights of the terms that match,
	// largest first.
	WeightPriority []UpdatePriorityWeightTerm `json:"weightPriority,omitempty"`
}

// UpdatePriorityOrderTerm names a label to order by.
type UpdatePriorityOrderTerm struct {
	// orderedKey is the label's key.
	OrderedKey string `json:"orderedKey"`
}

// UpdatePriorityWeightTerm gives weight to Pods with certain labels.
type UpdatePriorityWeightTerm struct {
	// weight is a number from 0 to 100; Pods with a higher sum are updated first.
	Weight int32 `json:"weight"`
	// matchSelector chooses the Pods that this weight is added to.
	MatchSelector metav1.LabelSelector `json:"matchSelector"`
}

// UpdateScatterTerm names a label whose Pods are spread over the update.
type UpdateScatterTerm struct {
	// key is the label's key.
	Key string `json:"key"`
	// value is the label's value; * means every value that occurs.
	Value string `json:"value"`
}

// SidecarSetStatus is what the operator has observed. Counters are correct about
// a second after the last change of a Pod.
type SidecarSetStatus struct {
	// observedGeneration is the metadata.generation that the rest of this status
	// describes. While it is lower, the status is out of date.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// matchedPods is the number of running Pods that have this SidecarSet's sidecars.
	MatchedPods int32 `json:"matchedPods"`
	// updatedPods is the number of matched Pods that have the current revision.
	UpdatedPods int32 `json:"updatedPods"`
	// readyPods is the number of matched Pods that are ready, and of which no update is
	// under way.
	ReadyPods int32 `json:"readyPods"`
	// updatedReadyPods is the number of matched Pods that are both updated and
	// ready.
	UpdatedReadyPods int32 `json:"updatedReadyPods,omitempty"`
	// latestRevision is the name of the current revision's ControllerRevision.
	LatestRevision string `json:"latestRevision,omitempty"`
	// stableRevision is the name of the last ControllerRevision with which enough running Pods were
	// available, or with which none could be updated. With sidecarset.io/new-pods: Stable, new Pods get it.
	StableRevision string `json:"stableRevision,omitempty"`
	// collisionCount is used to make names of ControllerRevisions unique.
	CollisionCount *int32 `json:"collisionCount,omitempty"`

	// uninjectedPods is the number of running Pods that the selectors match and
	// that lack at least one of the sidecars. Such a Pod was created before the
	// SidecarSet, while it was paused, or while API servers could not call its
	// webhook.
	UninjectedPods int32 `json:"uninjectedPods,omitempty"`
	// uninjected says why uninjectedPods lack sidecars, and names the first of them.
	Uninjected []SidecarSetPodGroup `json:"uninjected,omitempty"`
	// blockedPods are the matched Pods that are not updated and cannot be updated in
	// place, by reason. The operator updates the others nevertheless.
	BlockedPods []SidecarSetPodGroup `json:"blockedPods,omitempty"`
	// notRunningPods are the matched Pods one of whose sidecars does not run, by the kubelet's
	// reason. The message names the sidecar.
	NotRunningPods []SidecarSetPodGroup `json:"notRunningPods,omitempty"`
	// rolloutStartTime is when the first Pod was updated to latestRevision.
	RolloutStartTime *metav1.Time `json:"rolloutStartTime,omitempty"`
	// notReadyBefore is the number of matched Pods that were not ready when the rollout of
	// latestRevision began. As many updated Pods may be not ready later without stopping it.
	NotReadyBefore *int32 `json:"notReadyBefore,omitempty"`
	// disappearedPods is the number of Pods that were deleted or evicted while they were not ready
	// because of the rollout of latestRevision, or soon after. They use maxUnavailable until
	// disappearedUntil.
	DisappearedPods int32 `json:"disappearedPods,omitempty"`
	// disappearedUntil is at most ten minutes after the last of these was deleted or evicted.
	DisappearedUntil *metav1.Time `json:"disappearedUntil,omitempty"`
	// revisions are the matched Pods by the revision that they record, the revision
	// with most Pods first. There are at most ten with a name.
	Revisions []SidecarSetRevisionPods `json:"revisions,omitempty"`
	// conditions describe the state of this SidecarSet for users and for kubectl
	// wait. Accepted: the operator can use the object. Ready: the next Pod that it
	// selects gets what the spec says in the generation of the condition's
	// observedGeneration; absent while injectionStrategy.paused is true. Progressing:
	// running Pods are being updated. Degraded: Pods cannot be updated until a user does
	// something. Reconciling and Stalled are for other tools: new Pods do not get this
	// generation yet, or Degraded is True. They are absent when they are not True.
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SidecarSetPodGroup counts the Pods to which one reason applies, and names the
// first of them.
type SidecarSetPodGroup struct {
	// reason says in one word what is the matter with these Pods.
	Reason string `json:"reason"`
	// pods is their number.
	Pods int32 `json:"pods"`
	// first are the first of them in alphabetical order, as namespace/name. The
	// middle of a long name is left out.
	First []string `json:"first,omitempty"`
	// message is about the first Pod, if there is more to say than the reason says.
	Message string `json:"message,omitempty"`
}

// SidecarSetRevisionPods counts the matched Pods of one revision.
type SidecarSetRevisionPods struct {
	// name of the ControllerRevision. It is absent for the Pods of all
	// revisions that are not in the list, together with the Pods that record none.
	// The middle of a long name is left out.
	Name string `json:"name,omitempty"`
	// pods is the number of matched Pods that record this revision.
	Pods int32 `json:"pods"`
	// readyPods is how many of them are ready and run the images that they were
	// given.
	ReadyPods int32 `json:"readyPods"`
}
