package podstate

// StateBefore is how a Pod was when the operator wrote it.
type StateBefore uint8

// The values.
const (
	// WasReady Pods were Ready.
	WasReady StateBefore = iota
	// WasNotReadyByUpdate Pods were not Ready, because an earlier write of the operator had taken them
	// down.
	WasNotReadyByUpdate
	// WasNotReady Pods were not Ready for other reasons.
	WasNotReady
)

// stateNames are the values in the annotation.
var stateNames = [...]string{"Ready", "NotReadyByUpdate", "NotReady"}

// Written is what a Pod says about the operator's last write of it for one SidecarSet: an
// update in place, or a resize that is under way. Times are in seconds since 1970. The zero
// value is that of a Pod that was not written with the revision that it has. It is comparable.
type Written struct {
	// At is when the write was sent.
	At uint32
	// Carried is from when on the status shows that the write is carried out: the changed
	// containers have been started again, or need not be. It is later than the status itself where
	// only time shows that the status is not an older one. 0: this status does not show it.
	Carried uint32
	// Started is when the last of the changed containers first started; At if one was restarted
	// since, or if none is changed.
	Started uint32
	// StateBefore is how the Pod was when it was written.
	StateBefore StateBefore
	// Up: the changed containers are started and ready.
	Up bool
	// Why is what the Pod waits for, as far as the kubelet shows it.
	Why Wait
}

// Undone is a write of the operator that another program has taken back. The zero value is none.
type Undone struct {
	// At is when the write was sent, in seconds since 1970.
	At uint32
	// StateBefore is how the Pod was when it was written.
	StateBefore StateBefore
}

// Wait is what a Pod waits for whose update is not carried out.
type Wait uint8

// What Pods wait for. Trouble of a container is told by Container.Trouble.
const (
	// NoWait: the update is carried out, or nothing more is known.
	NoWait Wait = iota
	// WaitsForNode: the node has not acknowledged the write.
	WaitsForNode
	// WaitsForKill: the kubelet stops the old container. Until it has ended, the kubelet acts
	// on no further change.
	WaitsForKill
	// WaitsForStartupProbe: a native sidecar runs and has not passed its startup probe. Until
	// it has, or has failed for good, the kubelet acts on no further change.
	WaitsForStartupProbe
)

// MaxClockSkew is how far a time may lie in the future before it counts as one of a wrong clock, in
// seconds.
const MaxClockSkew = 60

// SentAt returns At, at most now. An At of more than MaxClockSkew in the future is of a leader whose
// clock was wrong. It counts as long ago.
func (w Written) SentAt(now int64) int64 {
	if at := int64(w.At); at <= now+MaxClockSkew {
		return min(at, now)
	}
	return 1
}

// CarriedAt returns Carried, with At as SentAt bounds it; 0: the status does not show it.
func (w Written) CarriedAt(now int64) int64 {
	if w.Carried == 0 {
		return 0
	}
	return max(1, int64(w.Carried)-int64(w.At)+w.SentAt(now))
}

// IsCarriedOut reports whether the kubelet has carried out the write at a time.
func (w Written) IsCarriedOut(now int64) bool { return w.Carried != 0 && now >= w.CarriedAt(now) }
