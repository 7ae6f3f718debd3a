package rollout

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
)

// Next reserves up to most Pods that may be written now, and returns them in the
// order in which they are to be written: first those that the operator has disturbed
// before, then others that are not available, then available ones, and then those
// that are to be evicted.
//
// The Pod watch has delivered everything up to the resourceVersion watched, and the
// caller has called Set and Remove for it. The API server delivers the changes of
// all Pods in the order of their resourceVersions, so that one number tells which
// writes are part of what Set said.
func (q *Queue) Next(most int, watched uint64) []Take {
	q.deliver(watched)
	q.shrink()
	room := q.room()
	if most <= 0 || room <= 0 || q.strategy.stops() != Unlimited {
		return nil
	}
	var takes []Take
	first := q.line(room)
	for len(takes) < most {
		slot := q.pick(first)
		if slot == 0 {
			break
		}
		takes = append(takes, q.take(slot))
	}
	return takes
}

// room is how many of the waiting Pods partition does not keep. The Pods that cannot
// be taken are not counted as kept ones (T12).
func (q *Queue) room() int {
	return q.waiting.len(q.slab) - q.strategy.kept(q.total())
}

// line returns a function that names the first waiting Pod of a class, or 0; its Pods
// are the first so many of the order that have not been taken.
func (q *Queue) line(room int) func(class) int32 {
	if q.strategy.scatters() {
		return q.scattered(room)
	}
	return q.unscattered(room)
}

func (q *Queue) unscattered(room int) func(class) int32 {
	waiting := q.waiting.len(q.slab)
	return func(c class) int32 {
		slot, rank := q.waiting.first(q.slab, c)
		if takenSince := waiting - q.waiting.len(q.slab); slot != 0 && rank < room-takenSince {
			return slot
		}
		return 0
	}
}

// pick returns the next Pod to be taken, or 0.
//
// While the first batch is not done, only Pods that are available, or were when the
// operator disturbed them, tell whether the content works; others may be broken for
// another reason. So no more of the former are taken than are missing, and the others
// wait for them. If none is left to try, nothing is won by waiting.
//
// All of it is read from the Pods: how many carry the content and are back (SetCounts),
// and how many are in flight with it. So a new leader goes on where the last one was.
func (q *Queue) pick(first func(class) int32) int32 {
	missing := q.strategy.firstBatch - q.back
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

// mayEvict reports whether one more Pod may be evicted, whatever the budget says.
func (q *Queue) mayEvict() bool {
	return !q.replaced.Wait && q.replaced.Missing+q.count.evicting < q.replaced.Allowed
}

// used is how many places of the budget are taken.
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
		Way: e.pod.Way, Charged: e.charged, InFlight: e.pod.InFlight, ticket: e.ticket,
	}
}

// Written says that a Pod was written. The version is the resourceVersion that the
// API server returned; the Pod stays reserved until the watch has come that far. If
// disturbed is false, the Pod was not available or its containers were not touched,
// and its place of the budget is free again.
func (q *Queue) Written(t Take, version uint64, disturbed bool) {
	if slot := q.given(t); slot != 0 {
		q.change(slot, func(e *entry) { e.write, e.version, e.charged = written, version, disturbed })
		q.written = append(q.written, t.UID)
	}
}

// maxMessage bounds the message of a group.
const maxMessage = 256

// Hold gives back a Pod that was not written and must not be taken again as it is:
// it is held until its labels, its Way or its Resize change, the wanted content changes, or
// Release. It blocks no other Pod. If the wanted content has changed since the Pod
// was taken, Hold is Retry. The message of one held Pod of each reason is shown.
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
		g.message, g.speaker = strings.ToValidUTF8(message[:min(len(message), maxMessage)], ""), t.UID
	}
}

// Retry gives back a Pod that was not written and may be taken again at once. To
// wait between attempts, use Hold and Release.
func (q *Queue) Retry(t Take) {
	if slot := q.given(t); slot != 0 {
		q.change(slot, func(e *entry) { e.write = none })
	}
}

// given returns the slot of a Pod whose Take has not been given back, or 0.
func (q *Queue) given(t Take) int32 {
	slot, known := q.slots[t.UID]
	if !known || q.slab[slot].write != taken || q.slab[slot].ticket != t.ticket {
		return 0
	}
	return slot
}

// deliver ends the reservations of writes that Set has shown.
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
