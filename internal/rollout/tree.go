package rollout

// class is the kind of a waiting Pod, in the order in which Pods are taken.
type class uint8

const (
	disturbed   class = iota // in flight and outdated again: it counts against the budget already
	stranded                 // the same, and to be evicted
	unavailable              // not ready: does not count against the budget
	available                // counts against the budget
	evicted                  // counts against the budget until its replacement is available
	classes
)

// inFlight reports whether Pods of the class hold places of the budget.
func (c class) inFlight() bool { return c == disturbed || c == stranded }

// tree is an ordered set of entries that knows how many of each class come before an entry. It
// is a treap: its shape depends on the pseudo-random numbers of the entries, so it is balanced
// whatever the order is. An entry is named by its slot; 0 is none. Every entry is in at most
// one tree, and does not change while it is there.
type tree struct {
	root   int32
	before func(a, b *entry) bool
}

// node is the part of an entry that its tree owns.
type node struct {
	left, right int32
	size        int32          // of the subtree
	counts      [classes]int32 // of the subtree, by class
	heap        uint32
}

func (t *tree) len(slab []entry) int { return int(slab[t.root].size) }

func (t *tree) insert(slab []entry, slot int32) {
	e := &slab[slot]
	e.left, e.right = 0, 0
	pull(slab, slot)
	t.root = t.insertBelow(slab, t.root, slot)
}

func (t *tree) insertBelow(slab []entry, root, slot int32) int32 {
	if root == 0 {
		return slot
	}
	r, e := &slab[root], &slab[slot]
	switch {
	case e.heap > r.heap:
		e.left, e.right = t.split(slab, root, slot)
		pull(slab, slot)
		return slot
	case t.before(e, r):
		r.left = t.insertBelow(slab, r.left, slot)
	default:
		r.right = t.insertBelow(slab, r.right, slot)
	}
	pull(slab, root)
	return root
}

// split divides a subtree into what comes before an entry and what comes after it.
func (t *tree) split(slab []entry, root, slot int32) (before, after int32) {
	if root == 0 {
		return 0, 0
	}
	r := &slab[root]
	if t.before(&slab[slot], r) {
		before, r.left = t.split(slab, r.left, slot)
		after = root
	} else {
		r.right, after = t.split(slab, r.right, slot)
		before = root
	}
	pull(slab, root)
	return before, after
}

func (t *tree) remove(slab []entry, slot int32) { t.root = t.removeBelow(slab, t.root, slot) }

func (t *tree) removeBelow(slab []entry, root, slot int32) int32 {
	r := &slab[root]
	if root == slot {
		return merge(slab, r.left, r.right)
	}
	if t.before(&slab[slot], r) {
		r.left = t.removeBelow(slab, r.left, slot)
	} else {
		r.right = t.removeBelow(slab, r.right, slot)
	}
	pull(slab, root)
	return root
}

func merge(slab []entry, left, right int32) int32 {
	switch {
	case left == 0:
		return right
	case right == 0:
		return left
	case slab[left].heap > slab[right].heap:
		slab[left].right = merge(slab, slab[left].right, right)
		pull(slab, left)
		return left
	}
	slab[right].left = merge(slab, left, slab[right].left)
	pull(slab, right)
	return right
}

// pull computes the size and counts of a node's subtree. Slot 0 is an empty subtree.
func pull(slab []entry, slot int32) {
	e := &slab[slot]
	left, right := &slab[e.left], &slab[e.right]
	e.size = left.size + right.size + 1
	for c := range e.counts {
		e.counts[c] = left.counts[c] + right.counts[c]
	}
	e.counts[e.class]++
}

// first returns the first entry of a class, and how many entries that are not in flight
// come before it; 0 if there is none.
func (t *tree) first(slab []entry, c class) (slot int32, rank int) {
	for at := t.root; at != 0 && slab[at].counts[c] > 0; {
		e := &slab[at]
		switch left := &slab[e.left]; {
		case left.counts[c] > 0:
			at = e.left
		case e.class == c:
			return at, rank + left.others()
		default:
			rank += e.others() - slab[e.right].others()
			at = e.right
		}
	}
	return 0, 0
}

// inFlight is the number of entries in flight.
func (t *tree) inFlight(slab []entry) int { return slab[t.root].inFlight() }

func (n *node) inFlight() int { return int(n.counts[disturbed] + n.counts[stranded]) }

// others is the number of entries of the subtree that are not in flight.
func (n *node) others() int { return int(n.size) - n.inFlight() }

// walk calls yield for the entries in order, until it returns false.
func (t *tree) walk(slab []entry, yield func(slot int32) bool) { walk(slab, t.root, yield) }

func walk(slab []entry, at int32, yield func(slot int32) bool) bool {
	return at == 0 || walk(slab, slab[at].left, yield) && yield(at) && walk(slab, slab[at].right, yield)
}
