package podstate

// Was is how a Pod was when the operator wrote it.
type Was uint8

// The values.
const (
	// WasUp Pods were Ready.
	WasUp Was = iota
	// WasOurs Pods were not Ready, because an earlier write of the operator had taken them down.
	WasOurs
	// WasDown Pods were not Ready for other reasons.
	WasDown
)

// wasNames are the values in the annotation.
var wasNames = [...]string{"Up", "Ours", "Down"}

// Written is what a Pod says about the operator's last write of it for one SidecarSet: an
// update in place, or a resize that is under way. Times are in seconds since 1970. The zero
// value is that of a Pod that was not written with the content that it carries. It is comparable.
type Written struct {
	// At is when the write was sent.
	At uint32
	// Carried is from when on the status shows that the write is carried out: the changed
	// containers have been started anew, or need not be. It is later than the status itself where
	// only time shows that the status is not an older one. 0: this status does not show it.
	Carried uint32
	// Started is when the last of the changed containers first started; At if one was restarted
	// since, or if none is changed.
	Started uint32
	// Was is how the Pod was when it was written.
	Was Was
	// Up: the changed containers are started and ready.
	Up bool
	// Why is what the Pod waits for, as far as the kubelet shows it.
	Why Wait
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

// IsCarriedOut reports whether the kubelet has carried out the write at a time.
func (w Written) IsCarriedOut(now int64) bool { return w.Carried != 0 && now >= int64(w.Carried) }
