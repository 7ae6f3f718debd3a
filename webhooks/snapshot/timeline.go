package snapshot

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
)

// Timeline notices that the cluster's state was restored from a backup. A process
// that has seen later versions must not go on: its watches ask for changes after a
// version that is not reached yet, so they stay silent, and its snapshot holds
// SidecarSets that are not stored any more.
//
// A list of SidecarSets without a resourceVersion is a quorum read of etcd, and
// its own resourceVersion is never below one that was seen before the list began.
// If it is, etcd was restored. Only versions of SidecarSets are compared: API
// servers may keep other kinds in another etcd.
//
// A Timeline is safe for concurrent use. A nil one notices nothing.
type Timeline struct {
	newest      atomic.Uint64
	reconnected chan struct{} // has capacity 1
	restored    chan error    // has capacity 1
}

// NewTimeline returns a Timeline that has seen nothing.
func NewTimeline() *Timeline {
	return &Timeline{reconnected: make(chan struct{}, 1), restored: make(chan error, 1)}
}

// Restored is sent to, once, when the cluster's state was restored.
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
func (t *Timeline) Newest() uint64 {
	if t == nil {
		return 0
	}
	return t.newest.Load()
}

// See notes the version of a SidecarSet, or of a list or bookmark of them.
func (t *Timeline) See(resourceVersion string) {
	version, err := entryplan.ParseVersion(resourceVersion)
	if t == nil || err != nil {
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
	version, err := entryplan.ParseVersion(resourceVersion)
	if t == nil || err != nil {
		return nil //nolint:nilerr // a version that is not a number has no order
	}
	if version < newest {
		return t.Report(&RestoredError{Seen: newest, Stored: version})
	}
	t.See(resourceVersion)
	return nil
}

// Report tells the process, and returns the error for the request at hand.
func (t *Timeline) Report(err *RestoredError) error {
	if t != nil {
		select {
		case t.restored <- err:
		default: // it is known
		}
	}
	return err
}

// see notes the version of what a list or a watch has brought.
func (t *Timeline) see(object runtime.Object) {
	if list, err := meta.ListAccessor(object); err == nil {
		t.See(list.GetResourceVersion())
	} else if one, err := meta.Accessor(object); err == nil {
		t.See(one.GetResourceVersion())
	}
}

// connected says that a watch has begun, perhaps since API servers were restarted.
func (t *Timeline) connected() {
	if t != nil {
		signal(t.reconnected)
	}
}

const (
	// timelineInterval is the time between two questions, timelinePause the least:
	// watches may be cut many times a second.
	timelineInterval = 10 * time.Second
	timelinePause    = time.Second
	// timelineTimeout bounds one question.
	timelineTimeout = 5 * time.Second
)

// TimelineCheck asks, in the background of every process, whether the cluster's
// state was restored: every few seconds, and when a watch has begun anew.
type TimelineCheck struct {
	timeline *Timeline
	live     client.Reader
	clock    clock.Clock
}

// NewTimelineCheck returns a TimelineCheck that asks live. Add it to the manager.
// The real clock is used if clk is nil.
func NewTimelineCheck(timeline *Timeline, live client.Reader, clk clock.Clock) *TimelineCheck {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &TimelineCheck{timeline: timeline, live: live, clock: clk}
}

// NeedLeaderElection reports false: any process may have seen an object that a restore
// has removed.
func (*TimelineCheck) NeedLeaderElection() bool { return false }

// Start asks until ctx ends.
func (c *TimelineCheck) Start(ctx context.Context) error {
	for {
		if err := c.ask(ctx); err != nil {
			logf.FromContext(ctx).WithName("timeline").V(1).Info("Could not compare what is stored with what was seen", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.clock.After(timelinePause):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.timeline.reconnected:
		case <-c.clock.After(timelineInterval - timelinePause):
		}
	}
}

// ask makes the smallest list there is.
func (c *TimelineCheck) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timelineTimeout)
	defer cancel()
	newest := c.timeline.Newest()
	list := SidecarSetMetadata()
	if err := c.live.List(ctx, list, client.Limit(1)); err != nil {
		return err
	}
	return c.timeline.Check(newest, list.ResourceVersion)
}

// SidecarSetMetadata returns an empty list of the metadata of SidecarSets, for a
// client to fill.
func SidecarSetMetadata() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(appsv1beta1.GroupVersion.WithKind(appsv1beta1.Kind.Kind + "List"))
	return list
}
