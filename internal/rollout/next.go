package rollout

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
)

// Next reserves up to most Pods that may be written now, and returns them in the order in
// which they are to be written: first Pods in flight, then other Pods that are not available,
// then available Pods, and last the Pods that are to be evicted.
//
// The Pod watch has delivered everything up to the resourceVersion watched, and the
// caller has called Set and Remove for it. The API server delivers the changes of all
// Pods in the order of their resourceVersions, so this one number shows which writes
// Set has delivered.
func (q *Queue) Next(most int, watched uint64) []Take {
	q.deliver(watched)
	q.shrink()
	updatable := q.updatable()
	if most <= 0 || updatable <= 0 || q.strategy.stops() != Unlimited {
		return nil
	}
	var takes []Take
	first := q.line(updatable)
	for len(takes) < most {
		slot := q.pick(first)
		if slot == 0 {
			break
		}
		takes = append(takes, q.take(slot))
	}
	return takes
}

// updatable is the number of waiting Pods that partition does not exclude. Pods that
// cannot be taken do not count as excluded by partition (T12). Pods in flight come first
// among the updatable ones, wherever the order has them: they count against the budget, so
// that partition must not exclude one of them while it lets others go.
func (q *Queue) updatable() int {
	return q.waiting.len(q.slab) - q.strategy.kept(q.total())
}

// line returns a function that returns the first waiting Pod of a class, or 0. Only limit
// Pods are considered: those in flight, and then the first of the order.
func (q *Queue) line(limit int) func(class) int32 {
	if q.strategy.scatters() {
		return q.scattered(limit)
	}
	waiting := q.waiting.len(q.slab)
	return func(c class) int32 {
		slot, rank := q.waiting.first(q.slab, c)
		if c.inFlight() {
			rank = 0
		} else {
			rank += q.waiting.inFlight(q.slab)
		}
		if takenSince := waiting - q.waiting.len(q.slab); slot != 0 && rank < limit-takenSince {
			return slot
		}
		return 0
	}
}

// pick returns the next Pod to be taken, or 0.
//
// The first batch tests the content on Pods that are available, or were before the
// operator's update. Other Pods may be broken for another reason, so they wait. No more
// Pods are taken than the first batch still needs. If no such Pod is left, the other
// Pods are updated without waiting.
//
// Both numbers come from the Pods: how many carry the content and are ready
// (SetCounts), and how many are in flight with it. So a new leader continues where the
// last one stopped.
func (q *Queue) pick(first func(class) int32) int32 {
	missing := q.missing()
	trial := missing > 0
	outstanding := q.count.outstanding + q.replaced.Missing
	if !trial || outstanding < missing {
		if slot := first(disturbed); slot != 0 {
			return slot
		}
		if slot := first(stranded); slot != 0 && q.mayEvict() {
			return slot
		}
		if slot := first(unavailable); slot != 0 && !trial {
			return slot
		}
		if q.used() < q.strategy.allowed(q.total()) {
			if slot := first(available); slot != 0 {
				return slot
			}
			if slot := first(evicted); slot != 0 && q.mayEvict() {
				return slot
			}
		}
	}
	if trial && outstanding == 0 {
		return first(unavailable)
	}
	return 0
}

// mayEvict reports whether one more Pod may be evicted, apart from the budget.
func (q *Queue) mayEvict() bool {
	return !q.replaced.Wait && q.replaced.Missing+q.count.evicting < q.replaced.Allowed
}

// used is the number of Pods that count against the budget.
func (q *Queue) used() int { return q.count.used + q.replaced.Missing }

func (q *Queue) take(slot int32) Take {
	q.change(slot, func(e *entry) {
		q.serial++
		e.write, e.charged, e.ticket, e.epoch = taken, e.class != unavailable, q.serial, q.epoch
		e.evicting = e.pod.Way == inplace.Recreate
	})
	e := &q.slab[slot]
	return Take{
		UID: e.pod.UID, Namespace: e.pod.Namespace, Name: e.pod.Name,
		Way: e.pod.Way, Charged: e.charged, InFlight: e.pod.InFlight, Over: e.pod.Over, queue: q, ticket: e.ticket,
	}
}

// Written returns a Pod that was written. version is the resourceVersion that the API
// server returned; the Pod stays reserved until the watch has delivered it. If
// disturbed is false, the Pod was not available or none of its containers is restarted,
// so it does not count against the budget.
func (q *Queue) Written(t Take, version uint64, disturbed bool) {
	if slot := q.given(t); slot != 0 {
		q.change(slot, func(e *entry) { e.write, e.version, e.charged = written, version, disturbed })
		q.written = append(q.written, t.UID)
	}
}

// Hold returns a Pod that was not written and must not be taken again unchanged: it is
// held until its labels, its Way, its Resize or the current content changes, or Release
// is called. It does not block other Pods. If the content has changed since the Pod was
// taken, Hold is Retry. The report has the message of one held Pod for each reason,
// as it was given: the caller bounds it.
func (q *Queue) Hold(t Take, reason inplace.Reason, message string) {
	slot := q.given(t)
	switch {
	case slot == 0:
		return
	case q.slab[slot].gone || q.slab[slot].epoch != q.epoch:
		q.change(slot, func(e *entry) { e.write = none })
		return
	}
	q.change(slot, func(e *entry) { e.write, e.heldFor = held, reason })
	if g := q.blocked[q.slab[slot].group()]; g != nil && g.message == "" {
		g.message, g.speaker = message, t.UID
	}
}

// Retry returns a Pod that was not written and may be taken again immediately. To wait
// between attempts, use Hold and Release.
func (q *Queue) Retry(t Take) {
	if slot := q.given(t); slot != 0 {
		q.change(slot, func(e *entry) { e.write = none })
	}
}

// given returns the slot of a Pod whose Take has not been returned, or 0.
func (q *Queue) given(t Take) int32 {
	slot, known := q.slots[t.UID]
	if !known || t.queue != q || q.slab[slot].write != taken || q.slab[slot].ticket != t.ticket {
		return 0
	}
	return slot
}

// deliver ends the reservations of writes that the watch has delivered.
func (q *Queue) deliver(watched uint64) {
	var left []types.UID
	for _, uid := range q.written {
		slot, known := q.slots[uid]
		switch {
		case !known || q.slab[slot].write != written:
		case q.slab[slot].version > watched:
			left = append(left, uid)
		default:
			q.change(slot, func(e *entry) { e.write = none })
		}
	}
	q.written = left
}
