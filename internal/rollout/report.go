package rollout

import (
	"maps"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
)

// Limit is what keeps the next Pod from being taken.
type Limit string

// The limits. If several apply, the first of this list is reported.
const (
	// Unlimited: a Pod can be taken now, or none waits.
	Unlimited Limit = ""
	// Invalid: the update strategy or an annotation cannot be understood, so that
	// nothing is taken. Report.Problem says which.
	Invalid Limit = "InvalidStrategy"
	// NotUpdate: updateStrategy.type is NotUpdate.
	NotUpdate Limit = "NotUpdate"
	// Paused: updateStrategy.paused is true.
	Paused Limit = "Paused"
	// Partition: the Pods that wait are those that partition keeps.
	Partition Limit = "Partition"
	// FirstBatch: the Pods of the first batch are not back.
	FirstBatch Limit = "FirstBatch"
	// Budget: as many Pods are disturbed as maxUnavailable allows.
	Budget Limit = "MaxUnavailable"
)

// maxNames is how many Pods a group names.
const maxNames = 3

// Report is what a rollout shows of itself.
type Report struct {
	// Outdated Pods do not carry the wanted content, as far as the watch says:
	// those that wait, are being written, are in transition, are not selected, and
	// are blocked.
	Outdated int
	// Partition is how many matched Pods partition keeps as they are. Pods that do
	// not wait are among them, so that it can be more than Kept.
	Partition int
	// Waiting Pods can be taken, now or later; partition keeps Kept of them.
	Waiting, Kept int
	// Taken Pods are being written, or were and the watch has not delivered it.
	Taken int
	// Used is how many places of the budget are taken, and Allowed how many there
	// are. Used can be above Allowed: maxUnavailable may have been lowered.
	Used, Allowed int
	// InTransition Pods are skipped until the kubelet has acted on an earlier change.
	InTransition int
	// Unselected Pods are not selected by updateStrategy.selector.
	Unselected int
	// Blocked are Pods that cannot follow or are held, by reason, sorted by reason. At
	// most three of each are named, the first by namespace and name. The message is that
	// of one Pod that is held.
	Blocked []appsv1beta1.SidecarSetPodGroup
	// Limit is why no Pod is taken now.
	Limit Limit
	// Problem says what cannot be understood, if the Limit is Invalid.
	Problem error
	// Done: no Pod is disturbed or being written, and none will be taken unless
	// something changes. Pods that are kept, unselected or blocked may be outdated.
	Done bool
}

// Report returns what the queue is about. It costs as much as there are reasons,
// times the logarithm of the Pods.
func (q *Queue) Report() Report {
	r := Report{
		Outdated:     q.count.outdated,
		Waiting:      q.count.places[waiting],
		Taken:        q.count.places[beingWritten],
		Used:         q.used(),
		Allowed:      q.strategy.allowed(q.total()),
		InTransition: q.count.places[inTransition],
		Unselected:   q.count.places[unselected],
		Limit:        q.limit(),
		Problem:      q.strategy.problem,
	}
	r.Partition = q.strategy.kept(q.total())
	r.Kept = min(r.Partition, r.Waiting)
	r.Done = r.Waiting == r.Kept && r.Taken == 0 && r.Used == 0 && r.InTransition == 0 && r.Limit != Invalid
	for _, reason := range slices.Sorted(maps.Keys(q.blocked)) {
		r.Blocked = append(r.Blocked, q.group(reason))
	}
	return r
}

func (q *Queue) group(reason inplace.Reason) appsv1beta1.SidecarSetPodGroup {
	from := q.blocked[reason]
	g := appsv1beta1.SidecarSetPodGroup{Reason: string(reason), Pods: int32(from.pods.len(q.slab)), Message: from.message}
	from.pods.walk(q.slab, func(slot int32) bool {
		p := &q.slab[slot].pod
		g.First = append(g.First, p.Namespace.Value()+"/"+p.Name)
		return len(g.First) < maxNames
	})
	return g
}

func (q *Queue) limit() Limit {
	stops, room := q.strategy.stops(), q.room()
	switch {
	case stops != Unlimited:
		return stops
	case q.count.places[waiting] == 0:
		return Unlimited
	case room <= 0:
		return Partition
	case q.pick(q.unscattered(room)) != 0:
		return Unlimited
	case q.strategy.firstBatch > q.back && q.count.outstanding+q.replaced.Missing >= q.strategy.firstBatch-q.back:
		return FirstBatch
	}
	return Budget
}
