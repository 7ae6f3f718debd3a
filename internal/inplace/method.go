package inplace

// Method is how a running Pod can get the current revision of a SidecarSet.
type Method uint8

// The ways, from the cheapest to none.
const (
	// Current: the Pod has the revision.
	Current Method = iota
	// Images: the Pod gets the revision by other images in place.
	Images
	// Resize: the Pod gets the revision by other resources, and perhaps other images, in
	// place.
	Resize
	// Recreate: only a new Pod can get the revision.
	Recreate
	// LeaveAlone: the Pod must not be written.
	LeaveAlone
	// Unknown: the revision that the Pod records has not been compared with the current one yet.
	Unknown
)

// Reason is why a Pod is not updated in place, in one word. It is shown in status and Events.
type Reason string

// The reasons.
const (
	// ImmutableFieldChanged: a field of a sidecar changed that Kubernetes never
	// changes on a Pod.
	ImmutableFieldChanged Reason = "ImmutableFieldChanged"
	// RevisionUnknown: the revision that the Pod was injected with is no longer
	// recorded, so the change is unknown.
	RevisionUnknown Reason = "RevisionUnknown"
	// RunToCompletion: restarting the sidecar could end the Pod or fail its Job.
	RunToCompletion Reason = "RunToCompletion"
	// RunsOnce: the sidecar's own restartPolicy is not Always, so that the kubelet might never
	// start it again. The Pod does not end by itself.
	RunsOnce Reason = "RunsOnce"
	// RestartRules: a restart rule of the Pod could restart all of its containers.
	RestartRules Reason = "RestartRules"
	// MirrorPod: the Pod is the API server's copy of a static Pod.
	MirrorPod Reason = "MirrorPod"
	// NodeTooOld: the node's kubelet does not restart native sidecars (before 1.32).
	NodeTooOld Reason = "NodeTooOld"
	// NodeNotReady: the Pod is not Ready, and its node is not ready or gone. It would not act on
	// a change.
	NodeNotReady Reason = "NodeNotReady"
	// WriteRejected: the API server refused the write for this Pod.
	WriteRejected Reason = "WriteRejected"
	// WriteFailed: the API server did not carry out the write. It is tried again.
	WriteFailed Reason = "WriteFailed"
	// UpdateImpossible: the leader cannot compute the update of this Pod, or the write had
	// no effect. It stays so until the Pod or the SidecarSet is changed.
	UpdateImpossible Reason = "UpdateImpossible"
	// ResourcesHeldElsewhere: another writer has resized the sidecar.
	ResourcesHeldElsewhere Reason = "ResourcesHeldElsewhere"
	// ResizeDeferred: the node does not have enough free resources now. The kubelet
	// tries again.
	ResizeDeferred Reason = "ResizeDeferred"
	// ResizeInfeasible: the node can never give the sidecar these resources.
	ResizeInfeasible Reason = "ResizeInfeasible"
	// ResizeFailed: the kubelet could not give the sidecar these resources. It tries
	// again.
	ResizeFailed Reason = "ResizeFailed"
	// ResizeUnsupported: the API server does not resize Pods (before 1.33).
	ResizeUnsupported Reason = "ResizeUnsupported"
	// ResizeRestarts: the sidecar's resizePolicy asks for a restart, which could not be
	// distinguished from a crash.
	ResizeRestarts Reason = "ResizeRestarts"
	// UpdateTimedOut: the node has not carried out the update for ten minutes, and the Pod is Ready.
	UpdateTimedOut Reason = "UpdateTimedOut"
	// WriteReverted: another program took the update back.
	WriteReverted Reason = "WriteReverted"
	// RecordUnreadable: a record on the Pod cannot be read, so the Pod is not written.
	RecordUnreadable Reason = "RecordUnreadable"
)
