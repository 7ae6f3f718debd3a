package rollout

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Traits are what a Strategy sees in a set of labels.
type Traits struct {
	unselected bool
	// major and minor are the Pod's position by priorityStrategy, in ascending order.
	major, minor int64
	values       []string // of Strategy.scatterKeys
}

// TraitsOf returns the Traits of a set of labels; nil if the strategy does not look at labels.
func (s *Strategy) TraitsOf(set labels.Set) *Traits {
	if !s.LooksAtLabels() {
		return nil
	}
	t := &Traits{unselected: !s.Selects(set)}
	switch {
	case len(s.weights) > 0:
		for _, w := range s.weights {
			if w.selector.Matches(set) {
				t.major -= w.weight
			}
		}
	case len(s.orderedKeys) > 0:
		t.major, t.minor = ordered(s.orderedKeys, set)
	}
	for _, key := range s.scatterKeys {
		t.values = append(t.values, set[key])
	}
	return t
}

// ordered returns the position of a Pod by orderPriority: by the first key that it has,
// and then by the number at the end of the value, the largest first. Pods without any
// of the keys come first, as in OpenKruise.
func ordered(keys []string, set labels.Set) (major, minor int64) {
	for i, key := range keys {
		if value, ok := set[key]; ok {
			return int64(i), -trailingNumber(value)
		}
	}
	return -1, 0
}

// trailingNumber returns the number at the end of a value: 0 if there is none, and the largest
// int64 if it is too large.
func trailingNumber(value string) int64 {
	digits := value[len(strings.TrimRight(value, "0123456789")):]
	n, _ := strconv.ParseInt(digits, 10, 64) // with an error, n is one of these two
	return n
}

// byPriority compares by priorityStrategy.
func byPriority(a, b *Pod) int {
	if a.Traits == b.Traits {
		return 0
	}
	return cmp.Or(cmp.Compare(a.Traits.major, b.Traits.major), cmp.Compare(a.Traits.minor, b.Traits.minor))
}

// order compares by priority, and then in the order in which a ReplicaSet would delete Pods. UIDs
// make it a total order. Pods whose last write was refused or undone come last, so that they do not
// hold up others.
func order(a, b *Pod) int {
	if by := cmp.Or(compareBool(b.comesLast(), a.comesLast()), byPriority(a, b)); by != 0 {
		return by
	}
	p, q := a.Summary, b.Summary
	x, y := &p.Order, &q.Order
	switch {
	case x.Phase != y.Phase:
		return cmp.Compare(x.Phase, y.Phase)
	case p.Ready != q.Ready:
		return compareBool(!p.Ready, !q.Ready)
	case p.Ready && p.Since != q.Since:
		return compareBool(laterOrUnknown(int64(p.Since), int64(q.Since)), false)
	case x.Restarts != y.Restarts:
		return cmp.Compare(y.Restarts, x.Restarts)
	case x.NativeRestarts != y.NativeRestarts:
		return cmp.Compare(y.NativeRestarts, x.NativeRestarts)
	case x.Created != y.Created:
		return compareBool(laterOrUnknown(x.Created, y.Created), false)
	}
	return cmp.Compare(p.UID, q.UID)
}

func laterOrUnknown(a, b int64) bool { return a == 0 || b != 0 && a > b }

// line hands out Pods in order. Few of many are asked for, so it is a heap unless scatterStrategy
// has put all of them in order.
type line struct {
	pods    []*Pod
	ordered bool
}

// newLine returns the Pods in order.
func newLine(pods []*Pod) *line {
	l := &line{pods: pods}
	for i := len(pods)/2 - 1; i >= 0; i-- {
		l.sink(i)
	}
	return l
}

// scattered returns the Pods in the order of the strategy.
func (d *decision) scattered(pods []*Pod) *line {
	if !d.strategy.scatters() {
		return newLine(pods)
	}
	slices.SortFunc(pods, order)
	pods = d.scatter(pods)
	slices.SortStableFunc(pods, func(a, b *Pod) int { return compareBool(b.comesLast(), a.comesLast()) })
	return &line{pods, true}
}

// next removes and returns the first Pod; nil if there is none.
func (l *line) next() *Pod {
	if len(l.pods) == 0 {
		return nil
	}
	p := l.pods[0]
	if l.ordered {
		l.pods = l.pods[1:]
		return p
	}
	last := len(l.pods) - 1
	l.pods[0] = l.pods[last]
	l.pods = l.pods[:last]
	l.sink(0)
	return p
}

// sink moves the Pod at a place down to where it belongs in the heap.
func (l *line) sink(i int) {
	for {
		first := i
		for _, child := range [...]int{2*i + 1, 2*i + 2} {
			if child < len(l.pods) && order(l.pods[child], l.pods[first]) < 0 {
				first = child
			}
		}
		if first == i {
			return
		}
		l.pods[i], l.pods[first] = l.pods[first], l.pods[i]
		i = first
	}
}

// compareBool orders true before false.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
