package podstate

// Written is what a Pod says about the operator's last write of it for one SidecarSet: an
// update in place, or a resize that is under way. Times are in seconds since 1970. The zero
// value is that of a Pod that the operator has not written, or that OpenKruise has written
// since. It is comparable.
type Written struct {
	// At is when the write was sent.
	At uint32
	// Started is when the last of the changed containers was first started with its change;
	// At, if a container was restarted since, or if the write restarts none. 0: not yet.
	Started uint32
	// Turned is when the condition Ready last changed; 0 if the Pod does not say.
	Turned uint32
	// BackAt is when the update is over, unless the status changes: the containers run what
	// the spec asks for, and the Pod is Ready. It is later than the status itself where only
	// time shows that the status is not an older one. 0: never with this status.
	BackAt uint32
	// Disturbed: the Pod was available when it was written, or still counted by an earlier
	// write, and the write restarts or resizes a container.
	Disturbed bool
	// Ready: the Pod is running, and its condition Ready is true.
	Ready bool
	// Acknowledged: the Pod's status is of the generation that the write made, or the node
	// has visibly begun to carry it out.
	Acknowledged bool
	// Why is what the Pod waits for, as far as the kubelet shows it.
	Why Wait
}

// Wait is what a Pod that is not back waits for.
type Wait uint8

// What Pods wait for. Trouble of a container is told by Container.Trouble.
const (
	// NoWait: the Pod is back, or nothing more is known.
	NoWait Wait = iota
	// WaitsForNode: the node has not acknowledged the write.
	WaitsForNode
	// WaitsForKill: the kubelet stops the old container. Until it has ended, the kubelet acts
	// on no further change.
	WaitsForKill
	// WaitsForStartupProbe: a native sidecar runs and has not passed its startup probe. Until
	// it has, or has failed for good, the kubelet acts on no further change.
	WaitsForStartupProbe
	// WaitsForReady: the containers run, and the Pod is not Ready.
	WaitsForReady
)

const (
	// breakWindow is how long after the start of its new containers a Pod that turns not
	// Ready counts as broken by the update.
	breakWindow = 600
	// acknowledgeWithin is how long a node may take to acknowledge a write.
	acknowledgeWithin = 600
)

// Back reports whether the update is over at a time.
func (w Written) Back(now int64) bool { return w.At != 0 && w.BackAt != 0 && now >= int64(w.BackAt) }

// Ignored reports whether the Pod is Ready and its node has not acknowledged the write in
// time.
func (w Written) Ignored(now int64) bool {
	return w.At != 0 && w.Ready && !w.Acknowledged && !w.Back(now) && now >= int64(w.At)+acknowledgeWithin
}

// Counts reports whether the Pod uses up a place of maxUnavailable: it was available when the
// operator wrote it, and is not back, or has turned not Ready within ten minutes after its new
// containers first started.
func (w Written) Counts(now int64) bool {
	return w.Disturbed && !w.Back(now) && !w.Ignored(now) && !w.FailedLater()
}

// FailedLater reports whether the Pod turned not Ready more than ten minutes after its new
// containers first started.
func (w Written) FailedLater() bool {
	return w.Disturbed && !w.Ready && w.Started != 0 && int64(w.Turned) > int64(w.Started)+breakWindow
}

// Changes returns the next time after now at which an answer changes without an event; 0 if
// none will.
func (w Written) Changes(now int64) (next int64) {
	if w.At == 0 {
		return 0
	}
	if now < int64(w.BackAt) {
		next = int64(w.BackAt)
	}
	if at := int64(w.At) + acknowledgeWithin; w.Ready && !w.Acknowledged && now < at && (next == 0 || at < next) {
		next = at
	}
	return next
}
