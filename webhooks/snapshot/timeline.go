package snapshot

import (
	"fmt"
	"sync/atomic"

	"github.com/sidecarset/operator/internal/podstate"
)

// Timeline notices that the cluster's state was restored from a backup. A process that has
// seen later versions must end. Its watches ask for the changes after a version that etcd
// has not reached again, so they stay silent, and its snapshot holds SidecarSets that are
// not stored any more.
//
// A list of SidecarSets without a resourceVersion is a quorum read of etcd, and
// its own resourceVersion is never below one that was seen before the list began.
// If it is, etcd was restored. Only versions of SidecarSets are compared: API
// servers may keep other kinds in another etcd.
//
// A Timeline is safe for concurrent use.
type Timeline struct {
	newest      atomic.Uint64
	reconnected chan struct{} // has capacity 1
	restored    chan error    // has capacity 1
}

// NewTimeline returns a Timeline that has seen nothing.
func NewTimeline() *Timeline {
	return &Timeline{reconnected: make(chan struct{}, 1), restored: make(chan error, 1)}
}

// Restored returns the channel that gets one error when the cluster's state was restored.
func (t *Timeline) Restored() <-chan error { return t.restored }

// RestoredError says that the cluster's state is older than what this process has
// seen of it.
type RestoredError struct {
	// Object is "" for the list of all SidecarSets.
	Object       string
	Seen, Stored uint64
}

func (e *RestoredError) Error() string {
	what := "the list of SidecarSets"
	if e.Object != "" {
		what = "SidecarSet " + e.Object
	}
	return fmt.Sprintf("the cluster's state (etcd) was restored from a backup: %s is of resourceVersion %d now, and this process has seen %d; "+
		"it ends, so that it starts again with what is stored", what, e.Stored, e.Seen)
}

// Newest is the highest version that was seen. Ask for it before a list begins.
func (t *Timeline) Newest() uint64 { return t.newest.Load() }

// See notes the version of a SidecarSet, or of a list or bookmark of them.
func (t *Timeline) See(resourceVersion string) {
	version, err := podstate.ParseVersion(resourceVersion)
	if err != nil {
		return // a version that is not a number has no order
	}
	for {
		newest := t.newest.Load()
		if version <= newest || t.newest.CompareAndSwap(newest, version) {
			return
		}
	}
}

// Check compares the version of a list of all SidecarSets as they are stored with
// the newest one that had been seen when the list began.
func (t *Timeline) Check(newest uint64, resourceVersion string) error {
	version, err := podstate.ParseVersion(resourceVersion)
	if err != nil {
		return nil //nolint:nilerr // a version that is not a number has no order
	}
	if version < newest {
		return t.Report(&RestoredError{Seen: newest, Stored: version})
	}
	t.See(resourceVersion)
	return nil
}

// Report sends the error to Restored, and returns it for the request at hand.
func (t *Timeline) Report(err *RestoredError) error {
	select {
	case t.restored <- err:
	default: // it is known
	}
	return err
}

// Reconnected returns the channel that gets a value when a watch begins or an informer
// lists. The reason may be that API servers were restarted, and etcd restored. So the
// receiver lists all SidecarSets.
func (t *Timeline) Reconnected() <-chan struct{} { return t.reconnected }
