package v1beta1

// Annotations and labels that users and the webhooks keep on a SidecarSet.
const (
	// AnnotationHash holds the content hash of the SidecarSet's containers on
	// the SidecarSet and on its ControllerRevisions (plain text), and on Pods a
	// JSON object with one entry per injected SidecarSet.
	AnnotationHash = "kruise.io/sidecarset-hash"
	// AnnotationHashWithoutImage is AnnotationHash with every image left out. Two
	// revisions that agree on it differ in images only, so a running Pod can be
	// moved between them in place.
	AnnotationHashWithoutImage = "kruise.io/sidecarset-hash-without-image"

	// LabelCustomVersion is how a v1alpha1 manifest says spec.customVersion; it
	// is also set on ControllerRevisions.
	LabelCustomVersion = "apps.kruise.io/sidecarset-custom-version"

	// AnnotationCanary marks a SidecarSet as a canary when its value is exactly
	// "true" and AnnotationBase names another SidecarSet.
	AnnotationCanary = "apps.kruise.io/sidecarset-canary"
	// AnnotationBase names the SidecarSet that a canary replaces in the Pods
	// that both select.
	AnnotationBase = "apps.kruise.io/sidecarset-base"
)

// BaseOfCanary returns the name of the SidecarSet that one with these annotations
// is a canary of, "" if it is none.
func BaseOfCanary(annotations map[string]string) string {
	if annotations[AnnotationCanary] != "true" {
		return ""
	}
	return annotations[AnnotationBase]
}

// Annotations of ours that users may set on a SidecarSet. They are about calls of
// the Pod webhook that fail, not about Pods that it refuses.
const (
	// AnnotationFailurePolicy says what happens to a selected Pod while no
	// replica of the operator can be called: it is refused ("Fail", the
	// default), or created without sidecars ("Ignore").
	AnnotationFailurePolicy = "sidecarset.io/failure-policy"
	// AnnotationTimeoutSeconds is how long the API server waits for an answer
	// before that happens: 1 to 30, 5 by default.
	AnnotationTimeoutSeconds = "sidecarset.io/timeout-seconds"
	// MaxTimeoutSeconds is the longest that an API server waits.
	MaxTimeoutSeconds = 30
)

// AnnotationEnforce with the value "true" on a SidecarSet has nothing believed that
// a new Pod says about it. A Pod that was copied from an injected one, or whose
// author wants it to look injected, brings sidecars and records along; they are
// replaced by those of the SidecarSet at every call. "false" is the default.
const AnnotationEnforce = "sidecarset.io/enforce"

// Enforced says whether annotations are those of a SidecarSet about which new Pods
// are not believed.
func Enforced(annotations map[string]string) bool { return annotations[AnnotationEnforce] == "true" }

// Annotations, condition and environment variables on Pods.
const (
	// AnnotationInjectedList names the SidecarSets injected into a Pod, sorted
	// and joined by commas without spaces.
	AnnotationInjectedList = "kruise.io/sidecarset-injected-list"
	// AnnotationInPlaceUpdateState records, per SidecarSet, the image IDs that
	// containers had before their last in-place update.
	AnnotationInPlaceUpdateState = "kruise.io/sidecarset-inplace-update-state"
	// AnnotationWorkingHotUpgradeContainer maps a hot-upgrade sidecar to the one
	// of its two containers that does the work.
	AnnotationWorkingHotUpgradeContainer = "kruise.io/sidecarset-working-hotupgrade-container"
	// AnnotationVersionPrefix + container name holds the version of a
	// hot-upgrade container; AnnotationVersionAltPrefix that of its sibling.
	AnnotationVersionPrefix    = "version.sidecarset.kruise.io/"
	AnnotationVersionAltPrefix = "versionalt.sidecarset.kruise.io/"
	// AnnotationRevisionChoice remembers which revision chance has chosen for a
	// Pod: a JSON object of SidecarSets, each with the name of a
	// ControllerRevision or "Current". It is written where
	// injectionStrategy.revision has the policy Partial.
	AnnotationRevisionChoice = "sidecarset.io/revision-choice"

	// EnvInjected is set to "true" on every injected container.
	EnvInjected = "IS_INJECTED"
	// EnvVersion and EnvVersionAlt tell both containers of a hot-upgrade pair
	// their own version and their sibling's.
	EnvVersion    = "SIDECARSET_VERSION"
	EnvVersionAlt = "SIDECARSET_VERSION_ALT"
)

