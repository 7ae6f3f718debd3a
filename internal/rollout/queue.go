package rollout

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Queue knows the Pods of one SidecarSet that are outdated, or were disturbed and
// are not back. It belongs to one goroutine: no method may run at the same time as
// another. A method costs what it changes, times the logarithm of the Pods that
// wait; SetStrategy, SetContent, and with scatterStrategy Next, pass over all of
// them.
type Queue struct {
	strategy *Strategy
	content  string
	epoch    uint64 // counts contents
	matched  int
	back     int
	replaced Replacements

	slots  map[types.UID]int32
	slab   []entry // slot 0 is the empty subtree of every tree
	vacant int32   // the first of the slots to be used again, linked by left
	serial uint64  // of tickets and of new entries
	traits map[podstate.LabelSet]*traits

	waiting tree
	blocked map[inplace.Reason]*group
	written []types.UID // that the watch has not delivered, perhaps

	count struct {
		places      [places]int
		outdated    int
		used        int // places of the budget
		outstanding int // disturbed for the wanted content, or about to be
		evicting    int // given out to be evicted
	}
}

// entry is what the queue keeps of one Pod.
type entry struct {
	node
	class  class
	place  place
	write  write
	gone   bool // not matched any more; kept while it is being written
	traits *traits
	pod    Pod

	charged  bool // of the last Take
	evicting bool // the last Take is to be evicted
	occupied bool
	ticket   uint64 // of the last Take
	epoch    uint64 // of the last Take
	version  uint64 // of the last write
	heldFor  inplace.Reason
}

// write is how far the queue's own doing with a Pod is.
type write uint8

const (
	none    write = iota
	taken         // given out by Next
	written       // and not delivered by the watch
	held
)

// place is where an entry counts. An entry that counts nowhere is not kept.
type place uint8

const (
	nowhere place = iota
	current       // in flight, or looked at by scatter
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
	speaker types.UID // whose message it is
}

// NewQueue returns a Queue without Pods and without a Strategy, which gives out
// nothing.
func NewQueue() *Queue {
	q := &Queue{strategy: unset}
	q.reset(0)
	return q
}

// SetStrategy makes a Strategy the one in force. If it returns true, the caller
// then calls Set for all matched Pods once more: the Strategy looks at Pods that
// the queue does not keep without it.
func (q *Queue) SetStrategy(s *Strategy) (again bool) {
	old := q.strategy
	q.strategy = s
	if !old.looksLike(s) {
		q.rebuild()
	}
	return s.scatters() && !old.scatters()
}

// SetContent says which content the Pods are to have; any text that differs between
// contents will do, such as the hash. If it changed, Pods that were held are not
// held any more. The caller then calls Set for the Pods whose Way has changed,
// before Next.
func (q *Queue) SetContent(content string) {
	if content == q.content {
		return
	}
	q.content = content
	q.epoch++
	for i := range q.slab {
		if q.slab[i].occupied && q.slab[i].write == held {
			q.change(int32(i), func(e *entry) { e.write = none })
		}
	}
}

// SetCounts says how many Pods the SidecarSet matches, and how many of them carry
// the wanted content, are ready and are not in flight. The first is what
// percentages are of; the second is what first-batch waits for.
func (q *Queue) SetCounts(matched, back int) { q.matched, q.back = matched, back }

// Replacements is what is known of Pods that were evicted to be replaced.
type Replacements struct {
	// Missing is how many of them have no replacement that is back. Each takes a place
	// of the budget.
	Missing int
	// Allowed is how many may be missing at once, beside the budget. If it is 0, as
	// it is in a queue that was told nothing, no Pod is evicted, and Evictable Pods
	// are blocked.
	Allowed int
	// Wait: no Pod is evicted now; Evictable Pods wait.
	Wait bool
}

// SetReplacements says what is known of the Pods that were evicted.
func (q *Queue) SetReplacements(r Replacements) {
	again := (r.Allowed > 0) != (q.replaced.Allowed > 0)
	q.replaced = r
	for i := range q.slab {
		if e := &q.slab[i]; again && e.occupied && e.pod.Evictable {
			q.change(int32(i), func(*entry) {})
		}
	}
}

// total is how many Pods percentages are of: not less than the queue knows of, should
// SetCounts be late.
func (q *Queue) total() int { return max(q.matched, q.count.outdated) }

// Set says what the watch says about a matched Pod. A Pod that is current, not in
// flight and not reserved is not kept. changed is false if it says nothing new.
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

// Remove says that a Pod is not matched any more: it is gone, finished, or has
// other labels. A Pod that is not known is no error.
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

// Release lets a Pod that is held wait for its turn again.
func (q *Queue) Release(uid types.UID) {
	if slot, known := q.slots[uid]; known && q.slab[slot].write == held {
		q.change(slot, func(e *entry) { e.write = none })
	}
}

// keeps reports whether the queue has to remember a Pod that it has not written.
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
	q.slab[slot] = entry{occupied: true}
	q.slab[slot].heap = q.nextHeap()
	q.slab[slot].pod.UID = uid
	return slot
}

// nextHeap returns the next of a sequence of numbers that look random.
func (q *Queue) nextHeap() uint32 {
	q.serial++
	x := q.serial * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	return uint32(x >> 32)
}

// change takes an entry out of everything it counts in, changes it, and puts it
// where it now belongs. An entry that belongs nowhere is given up.
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

// put puts an entry, which is nowhere, where it belongs.
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

// tally adds an entry to the counters, or takes it out.
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

// treeOf returns the tree that an entry is in by its place, or nil.
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

// group is why a Pod is blocked, and "" if it is not.
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

// leave gives up a group that has become empty, and a message of a Pod that has left.
func (q *Queue) leave(reason inplace.Reason, uid types.UID) {
	switch g := q.blocked[reason]; {
	case g.pods.root == 0:
		delete(q.blocked, reason)
	case g.speaker == uid:
		g.message, g.speaker = "", ""
	}
}

// traitsOf returns what the strategy makes of labels, and counts one more Pod that
// has them; nil if the strategy does not look at labels.
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

// release takes one Pod from its traits.
func (q *Queue) release(e *entry) {
	if e.traits == nil {
		return
	}
	if e.traits.pods--; e.traits.pods == 0 {
		delete(q.traits, e.pod.Labels)
	}
	e.traits = nil
}

// reset makes the queue empty of Pods, with room for some.
func (q *Queue) reset(room int) {
	q.slots = make(map[types.UID]int32, room)
	q.slab = make([]entry, 1, room+1)
	q.vacant, q.written = 0, nil
	q.traits = make(map[podstate.LabelSet]*traits)
	q.waiting = tree{before: before}
	q.blocked = make(map[inplace.Reason]*group)
	q.count.places = [places]int{}
	q.count.outdated, q.count.used, q.count.outstanding, q.count.evicting = 0, 0, 0, 0
}

// rebuild puts all entries into new memory, and where they belong by the strategy.
func (q *Queue) rebuild() {
	entries, groups := q.slab, q.blocked
	q.reset(len(q.slots))
	for i := range entries {
		old := &entries[i]
		if !old.occupied {
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

// shrink gives memory back once most of it is not used.
func (q *Queue) shrink() {
	if len(q.slab) > 16 && len(q.slots) < len(q.slab)/4 {
		q.rebuild()
	}
}
