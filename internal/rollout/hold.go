package rollout

import "github.com/sidecarset/operator/internal/inplace"

// enough is how many Pods have to be available with a revision before new Pods get it.
const enough = 3

// Evidence is what running Pods show of the current revision, and may still show.
type Evidence struct {
	// Available Pods have been Ready for min-ready-seconds with it, whether they were updated or created with
	// it, and however they were before.
	Available int
	// Pending Pods may become available with it: they are updated and not available yet, have failed or
	// disappeared, or are going to be updated. Pods without a node are not among them, nor are those whose
	// last write was refused or undone.
	Pending int
}

// Wanted is how many Pods have to be available.
func (e Evidence) Wanted() int { return min(enough, e.Available+e.Pending) }

// Revisions are ControllerRevisions of one SidecarSet, by name.
type Revisions struct {
	// Latest is of the current revision, and Planned is the one that the Evidence is about.
	Latest, Planned string
	// Stable is status.stableRevision as it is stored, and Recorded says that it exists.
	Stable   string
	Recorded bool
}

// Hold reports whether Stable stays the stable revision. If not, Latest is the stable one from now on: enough
// Pods are available with it, or no running Pod can show anything of it. An edit never makes a revision
// stable, because Evidence about another revision counts for nothing.
func Hold(r Revisions, e Evidence) bool {
	switch {
	case r.Stable == "" || r.Stable == r.Latest || !r.Recorded:
		return false
	case r.Planned != r.Latest:
		return true
	}
	return e.Pending > 0 && e.Available < enough
}

// evidence counts Pods for the Evidence, where it is wanted.
type evidence struct {
	trial int // current, and not available yet
	// outdated Pods can be updated in place; repairs are those of them that need no budget.
	outdated, repairs int
}

// countEvidence counts a Pod with the current revision.
func (d *decision) countEvidence(l *look, state State) {
	if !d.Unstable || l.Dead || l.isUnassigned() {
		return
	}
	switch state {
	case Available:
		d.Evidence.Available++
	case None:
		d.countCreated(l)
	case Updating:
		if idle, _ := l.idle(d.strategy.minReady, d.now); !idle && !l.cannotShow() {
			d.trial++
		}
	case NotYetAvailable, FailedAfterUpdate:
		d.trial++
	}
}

// countCreated counts a Pod that was created with the current revision.
func (d *decision) countCreated(l *look) {
	if at := l.since + d.strategy.minReady; l.Summary.Ready && d.now >= at {
		d.Evidence.Available++
	} else if l.Summary.Ready {
		d.wake(at)
	}
}

// countOutdated counts a Pod that can be updated in place.
func (d *decision) countOutdated(l *look) {
	if !d.Unstable || l.isUnassigned() || l.cannotShow() {
		return
	}
	d.outdated++
	if created, _ := l.isNew(d.now); !l.Summary.Ready && !created {
		d.repairs++
	}
}

// cannotShow reports whether the last write of the Pod was refused or undone. The next one probably will be.
func (p *Pod) cannotShow() bool {
	return p.Backoff != nil && p.Backoff.Reason == inplace.WriteRejected || p.Undone.At != 0 && !p.Updated
}

// weighEvidence sets the Evidence when the Pods to write are known.
func (d *decision) weighEvidence() {
	if !d.Unstable {
		return
	}
	writes, outdated := 0, d.outdated
	if d.Numbers.Budget == 0 {
		outdated = d.repairs
	}
	for _, p := range d.Write {
		if !p.isUnassigned() && !p.cannotShow() {
			writes++
		}
	}
	d.Evidence.Pending = d.trial + d.Plan.Status.Disappeared + writes
	if d.strategy.off == NoRule {
		d.Evidence.Pending += max(0, min(d.room, outdated-writes))
	}
}
