package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Progress records when a rollout last made progress. A new leader starts with the zero
// Progress, so a rollout may become stalled later than under the last leader, but never
// too early. A rollout that is stalled in the stored status stays stalled until it
// makes progress.
type Progress struct {
	seen  mark
	moved time.Time
}

// mark has the values that change when a rollout makes progress. Readiness is not among
// them, because an app whose readiness alternates makes no progress.
type mark struct {
	generation        int64
	updated, inFlight int32
	paused            bool
}

// Observe returns the time of the last progress. previous is the stored status.
func (p *Progress) Observe(o Observation, previous appsv1beta1.SidecarSetStatus) time.Time {
	now := mark{o.Generation, o.Counters.Updated, o.Rollout.InFlight, o.Rollout.Paused || o.Rollout.NoneAllowed}
	if p.moved.IsZero() && stalledSince(o, previous) {
		p.seen, p.moved = now, o.Now.Add(-stalledAfter)
	}
	if p.moved.IsZero() || now != p.seen || p.moved.After(o.Now) {
		p.seen, p.moved = now, o.Now
	}
	return p.moved
}

// stalledSince reports whether the stored status has a stalled rollout for this
// generation and the same number of updated Pods.
func stalledSince(o Observation, previous appsv1beta1.SidecarSetStatus) bool {
	c := meta.FindStatusCondition(previous.Conditions, appsv1beta1.ConditionProgressing)
	return c != nil && c.Reason == appsv1beta1.ReasonStalled && c.ObservedGeneration == o.Generation && previous.UpdatedPods == o.Counters.Updated
}
