package v1beta1

// Annotations and labels of a SidecarSet, which users and the webhooks write.
const (
	// AnnotationHash is the hash of the SidecarSet's containers. On the
	// SidecarSet and on its ControllerRevisions it is plain text. On Pods it is a
	// JSON object with one record per injected SidecarSet.
	AnnotationHash = "kruise.io/sidecarset-hash"
	// AnnotationHashWithoutImage is AnnotationHash without the images. If two
	// revisions have the same, they differ in images only, and a running Pod can be
	// moved between them in place.
	AnnotationHashWithoutImage = "kruise.io/sidecarset-hash-without-image"

	// LabelCustomVersion is spec.customVersion in a v1alpha1 manifest.
	// ControllerRevisions have it too.
	LabelCustomVersion = "apps.kruise.io/sidecarset-custom-version"

	// AnnotationAlphaSelector is "true" if a v1alpha1 manifest selects
	// one namespace by its name with namespaceSelector, not with namespace. The
	// conversion writes it, so that clients of v1alpha1 read what the user wrote.
	// Objects in v1alpha1 do not have it.
	AnnotationAlphaSelector = "sidecarset.io/v1alpha1-namespace-selector"

	// AnnotationCanary marks a SidecarSet as a canary if its value is exactly
	// "true" and AnnotationBase names another SidecarSet.
	AnnotationCanary = "apps.kruise.io/sidecarset-canary"
	// AnnotationBase names the SidecarSet that a canary replaces in the Pods
	// that both select.
	AnnotationBase = "apps.kruise.io/sidecarset-base"
)

// BaseOfCanary returns the name of the SidecarSet of which a SidecarSet with
// these annotations is a canary, or "" if it is not a canary.
func BaseOfCanary(annotations map[string]string) string {
	if annotations[AnnotationCanary] != "true" {
		return ""
	}
	return annotations[AnnotationBase]
}

// Annotations under sidecarset.io/ that users may set on a SidecarSet. They
// concern calls of the Pod webhook that fail, not Pods that it refuses.
const (
	// AnnotationFailurePolicy says what happens to a selected Pod while API servers
	// can call no replica: the Pod is refused ("Fail", the default), or created
	// without sidecars ("Ignore").
	AnnotationFailurePolicy = "sidecarset.io/failure-policy"
	// AnnotationTimeoutSeconds is how long an API server waits for an answer before
	// the failure policy applies: 1 to 30, 5 by default.
	AnnotationTimeoutSeconds = "sidecarset.io/timeout-seconds"
	// MaxTimeoutSeconds is the longest that an API server waits.
	MaxTimeoutSeconds = 30
)

// AnnotationEnforce with the value "true" on a SidecarSet makes the operator
// ignore what a new Pod says about it. A Pod that was copied from an injected
// one, or that its user made to look injected, has sidecars and records
// already. At every call the SidecarSet's replace them. "false"
// is the default.
const AnnotationEnforce = "sidecarset.io/enforce"

// Enforced reports whether a SidecarSet with these annotations is enforced: what
// new Pods say about it is ignored.
func Enforced(annotations map[string]string) bool { return annotations[AnnotationEnforce] == "true" }

// AnnotationDefaultContainer on a SidecarSet says which container the Pods that it is injected
// into name for kubectl, in the annotation kubectl.kubernetes.io/default-container. Without it,
// injection does not name one, and kubectl takes the first container, which may be a sidecar.
const AnnotationDefaultContainer = "sidecarset.io/default-container"

// DefaultContainerApp is the value of AnnotationDefaultContainer: the first container that no
// injector has brought. A container that the Pod, or patchPodMetadata, names already stays.
const DefaultContainerApp = "App"

// AnnotationMinReadySeconds on a SidecarSet is how many seconds a Pod has to be Ready to be
// available, as a Deployment's minReadySeconds; 30 without it. A rollout begins with one Pod, and at
// most as many updated Pods are not available as are.
const AnnotationMinReadySeconds = "sidecarset.io/min-ready-seconds"

// AnnotationNewPods on a SidecarSet says when new Pods get an edited revision: at once ("Latest", the default),
// or when three running Pods are available with it, or all if there are fewer ("Stable"). Until then they get
// status.stableRevision. It has no effect while injectionStrategy.revision is set.
const AnnotationNewPods = "sidecarset.io/new-pods"

// The values of AnnotationNewPods.
const (
	DefaultNewPods = "Latest"
	StableNewPods  = "Stable"
)

// LabelRequired on a SidecarSet makes API servers refuse a selected Pod that lacks its sidecars ("true"), or
// warn of it ("warn"), where config/required is applied.
const LabelRequired = "sidecarset.io/required"

