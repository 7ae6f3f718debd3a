package snapshot

import (
	"context"
	"fmt"
	"maps"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// Versions are resourceVersions of SidecarSets, by name. The version of one says
// nothing about another: a watch that begins again with a list brings them in any order.
type Versions map[string]uint64

// maxGone bounds how many deleted SidecarSets are remembered.
const maxGone = 1000

// advance notes the versions of the SidecarSets that the snapshot has now observed, and those that it
// has no more, and wakes the callers of WaitFor. If the snapshot is a new one, it sends to the
// channels of Notify.
func (c *Store) advance(taken pendingChanges, isNew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.versions, taken.versions)
	// A deleted SidecarSet may be in a list for which WaitFor waits, so some are kept.
	if len(c.versions) > len(c.compiled)+maxGone {
		maps.DeleteFunc(c.versions, func(name string, _ uint64) bool { _, ok := c.compiled[name]; return !ok })
	}
	c.gone.Insert(taken.gone...)
	for excess := c.gone.Len() - maxGone; excess > 0; excess-- {
		c.gone.PopAny() // a call that needs it costs a read
	}
	close(c.advanced)
	c.advanced = make(chan struct{})
	if isNew {
		for _, ch := range c.notify {
			Signal(ch)
		}
	}
}

// WaitFor returns nil once the snapshot has observed each of these SidecarSets in its version or a
// later one. For a SidecarSet that was deleted since, it does not wait. It returns an error
// if ctx ends before.
func (c *Store) WaitFor(ctx context.Context, stored Versions) error {
	for {
		behind, advanced := c.behind(stored)
		if behind == "" && c.state.Load() != nil {
			return nil
		}
		select {
		case <-advanced:
			continue
		case <-ctx.Done():
		}
		if behind == "" {
			return fmt.Errorf("there is no snapshot yet: %w", ctx.Err())
		}
		return fmt.Errorf("this replica does not know resourceVersion %d of SidecarSet %q yet: %w", stored[behind], behind, ctx.Err())
	}
}

// behind returns a SidecarSet that the snapshot has not observed in its version; "" if it holds
// all. advanced is closed when this may have changed.
func (c *Store) behind(stored Versions) (name string, advanced <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, version := range stored {
		if held, ok := c.versions[name]; !ok || held < version {
			return name, c.advanced
		}
	}
	return "", c.advanced
}

// Version is the newest resourceVersion that the snapshot has held under a name; 0 if none is
// known.
func (c *Store) Version(name string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.versions[name]
}

// HasObserved reports whether a call that requires a dependency can be answered: the snapshot has the
// SidecarSet in that generation or a later one, or this process has seen it stored and then gone.
// It does not report the latter while the snapshot still has the SidecarSet, or does not have it
// yet.
func (c *Store) HasObserved(n podwebhook.Dependency) bool {
	if has := c.get(n.Name); has.Is(n) {
		return has.Generation >= n.Generation
	}
	return c.isGone(n)
}

// Seen reports whether this process has seen the SidecarSet of a dependency stored. It may have
// forgotten a SidecarSet that was deleted.
func (c *Store) Seen(n podwebhook.Dependency) bool { return c.get(n.Name).Is(n) || c.isGone(n) }

// get returns the dependency of the SidecarSet that the snapshot has under a name; zero if it has none.
// It takes no lock.
func (c *Store) get(name string) (has podwebhook.Dependency) {
	if state := c.state.Load(); state != nil {
		has = state.dependencies[name]
	}
	return has
}

// isGone reports whether the SidecarSet of a dependency was stored, and is gone from the snapshot. A UID
// does not come back, so it is gone from every later snapshot.
func (c *Store) isGone(n podwebhook.Dependency) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone.Has(identity{n.Name, n.UID})
}
