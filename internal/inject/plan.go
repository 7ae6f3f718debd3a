package inject

import (
	"encoding/json"
)

// List is a list in a Pod's spec that injection adds to.
type List string

// The lists of a Pod's spec, in the order in which a Plan is applied.
const (
	InitContainers   List = "initContainers"
	Containers       List = "containers"
	Volumes          List = "volumes"
	ImagePullSecrets List = "imagePullSecrets"
)

// Plan says what injection would do to a Pod, and why each candidate was
// taken or skipped. An empty Plan is a valid answer. Bodies are shared with the
// compiled SidecarSets: read them, never change them.
type Plan struct {
	// Removals are containers that claim to be sidecars of a SidecarSet with the annotation
	// sidecarset.io/enforce, and that insertions take the place of. They are also containers
	// that, by the Pod's record, a SidecarSet injected before and brings no longer. They have
	// no Body. Their indexes are those of the Pod as it was submitted, and descend within
	// each list.
	Removals []Edit
	// Replacements are containers of ours that are out of date, and volumes of an
	// enforced SidecarSet. Their indexes are those of the lists without Removals.
	Replacements []Edit
	// Additions are to sidecars of an earlier call, which stay as they are otherwise: env,
	// volumeMounts, volumeDevices and resources that follow from what another webhook has
	// added to the Pod since. Their indexes are those of Replacements, which they follow.
	Additions []Edit
	// Insertions follow the additions. The index of each is its place in the
	// list once all insertions before it are done.
	Insertions []Edit
	// Annotations are the ones to set; they differ from the Pod's.
	Annotations map[string]string

	// Injected names the SidecarSets that take part in this Plan, in name order.
	Injected []string
	// Skipped names the other candidates, in name order, with the reason.
	Skipped []Skip
	// Replaces names, in name order, the SidecarSets that by its records the Pod has and
	// that this plan changes: it gives the Pod another revision of them, or it replaces or
	// removes a container of theirs for another SidecarSet. If a revision that the Pod has
	// is newer than the one in Input, this plan is wrong.
	Replaces []string

	// HeldBack names, in name order, the SidecarSets of which the Pod gets the stable revision, because
	// the current one is not stable yet. If it has become stable since Input was read, this plan is wrong.
	HeldBack []string

	// Warnings say what a SidecarSet asks for and this Pod does not get, although it is
	// injected. At most one for a SidecarSet and a kind.
	Warnings []Warning

	podHas map[string]string // the Pod's annotations as submitted; if none, the member is added whole
}

// Edit puts one object into a list of the Pod's spec.
type Edit struct {
	SidecarSet string
	List       List
	Index      int
	Name       string
	Body       json.RawMessage

	whole  bool   // the Pod lacks the list or has it empty, so that it is added whole
	member string // of the object, for Additions; with "/-" behind it the Body is one more element
}

// SkipReason says why a SidecarSet that selects a Pod leaves it alone. The
// values are fixed words, fit for a metric's label.
type SkipReason string

// The reasons for skipping a SidecarSet.
const (
	// SkipPaused: injectionStrategy.paused is set.
	SkipPaused SkipReason = "Paused"
	// SkipCanary: a canary of this SidecarSet selects the Pod and takes its place.
	SkipCanary SkipReason = "ReplacedByCanary"
	// SkipInjected: the Pod has this revision already.
	SkipInjected SkipReason = "AlreadyInjected"
	// SkipMirrorPod: the Pod mirrors a static Pod, which the kubelet reads from a file.
	SkipMirrorPod SkipReason = "MirrorPod"
)

// Skip is one SidecarSet that selects the Pod and adds nothing to it.
type Skip struct {
	SidecarSet string
	Reason     SkipReason
	By         string // the canary, for SkipCanary
}

// Empty reports whether the Plan leaves the Pod as it is.
func (p Plan) Empty() bool {
	return len(p.Removals)+len(p.Replacements)+len(p.Additions)+len(p.Insertions)+len(p.Annotations) == 0
}

const annotationsPath = "/metadata/annotations"