// Labels on ControllerRevisions.
const (
	// LabelSidecarSetName names the SidecarSet whose history a
	// ControllerRevision belongs to.
	LabelSidecarSetName = "kruise.io/sidecarset-name"
)

// Condition types and reasons of SidecarSet.status.conditions. They are an
// addition to the OpenKruise API; clients that do not know them ignore them.
const (
	// ConditionAccepted says whether the operator can use the stored object.
	// It is False for objects that were stored while no webhook checked them
	// and whose selectors, for example, cannot be compiled.
	ConditionAccepted = "Accepted"
	// ReasonAccepted is the reason of a true Accepted condition.
	ReasonAccepted = "Compiled"
	// ReasonInvalid is the reason of a false Accepted condition, and of a false
	// Ready condition where every selected Pod is refused; the message names the
	// field and the remedy.
	ReasonInvalid = "InvalidSpec"

	// ConditionReady says whether the next Pod that the SidecarSet selects will
	// be injected as its spec of observedGeneration says.
	ConditionReady = "Ready"
	// ReasonReady is the reason of a true Ready condition.
	ReasonReady = "InForce"
	// ReasonCoarseEntry is that of a true Ready condition where there are so
	// many SidecarSets that API servers send us all Pods, not the selected ones.
	ReasonCoarseEntry = "CoarseEntry"
	// ReasonPaused says that spec.injectionStrategy.paused keeps new Pods from
	// being injected.
	ReasonPaused = "Paused"
	// ReasonNothingSelected says that the selectors can select no Pod: they
	// contradict themselves, or name excluded namespaces only.
	ReasonNothingSelected = "NothingSelected"
	// ReasonNoReplica says that no replica of the operator answers webhooks.
	ReasonNoReplica = "NoReplica"
	// ReasonEntryMissing says that the webhook entry is not written yet.
	ReasonEntryMissing = "EntryMissing"
	// ReasonEntryRefused says that the API server does not take the webhook
	// entry; the message is its own.
	ReasonEntryRefused = "EntryRefused"
	// ReasonNotInForce says that an API server does not use the entry yet.
	ReasonNotInForce = "NotInForce"
	// ReasonCertificateNotTrusted says that API servers would not accept the
	// operator's certificate.
	ReasonCertificateNotTrusted = "CertificateNotTrusted"
	// ReasonCertificateExpired says that the operator's certificate has expired.
	ReasonCertificateExpired = "CertificateExpired"
	// ReasonProbeFailed says that a Pod which was tried under dry-run did not get
	// its sidecars.
	ReasonProbeFailed = "ProbeFailed"
	// ReasonAnotherInjector says that another program injects SidecarSets.
	ReasonAnotherInjector = "AnotherInjector"
)

// Reasons of Events about SidecarSets that are about no condition. An Event about
// the condition Ready has the condition's reason.
const (
	// ReasonRevisionNotRecorded says that the leader could not record the content
	// in a ControllerRevision.
	ReasonRevisionNotRecorded = "RevisionNotRecorded"
	// ReasonInjectionConflict says that a Pod was refused because two containers
	// would have the same name.
	ReasonInjectionConflict = "InjectionConflict"
	// ReasonEntryRestored says that another program had removed or changed the
	// webhook entry, and that the leader wrote it again.
	ReasonEntryRestored = "EntryRestored"
)
