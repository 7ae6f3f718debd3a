package rollout

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Queue has the Pods of one SidecarSet that are outdated or in flight. It belongs to
// one goroutine: no method may run at the same time as another. The cost of a method is
// the number of changes times the logarithm of the waiting Pods. SetStrategy and
// SetContent visit all Pods, and so do Next and Report with a scatterStrategy.
type Queue struct {
	strategy *Strategy
	content  string
	epoch    uint64 // counts contents
	matched  int
	back     int
	replaced Replacements

	slots  map[types.UID]int32
	slab   []entry // slot 0 is the empty subtree of every tree
	vacant int32   // the first free slot; free slots are linked by left
	serial uint64  // of tickets and of new entries
	traits map[podstate.LabelSet]*traits

	waiting tree
	blocked map[inplace.Reason]*group
	written []types.UID // writes that the watch may not have delivered

	count counts
}

// counts are numbers of entries.
type counts struct {
	places      [places]int
	outdated    int
	used        int // Pods that count against the budget
	outstanding int // in flight with the current content, or being written
	evicting    int // taken to be evicted
	unrepaired  int // in flight, and not selected
	settling    int // in flight, and Settling
}

// entry is one Pod in the queue.
type entry struct {
	node
	class  class
	place  place
	write  write
	gone   bool // no longer matched; kept while it is being written
	traits *traits
	pod    Pod

	charged  bool   // of the last Take
	evicting bool   // the last Take is to be evicted
	ticket   uint64 // of the last Take
	epoch    uint64 // of the last Take
	version  uint64 // of the last write
	heldFor  inplace.Reason
}

// write is the state of the queue's last Take of a Pod.
type write uint8

const (
	none    write = iota
	taken         // returned by Next
	written       // and not yet delivered by the watch
	held
)

// place is the counter and tree that an entry belongs to. An entry that belongs nowhere
// is dropped.
type place uint8

const (
	nowhere place = iota
	current       // in flight, or needed by scatter
	waiting
	beingWritten
	inTransition
	unselected
	blocked
	places
)

// group is the Pods that are blocked for one reason.
type group struct {
	pods    tree
	message string
	speaker types.UID // the Pod that the message is about
}

// NewQueue returns a Queue without Pods and without a Strategy. Its Next returns nothing.
func NewQueue() *Queue {
	q := &Queue{strategy: &Strategy{off: NotUpdate}}
	q.reset(0)
	return q
}

// SetStrategy sets the Strategy. If it returns true, the caller has to call Set for all
// matched Pods again, because the Strategy needs Pods that the queue had dropped.
func (q *Queue) SetStrategy(s *Strategy) (again bool) {
	old := q.strategy
	q.strategy = s
	if !old.looksLike(s) {
		q.rebuild()
	}
	return s.scatters() && !old.scatters()
}

// SetContent sets the current content, by any text that differs between contents, such
// as the hash. If it changes, Pods are no longer held. The caller has to call Set for
// the Pods whose Way has changed, before Next.
func (q *Queue) SetContent(content string) {
	if content == q.content {
		return
	}
	q.content = content
	q.epoch++
	for i := range q.slab {
		if q.slab[i].write == held {
			q.change(int32(i), func(e *entry) { e.write = none })
		}
	}
}

// SetCounts sets the number of matched Pods, which is the base of percentages, and the
// number of those that carry the current content, are ready and are not in flight,
// which the first batch waits for. It returns true if more of the waiting Pods may be due
// than before.
func (q *Queue) SetCounts(matched, back int) (more bool) {
	limit, allowed, missing := q.updatable(), q.strategy.allowed(q.total()), q.missing()
	q.matched, q.back = matched, back
	return q.waiting.root != 0 && (q.updatable() > limit || q.strategy.allowed(q.total()) > allowed || q.missing() != missing)
}

// missing is the number of Pods that the first batch still needs.
func (q *Queue) missing() int { return max(0, q.strategy.firstBatch-q.back) }

// Replacements are the numbers about evicted Pods and their replacements.
type Replacements struct {
	// Missing is the number of evicted Pods without an available replacement. Each
	// counts against the budget.
	Missing int
	// Allowed is the largest number of Missing, in addition to the budget. If it is 0,
	// the default, no Pod is evicted, and Evictable Pods are blocked.
	Allowed int
	// Wait: no Pod is evicted now; Evictable Pods wait.
	Wait bool
}

