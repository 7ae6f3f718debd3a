package webhooks

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/propagation"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// freshTimeout bounds how long a Pod waits for the snapshot to catch up. It
// leaves room within the 5 s that the API server waits for us.
const freshTimeout = 3 * time.Second

// freshness makes sure that the snapshot holds every SidecarSet that is stored:
// it asks the API server for the newest, and waits for the Catalog to have seen
// it. Requests share the question. It is safe for concurrent use.
type freshness struct {
	live     client.Reader
	catalog  versionWaiter
	timeline *snapshot.Timeline
	lists    *snapshot.Shared[struct{}, snapshot.Versions] // of all SidecarSets
}

// versionWaiter is the part of a Catalog that freshness needs.
type versionWaiter interface {
	// WaitFor returns once the snapshot holds SidecarSets in these versions or
	// later ones, or an error when ctx ends before.
	WaitFor(ctx context.Context, stored snapshot.Versions) error
	// Ahead returns a SidecarSet that the snapshot holds in a later version than
	// the stored one, but not later than the list; "" if there is none.
	Ahead(stored snapshot.Versions, list uint64) (name string, held uint64)
}

func newFreshness(live client.Reader, catalog versionWaiter, timeline *snapshot.Timeline) *freshness {
	f := &freshness{live: live, catalog: catalog, timeline: timeline}
	f.lists = snapshot.NewShared(1, f.list)
	return f
}

// ensure returns nil once the snapshot holds every SidecarSet that was stored
// when ensure was called. Otherwise it cannot be told what selects a Pod.
func (f *freshness) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	stored, err := f.lists.Get(ctx, struct{}{})
	if err != nil {
		return fmt.Errorf("asking for the newest SidecarSets, try again: %w", err)
	}
	if err := f.catalog.WaitFor(ctx, stored); err != nil {
		return fmt.Errorf("waiting for this replica of the operator to know the newest SidecarSets, try again: %w", err)
	}
	return nil
}

// list reads the metadata of all SidecarSets as they are stored now. It fails if
// that is older than what this process has seen of them: see Timeline.
func (f *freshness) list(ctx context.Context, _ struct{}) (snapshot.Versions, error) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	newest := f.timeline.Newest()
	list := snapshot.SidecarSetMetadata()
	if err := f.live.List(ctx, list); err != nil {
		return nil, err
	}
	if err := f.timeline.Check(newest, list.ResourceVersion); err != nil {
		return nil, err
	}
	stored := make(snapshot.Versions, len(list.Items))
	for i := range list.Items {
		version, err := propagation.ParseVersion(list.Items[i].ResourceVersion)
		if err != nil {
			return nil, fmt.Errorf("reading SidecarSet %s: %w", list.Items[i].Name, err)
		}
		stored[list.Items[i].Name] = version
	}
	// After a restore, other writes may have brought the list's version up again.
	if at, err := propagation.ParseVersion(list.ResourceVersion); err == nil {
		if name, held := f.catalog.Ahead(stored, at); name != "" {
			return nil, f.timeline.Report(&snapshot.RestoredError{Object: name, Seen: held, Stored: stored[name]})
		}
	}
	return stored, nil
}