// LabelNone is a label that no Pod has to have. A required SidecarSet whose selector is only that it does not exist
// selects all Pods, and a Pod that has it is refused.
const LabelNone = "sidecarset.io/none"

// AnnotationCurrentSince on a ControllerRevision is when its revision became the
// current one again after another one. Without it, that is when the ControllerRevision
// was created.
const AnnotationCurrentSince = "sidecarset.io/current-since"

// Annotations, condition and environment variables on Pods.
const (
	// AnnotationInjectedList names the SidecarSets injected into a Pod, sorted
	// and joined by commas without spaces.
	AnnotationInjectedList = "kruise.io/sidecarset-injected-list"
	// AnnotationInPlaceUpdateState records, per SidecarSet, the image IDs that
	// containers had before their last in-place update.
	AnnotationInPlaceUpdateState = "kruise.io/sidecarset-inplace-update-state"
	// AnnotationInPlace records, per SidecarSet, the operator's last update of the
	// Pod in place: to which revision, when, how the Pod was, and what its containers
	// were. docs/design/0009-running-pods.md has the format.
	AnnotationInPlace = "sidecarset.io/in-place"
	// AnnotationWorkingHotUpgradeContainer maps a hot-upgrade sidecar to the one of
	// its two containers that works.
	AnnotationWorkingHotUpgradeContainer = "kruise.io/sidecarset-working-hotupgrade-container"
	// AnnotationVersionPrefix + container name is the version of a hot-upgrade
	// container; AnnotationVersionAltPrefix is the same for the other container of the
	// pair.
	AnnotationVersionPrefix    = "version.sidecarset.kruise.io/"
	AnnotationVersionAltPrefix = "versionalt.sidecarset.kruise.io/"
	// AnnotationRevisionChoice records which revision was drawn for a Pod: a JSON
	// object that maps SidecarSets to the name of a ControllerRevision or to
	// "Current". It is written if injectionStrategy.revision has the policy
	// Partial.
	AnnotationRevisionChoice = "sidecarset.io/revision-choice"

	// PodConditionUpgradable has in its message, by SidecarSet, whether the Pod can be
	// updated in place: {"<SidecarSet>":true|false}.
	PodConditionUpgradable = "SidecarSetUpgradable"

	// EnvInjected is set to "true" on every injected container.
	EnvInjected = "IS_INJECTED"
	// EnvVersion is the version of the container, in both containers of a hot-upgrade pair.
	EnvVersion = "SIDECARSET_VERSION"
	// EnvVersionAlt is the version of the other container of the hot-upgrade pair.
	EnvVersionAlt = "SIDECARSET_VERSION_ALT"
)

// Labels on ControllerRevisions.
const (
	// LabelSidecarSetName names the SidecarSet whose history a
	// ControllerRevision belongs to.
	LabelSidecarSetName = "kruise.io/sidecarset-name"
)

