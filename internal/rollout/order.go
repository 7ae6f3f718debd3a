package rollout

import (
	"cmp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// traits is the result of a Strategy for one set of labels. Pods with equal labels share it.
type traits struct {
	pods       int // with these labels
	unselected bool
	// major and minor are the Pod's position by priorityStrategy, in ascending order.
	major, minor int64
	values       []string // of Strategy.scatterKeys
}

func (s *Strategy) traitsOf(set labels.Set) *traits {
	t := &traits{unselected: !s.Selects(set)}
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
func byPriority(a, b *entry) int {
	if a.traits == b.traits {
		return 0
	}
	return cmp.Or(cmp.Compare(a.traits.major, b.traits.major), cmp.Compare(a.traits.minor, b.traits.minor))
}

// order compares by priority, and then in the order in which a ReplicaSet would delete Pods. UIDs
// make it a total order.
func order(a, b *entry) int {
	if by := byPriority(a, b); by != 0 {
		return by
	}
	p, q := a.Record, b.Record
	x, y := &p.Order, &q.Order
	switch {
	case x.Assigned != y.Assigned:
		return first(!x.Assigned)
	case x.Phase != y.Phase:
		return cmp.Compare(x.Phase, y.Phase)
	case p.Ready != q.Ready:
		return first(!p.Ready)
	case p.Ready && x.ReadySince != y.ReadySince:
		return first(laterOrUnknown(x.ReadySince, y.ReadySince))
	case x.Restarts != y.Restarts:
		return cmp.Compare(y.Restarts, x.Restarts)
	case x.NativeRestarts != y.NativeRestarts:
		return cmp.Compare(y.NativeRestarts, x.NativeRestarts)
	case x.Created != y.Created:
		return first(laterOrUnknown(x.Created, y.Created))
	}
	return cmp.Compare(p.UID, q.UID)
}

func first(is bool) int {
	if is {
		return -1
	}
	return 1
}

func laterOrUnknown(a, b int64) bool { return a == 0 || b != 0 && a > b }
