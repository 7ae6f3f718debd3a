package rollout

import (
	"maps"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
)

// Limit is why no further Pod is taken now.
type Limit string

// The limits. If several apply, the first of this list is reported.
const (
	// Unlimited: a Pod can be taken now, or none waits.
	Unlimited Limit = ""
	// Invalid: the update strategy or an annotation cannot be read, so no Pod is taken.
	// Report.Problem has the error.
	Invalid Limit = "InvalidStrategy"
	// NotUpdate: updateStrategy.type is NotUpdate.
	NotUpdate Limit = "NotUpdate"
	// Paused: updateStrategy.paused is true.
	Paused Limit = "Paused"
	// Partition: partition excludes all Pods that wait.
	Partition Limit = "Partition"
	// FirstBatch: the Pods of the first batch are not ready yet.
	FirstBatch Limit = "FirstBatch"
	// Budget: as many Pods count against the budget as maxUnavailable allows.
	Budget Limit = "MaxUnavailable"
)

// maxNames is the number of Pods that a group names.
const maxNames = 3

// Report is the state of a rollout.
type Report struct {
	// Outdated is the number of Pods that do not carry the current content, by the
	// watch: those that wait, are being written, are in transition, are not selected,
	// or are blocked.
	Outdated int
	// Partition is the number of matched Pods that partition excludes. It includes Pods
	// that do not wait, so it can be greater than Kept.
	Partition int
	// Waiting Pods can be taken, now or later; partition keeps Kept of them.
	Waiting, Kept int
	// Taken Pods are being written, or were and the watch has not delivered it.
	Taken int
	// Used is how many places of the budget are taken, and Allowed how many there
	// are. Used can be above Allowed: maxUnavailable may have been lowered.
	Used, Allowed int
	// Settling Pods are among the Used. The queue only waits until it is certain that they are
	// back.
	Settling int
	// InTransition Pods are skipped until the kubelet has acted on an earlier change.
	InTransition int
	// Unselected is the number of Pods that updateStrategy.selector excludes.
	Unselected int
	// Unrepaired Pods are in flight and outdated, and are not updated: selector or partition
	// excludes them. They keep their places of the budget.
	Unrepaired int
	// Blocked are Pods that cannot be updated or are held, by reason, sorted by reason. At
	// most three of each are named, the first by namespace and name. The message is that of
	// one Pod that is held.
	Blocked []appsv1beta1.SidecarSetPodGroup
	// Limit is why no further Pod is taken now.
	Limit Limit
	// Problem is the error in the strategy, if the Limit is Invalid.
	Problem error
}

// Report returns the state of the rollout. Its cost is the number of reasons times the
// logarithm of the Pods; with a scatterStrategy, that of Next.
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
	r.Settling = q.count.settling
	r.Unrepaired = q.count.unrepaired + max(0, q.waiting.inFlight(q.slab)-max(0, q.updatable()))
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
	stops, updatable := q.strategy.stops(), q.updatable()
	switch {
	case stops != Unlimited:
		return stops
	case q.count.places[waiting] == 0:
		return Unlimited
	case updatable <= 0:
		return Partition
	case q.pick(q.line(updatable)) != 0:
		return Unlimited
	case q.missing() > 0 && q.count.outstanding+q.replaced.Missing >= q.missing():
		return FirstBatch
	}
	return Budget
}
