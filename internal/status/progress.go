package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Progress remembers when a rollout last moved. The zero Progress has seen
// nothing. A new leader begins with it, so that a rollout may count as stalled later
// than with the leader before, and never too early. One that the status calls
// stalled stays so until it moves.
type Progress struct {
	seen  mark
	moved time.Time
}

// mark is what changes as a rollout moves. Readiness is not in it: an app that
// flaps is no progress.
type mark struct {
	generation        int64
	updated, inFlight int32
	paused            bool
}

// Observe returns when what is observed was first so. previous is the status as it is
// stored.
func (p *Progress) Observe(o Observation, previous appsv1beta1.SidecarSetStatus) time.Time {
	now := mark{o.Generation, o.Counters.Updated, o.Rollout.InFlight, o.Rollout.Paused}
	if p.moved.IsZero() && stalledSince(o, previous) {
		p.seen, p.moved = now, o.Now.Add(-stalledAfter)
	}
	if p.moved.IsZero() || now != p.seen || p.moved.After(o.Now) {
		p.seen, p.moved = now, o.Now
	}
	return p.moved
}

// stalledSince reports whether a status that an earlier leader wrote says of this
// generation and as many updated Pods that the rollout is stalled.
func stalledSince(o Observation, previous appsv1beta1.SidecarSetStatus) bool {
	c := meta.FindStatusCondition(previous.Conditions, appsv1beta1.ConditionProgressing)
	return c != nil && c.Reason == appsv1beta1.ReasonStalled && c.ObservedGeneration == o.Generation && previous.UpdatedPods == o.Counters.Updated
}
