package rollout

import (
	"cmp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// traits is the result of a Strategy for one set of labels. Pods with equal labels share it.
type traits struct {
	pods       int // in the queue, with these labels
	unselected bool
	// major and minor are the Pod's position by priorityStrategy, in ascending order.
	major, minor int64
	values       []string // of Strategy.scatterKeys
}

func (s *Strategy) traitsOf(set labels.Set) *traits {
	t := &traits{unselected: s.selector != nil && !s.selector.Matches(set)}
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

// before is the order of updates without scatter: by priority, and then the order in
// which a ReplicaSet would delete Pods. UIDs make it a total order.
func before(a, b *entry) bool {
	if a.traits != b.traits && a.traits != nil && b.traits != nil {
		if a.traits.major != b.traits.major {
			return a.traits.major < b.traits.major
		}
		if a.traits.minor != b.traits.minor {
			return a.traits.minor < b.traits.minor
		}
	}
	x, y := &a.pod.Order, &b.pod.Order
	switch {
	case x.Assigned != y.Assigned:
		return !x.Assigned
	case x.Phase != y.Phase:
		return x.Phase < y.Phase
	case a.pod.Ready != b.pod.Ready:
		return !a.pod.Ready
	case a.pod.Ready && x.ReadySince != y.ReadySince:
		return laterOrUnknown(x.ReadySince, y.ReadySince)
	case x.Restarts != y.Restarts:
		return x.Restarts > y.Restarts
	case x.NativeRestarts != y.NativeRestarts:
		return x.NativeRestarts > y.NativeRestarts
	case x.Created != y.Created:
		return laterOrUnknown(x.Created, y.Created)
	}
	return a.pod.UID < b.pod.UID
}

func laterOrUnknown(a, b int64) bool { return a == 0 || b != 0 && a > b }

// byName is the order in which Pods are named to users.
func byName(a, b *entry) bool {
	return cmp.Or(
		cmp.Compare(a.pod.Namespace.Value(), b.pod.Namespace.Value()), cmp.Compare(a.pod.Name, b.pod.Name), cmp.Compare(a.pod.UID, b.pod.UID),
	) < 0
}