// SetReplacements sets the numbers about evicted Pods.
func (q *Queue) SetReplacements(r Replacements) {
	again := (r.Allowed > 0) != (q.replaced.Allowed > 0)
	q.replaced = r
	for i := range q.slab {
		if e := &q.slab[i]; again && e.pod.Evictable {
			q.change(int32(i), func(*entry) {})
		}
	}
}

// total is the base of percentages: the matched Pods, or the outdated Pods if SetCounts
// is late and knows fewer.
func (q *Queue) total() int { return max(q.matched, q.count.outdated) }

// Set adds or replaces a matched Pod. A Pod that is current, not in flight and not
// reserved is dropped. changed is false if the Pod is the same as before.
func (q *Queue) Set(p Pod) (changed bool) {
	slot, known := q.slots[p.UID]
	switch {
	case !known && !q.keeps(&p):
		return false
	case !known:
		slot = q.add(p.UID)
	case q.slab[slot].pod == p && !q.slab[slot].gone:
		return false
	}
	q.change(slot, func(e *entry) {
		if e.write == held && (e.pod.Labels != p.Labels || e.pod.Way != p.Way || e.pod.Resize != p.Resize && p.Resize != inplace.ResizeOpen) {
			e.write = none
		}
		if e.traits == nil || e.pod.Labels != p.Labels {
			q.release(e)
			e.traits = q.traitsOf(p.Labels)
		}
		e.pod, e.gone = p, false
	})
	return true
}

// Remove drops a Pod that is no longer matched: it is gone, finished, or has other
// labels. Removing an unknown Pod does nothing.
func (q *Queue) Remove(uid types.UID) {
	slot, known := q.slots[uid]
	if !known {
		return
	}
	q.change(slot, func(e *entry) {
		q.release(e)
		if e.gone = true; e.write == held {
			e.write = none
		}
	})
}

// Release ends the hold of a Pod.
func (q *Queue) Release(uid types.UID) {
	if slot, known := q.slots[uid]; known && q.slab[slot].write == held {
		q.change(slot, func(e *entry) { e.write = none })
	}
}

// keeps reports whether the queue needs a Pod that it is not writing.
func (q *Queue) keeps(p *Pod) bool {
	return p.Way != inplace.Current || p.InFlight || q.strategy.scatters()
}

func (q *Queue) add(uid types.UID) int32 {
	slot := q.vacant
	if slot != 0 {
		q.vacant = q.slab[slot].left
	} else {
		slot = int32(len(q.slab))
		q.slab = append(q.slab, entry{})
	}
	q.slots[uid] = slot
	q.slab[slot] = entry{node: node{heap: q.nextHeap()}, pod: Pod{UID: uid}}
	return slot
}

// nextHeap returns the next pseudo-random number.
func (q *Queue) nextHeap() uint32 {
	q.serial++
	x := q.serial * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	return uint32(x >> 32)
}

// change removes an entry from its counters and tree, changes it, and adds it where it
// now belongs. An entry that belongs nowhere is dropped.
func (q *Queue) change(slot int32, how func(e *entry)) {
	e := &q.slab[slot]
	q.tally(e, -1)
	if t := q.treeOf(e); t != nil {
		t.remove(q.slab, slot)
	}
	uid, left := e.pod.UID, e.group()
	how(e)
	q.put(slot)
	if left != "" && left != e.group() {
		q.leave(left, uid)
	}
}

// put adds an entry to the counters and the tree of its place.
func (q *Queue) put(slot int32) {
	e := &q.slab[slot]
	e.place, e.class = q.placeOf(e), classOf(&e.pod)
	if e.place == nowhere {
		q.release(e)
		delete(q.slots, e.pod.UID)
		*e = entry{node: node{left: q.vacant}}
		q.vacant = slot
		return
	}
	q.tally(e, 1)
	if t := q.treeOf(e); t != nil {
		t.insert(q.slab, slot)
	}
}

func (q *Queue) placeOf(e *entry) place {
	way := e.pod.Way
	switch {
	case e.write == taken || e.write == written:
		return beingWritten
	case e.gone || !q.keeps(&e.pod):
		return nowhere
	case way == inplace.Current:
		return current
	case e.traits != nil && e.traits.unselected:
		return unselected
	case e.write == held || way == inplace.LeaveAlone || way == inplace.Recreate && (!e.pod.Evictable || q.replaced.Allowed == 0):
		return blocked
	case e.pod.InTransition:
		return inTransition
	}
	return waiting
}