// Condition types and reasons of SidecarSet.status.conditions. The OpenKruise
// API does not have them; clients that do not know them ignore them.
const (
	// ConditionAccepted reports whether the operator can use the stored object. It
	// is False, for example, for an object that was stored while no webhook checked
	// it and whose selectors do not compile.
	ConditionAccepted = "Accepted"
	// ReasonAccepted is the reason of a true Accepted condition.
	ReasonAccepted = "Accepted"
	// ReasonInvalid is the reason of a false Accepted condition, and of a false
	// Ready condition if every selected Pod is refused. The message names the field
	// and the remedy.
	ReasonInvalid = "InvalidSpec"

	// ConditionReady reports whether the next Pod that the SidecarSet selects will
	// be injected as its spec of observedGeneration says. It is absent while the user
	// pauses the injection: spec.injectionStrategy.paused.
	ConditionReady = "Ready"
	// ReasonInjecting is the reason of a true Ready condition.
	ReasonInjecting = "Injecting"
	// ReasonPaused is the reason of an Event: spec.injectionStrategy.paused keeps new Pods from
	// being injected. It is also a reason of a false Progressing condition, if Pods are not updated
	// because updateStrategy.paused is true or maxUnavailable is 0.
	ReasonPaused = "Paused"
	// ReasonNothingSelected says that the selectors cannot select any Pod: they
	// contradict themselves, or select only excluded namespaces.
	ReasonNothingSelected = "NothingSelected"
	// ReasonNoReplica says that no replica of the operator answers webhooks.
	ReasonNoReplica = "NoReplica"
	// ReasonPending says that the Pod webhook is not written yet, or that an API server may not use
	// it yet. It ends by itself.
	ReasonPending = "Pending"
	// ReasonWebhookConfigurationMissing says that the object for the Pod webhook does not exist. Only a
	// user can apply it: the message has the command.
	ReasonWebhookConfigurationMissing = "WebhookConfigurationMissing"
	// ReasonWebhookConfigurationFull says that the object for the Pod webhook has no room for it. The
	// message names the SidecarSets that fill it.
	ReasonWebhookConfigurationFull = "WebhookConfigurationFull"
	// ReasonWebhookModified says that another program keeps editing the Pod webhook. The message names
	// the program.
	ReasonWebhookModified = "WebhookModified"
	// ReasonNamespacesExcluded says that another program added a selector to the Pod webhook that leaves
	// out every namespace that the SidecarSet selects. The message has what it leaves out.
	ReasonNamespacesExcluded = "NamespacesExcluded"
	// ReasonWebhookRejected says that no Pod webhook can have the selectors, which were stored while
	// no webhook validated them. The message names the field.
	ReasonWebhookRejected = "WebhookRejected"
	// ReasonWebhookUnverified says that the Pod webhook is written, and that the operator cannot find out
	// whether API servers use it, because a quota, a policy or a missing right refuses its dry runs.
	// The message has the refusal.
	ReasonWebhookUnverified = "WebhookUnverified"
	// ReasonWebhookUnreachable says that an API server gets no answer from any replica, while others
	// do. The message names it.
	ReasonWebhookUnreachable = "WebhookUnreachable"
	// ReasonConflict says that the SidecarSet writes the same part of a Pod as one that was created
	// before, and that both may select one Pod. Such Pods are refused. Reviews refuse such
	// SidecarSets, unless both are created at the same moment.
	ReasonConflict = "Conflict"
	// ReasonRevisionNotStable says that new Pods are injected with an earlier revision, because
	// AnnotationNewPods is "Stable" and running Pods are not available with the current one yet.
	ReasonRevisionNotStable = "RevisionNotStable"
	// ReasonCertificateNotTrusted says that API servers would not accept the
	// operator's certificate.
	ReasonCertificateNotTrusted = "CertificateNotTrusted"
	// ReasonCertificateExpired says that the operator's certificate has expired.
	ReasonCertificateExpired = "CertificateExpired"
	// ReasonAnotherInjector says that another program injects SidecarSets.
	ReasonAnotherInjector = "AnotherInjector"

	// ConditionProgressing reports whether the operator is updating running Pods. If
	// it is False, the reason says whether that is because all of them are updated.
	ConditionProgressing = "Progressing"
	// ReasonRollingOut is the reason of a true Progressing condition.
	ReasonRollingOut = "RollingOut"
	// ReasonComplete says that every Pod that the SidecarSet selects has all sidecars of the
	// current revision, and that no Pod is updating or failed.
	ReasonComplete = "Complete"
	// ReasonPartitionReached says that updateStrategy.partition or
	// updateStrategy.selector excludes the Pods which are not updated.
	ReasonPartitionReached = "PartitionReached"
	// ReasonNotUpdate says that updateStrategy.type is NotUpdate.
	ReasonNotUpdate = "NotUpdate"
	// ReasonBlocked says that the other Pods cannot be updated: status.blockedPods has the
	// reasons, and status.uninjected has the reasons of Pods without the sidecars.
	ReasonBlocked = "PodsBlocked"
	// ReasonStalled says that Pods wait, and that no Pod was updated and none became available for ten
	// minutes. The message has the rule by which they wait, and the Pod that it waits for.
	ReasonStalled = "Stalled"
	// ReasonPodsNotReady says that updated Pods are not Ready, and that no other Pod waits for
	// them: all are updated, or the user keeps the others from being updated.
	ReasonPodsNotReady = "PodsNotReady"
	// ReasonDeleting says that the SidecarSet is being deleted, and waits for finalizers. Running
	// Pods are not updated.
	ReasonDeleting = "Deleting"

	// ConditionDegraded reports whether a user has to do something about running Pods.
	// Its reasons are ReasonBlocked, ReasonStalled, ReasonPodsNotReady, ReasonSidecarsNotRunning,
	// ReasonRevisionNotRecorded, ReasonInvalid and, if it is False, ReasonAsExpected.
	ConditionDegraded = "Degraded"
	// ReasonSidecarsNotRunning says that the sidecars of one in twenty Pods with the current
	// revision, or more, do not run: status.notRunningPods has the kubelet's reasons.
	ReasonSidecarsNotRunning = "SidecarsNotRunning"
	// ReasonRevisionNotRecorded says that the leader could not record the revision
	// in a ControllerRevision. It is the reason of an Event, too.
	ReasonRevisionNotRecorded = "RevisionNotRecorded"
	// ReasonAsExpected says that no action is needed.
	ReasonAsExpected = "AsExpected"

	// ConditionRequired reports whether API servers judge Pods as LabelRequired says. Only a
	// SidecarSet with that label has it.
	ConditionRequired = "Required"
	// ReasonPolicyBound says that the policy of config/required is installed, with the binding for the
	// value of the label.
	ReasonPolicyBound = "PolicyBound"
	// ReasonPolicyMissing says that the policy or its binding is not installed: API servers
	// refuse no Pod, and warn of none.
	ReasonPolicyMissing = "PolicyMissing"
	// ReasonPolicyModified says that the policy or its binding is not as this version of the operator has
	// it, or that the policy leaves out other namespaces than the operator. The message has the remedy.
	ReasonPolicyModified = "PolicyModified"

	// ConditionReconciling and ConditionStalled are for tools that read the status of any
	// object by kstatus. Each is True, or absent. Stalled is present while Degraded is True
	// for a reason other than ReasonBlocked and ReasonSidecarsNotRunning, and repeats it. Otherwise Reconciling is present
	// while Ready is not True for a reason that ends by itself. A rollout is neither, and nor are
	// sidecars that do not run.
	ConditionReconciling = "Reconciling"
	ConditionStalled     = "Stalled"
)

