package inplace

// Way is how a running Pod can get the current content of a SidecarSet.
type Way uint8

// The ways, from the cheapest to none.
const (
	// Current: the Pod carries the content.
	Current Way = iota
	// Images: other images in place bring all of it.
	Images
	// Resize: other resources, and perhaps other images, in place bring all of it.
	Resize
	// Recreate: only a new Pod can have it.
	Recreate
	// LeaveAlone: the Pod must not be touched.
	LeaveAlone
)

// Reason says in one word why a Pod does not follow in place. It is shown in status
// and Events.
type Reason string

// The reasons.
const (
	// ImmutableFieldChanged: a field of a sidecar changed that Kubernetes never
	// changes on a Pod.
	ImmutableFieldChanged Reason = "ImmutableFieldChanged"
	// RevisionUnknown: the Pod was injected from a content that is no longer
	// recorded, so what changed since is not known.
	RevisionUnknown Reason = "RevisionUnknown"
	// RunToCompletion: restarting the sidecar could end the Pod or fail its Job.
	RunToCompletion Reason = "RunToCompletion"
	// RestartRules: a restart rule of the Pod could restart all of its containers.
	RestartRules Reason = "RestartRules"
	// MirrorPod: the Pod is the API server's copy of a static Pod.
	MirrorPod Reason = "MirrorPod"
	// NodeTooOld: the node's kubelet does not restart native sidecars (before 1.32).
	NodeTooOld Reason = "NodeTooOld"
	// NodeNotReady: the node is not ready or gone; it would not act on a change.
	NodeNotReady Reason = "NodeNotReady"
	// Refused: the API server refused the write for this Pod.
	Refused Reason = "Refused"
	// WriteFailed: the API server did not carry out the write. It is tried again.
	WriteFailed Reason = "WriteFailed"
	// ResourcesHeldElsewhere: another writer has resized the sidecar.
	ResourcesHeldElsewhere Reason = "ResourcesHeldElsewhere"
	// ResizeDeferred: the node has no room for the resources now. The kubelet tries
	// again.
	ResizeDeferred Reason = "ResizeDeferred"
	// ResizeInfeasible: the node can never give the sidecar these resources.
	ResizeInfeasible Reason = "ResizeInfeasible"
	// ResizeFailed: the kubelet could not give the sidecar these resources. It tries
	// again.
	ResizeFailed Reason = "ResizeFailed"
	// ResizeSilent: the kubelet does not say what became of a resize.
	ResizeSilent Reason = "ResizeSilent"
	// ResizeUnsupported: the API server does not resize Pods (before 1.33).
	ResizeUnsupported Reason = "ResizeUnsupported"
	// ResizeRestarts: the sidecar's resizePolicy asks for a restart, which could not
	// be told from others.
	ResizeRestarts Reason = "ResizeRestarts"
	// RecordUnreadable: a record on the Pod cannot be read, so the Pod is not written.
	RecordUnreadable Reason = "RecordUnreadable"
)