func classOf(p *Pod) class {
	switch {
	case p.InFlight && p.Way == inplace.Recreate:
		return stranded
	case p.InFlight:
		return disturbed
	case p.Way == inplace.Recreate:
		return evicted
	case !p.Ready:
		return unavailable
	}
	return available
}

// tally adds an entry to the counters (n is 1), or removes it (n is -1).
func (q *Queue) tally(e *entry, n int) {
	if e.place == nowhere {
		return
	}
	q.count.places[e.place] += n
	if e.place == beingWritten && e.evicting {
		q.count.evicting += n
	}
	if e.pod.Way != inplace.Current && !e.gone {
		q.count.outdated += n
	}
	if e.pod.InFlight && e.pod.Settling && !e.gone {
		q.count.settling += n
	}
	if e.place == unselected && e.pod.InFlight {
		q.count.unrepaired += n
	}
	if e.place == inTransition && e.pod.Resize == inplace.ResizeMoving {
		q.count.outstanding += n
	}
	if charged := e.place == beingWritten && e.charged; charged || e.pod.InFlight && !e.gone {
		q.count.used += n
		if charged || e.pod.Way == inplace.Current {
			q.count.outstanding += n
		}
	}
}

// treeOf returns the tree for an entry's place, or nil.
func (q *Queue) treeOf(e *entry) *tree {
	switch e.place {
	case waiting:
		return &q.waiting
	case blocked:
		g := q.blocked[e.group()]
		if g == nil {
			g = &group{pods: tree{before: byName}}
			q.blocked[e.group()] = g
		}
		return &g.pods
	}
	return nil
}

// group returns why a Pod is blocked, and "" if it is not.
func (e *entry) group() inplace.Reason {
	switch {
	case e.place != blocked:
		return ""
	case e.write == held:
		return cmp.Or(e.heldFor, unexplained)
	}
	return cmp.Or(e.pod.Reason, unexplained)
}

// unexplained is the reason of Pods that are blocked without one.
const unexplained inplace.Reason = "Unexplained"

// leave removes a group that has become empty, or the message of a Pod that has left it.
func (q *Queue) leave(reason inplace.Reason, uid types.UID) {
	switch g := q.blocked[reason]; {
	case g.pods.root == 0:
		delete(q.blocked, reason)
	case g.speaker == uid:
		g.message, g.speaker = "", ""
	}
}

// traitsOf returns the traits of labels, and counts one more Pod that has them; nil if
// the strategy does not depend on labels.
func (q *Queue) traitsOf(set podstate.LabelSet) *traits {
	if !q.strategy.looksAtLabels() {
		return nil
	}
	t, ok := q.traits[set]
	if !ok {
		t = q.strategy.traitsOf(set.Labels())
		q.traits[set] = t
	}
	t.pods++
	return t
}

// release removes one Pod from its traits.
func (q *Queue) release(e *entry) {
	if e.traits == nil {
		return
	}
	if e.traits.pods--; e.traits.pods == 0 {
		delete(q.traits, e.pod.Labels)
	}
	e.traits = nil
}

// reset removes all Pods from the queue, and allocates memory for a number of them.
func (q *Queue) reset(capacity int) {
	q.slots = make(map[types.UID]int32, capacity)
	q.slab = make([]entry, 1, capacity+1)
	q.vacant, q.written = 0, nil
	q.traits = make(map[podstate.LabelSet]*traits)
	q.waiting = tree{before: before}
	q.blocked = make(map[inplace.Reason]*group)
	q.count = counts{}
}

// rebuild copies all entries into new memory, in the places that the strategy gives them.
func (q *Queue) rebuild() {
	entries, groups := q.slab, q.blocked
	q.reset(len(q.slots))
	for i := range entries {
		old := &entries[i]
		if old.place == nowhere {
			continue
		}
		slot := q.add(old.pod.UID)
		e := &q.slab[slot]
		node := e.node
		*e = *old
		e.node, e.traits = node, nil
		if !e.gone {
			e.traits = q.traitsOf(e.pod.Labels)
		}
		if e.write == written {
			q.written = append(q.written, e.pod.UID)
		}
		q.put(slot)
	}
	for reason, g := range groups {
		if now := q.blocked[reason]; now != nil && g.message != "" {
			now.message, now.speaker = g.message, g.speaker
		}
	}
}

// shrink frees memory if most of it is unused.
func (q *Queue) shrink() {
	if len(q.slab) > 16 && len(q.slots) < len(q.slab)/4 {
		q.rebuild()
	}
}