// What a Pod is doing that a rollout waits for, apart from the kubelet's reasons for a container that
// does not run. Messages of conditions have these words.
const (
	// ReasonNotAcknowledged says that the node has not acknowledged the update.
	ReasonNotAcknowledged = "NotAcknowledged"
	// ReasonTerminating says that the kubelet still stops the old container. Until it has, it
	// acts on no further change.
	ReasonTerminating = "Terminating"
	// ReasonStartupProbe says that a native sidecar has not passed its startup probe. Until it
	// has, or has failed for good, the kubelet acts on no further change.
	ReasonStartupProbe = "StartupProbe"
	// ReasonStarting says that the new container does not run yet.
	ReasonStarting = "Starting"
	// ReasonNotReady says that the containers run, and that the Pod is not Ready.
	ReasonNotReady = "NotReady"
	// ReasonMinReadySeconds says that the Pod is Ready, and not for long enough.
	ReasonMinReadySeconds = "MinReadySeconds"
	// ReasonNotScheduled says that the Pod has no node.
	ReasonNotScheduled = "NotScheduled"
	// ReasonUpdating says that the operator is about to update the Pod.
	ReasonUpdating = "Updating"
)

// Reasons of status.uninjected.
const (
	// ReasonOlderThanSidecarSet says that the Pod was created before the SidecarSet.
	ReasonOlderThanSidecarSet = "OlderThanSidecarSet"
	// ReasonMissedAtCreation says that the Pod was created after the SidecarSet and
	// has never been injected: API servers could not call the webhook, the SidecarSet
	// was paused, or it did not select the Pod then.
	ReasonMissedAtCreation = "MissedAtCreation"
	// ReasonSidecarsMissing says that the Pod lists the SidecarSet, and that it was
	// created without all of its sidecars: another program wrote the record.
	ReasonSidecarsMissing = "SidecarsMissing"
	// ReasonRecordRemoved says that the Pod was injected, and that the SidecarSet has
	// been removed from the list of the Pod.
	ReasonRecordRemoved = "RecordRemoved"
)

// Reasons of Events about SidecarSets that are about no condition. An Event about
// the condition Ready has the condition's reason.
const (
	// ReasonInjectionConflict says that a Pod was refused because of a SidecarSet: it
	// does not fit the Pod or another SidecarSet, or it cannot be injected at all.
	ReasonInjectionConflict = "InjectionConflict"
	// ReasonInjectionIncomplete says that a Pod was injected, and that it does not get all that
	// the SidecarSet asks for.
	ReasonInjectionIncomplete = "InjectionIncomplete"
	// ReasonNotUpgradable says that Pods cannot be updated in place. The Event is as
	// in OpenKruise.
	ReasonNotUpgradable = "NotUpgradablePods"
	// ReasonPodUpdateRejected says that the API server refused to update Pods.
	ReasonPodUpdateRejected = "PodUpdateRejected"
	// ReasonContainerReset says that the hot upgrade of a Pod was ended. The Event is as in
	// OpenKruise.
	ReasonContainerReset = "ResetContainerSucceed"
	// ReasonContainerNotReset says that the API server refused to end the hot upgrade of a Pod. The
	// Event is as in OpenKruise.
	ReasonContainerNotReset = "ResetContainerFailed"
)
