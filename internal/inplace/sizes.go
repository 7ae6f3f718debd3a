package inplace

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Sizes records that a resize of a Pod for one SidecarSet is under way. It is written
// before the resize, because the subresource resize does not change annotations. The
// write that records the content removes it. Without it, the operator could not
// distinguish its own value from that of another writer once the content changes again.
type Sizes struct {
	// At is when it was written, to the second.
	At time.Time
	// Values are in no order.
	Values []Size
}

// Size is one value of one container that is part of a resize.
type Size struct {
	Container string
	Limit     bool // a request otherwise
	Resource  corev1.ResourceName
	// Values are the value in the content that the Pod records ("" if it has none) and
	// the values that the operator has written since. The last one is the wanted value.
	Values []string
}

// mostSizes is how many values of one Size are read.
const mostSizes = 4

// recorded reports whether a live value is one of those of the Size.
func (s *Size) recorded(live resource.Quantity, present bool) bool {
	return slices.ContainsFunc(s.Values, func(text string) bool { return is(text, live, present) })
}

func is(text string, live resource.Quantity, present bool) bool {
	if text == "" || !present {
		return text == "" && !present
	}
	value, ok := parseQuantity(text)
	return ok && equal(value, live)
}

func (s *Size) from() string { return s.Values[0] }
func (s *Size) to() string   { return s.Values[len(s.Values)-1] }

// about reports whether two Sizes are about the same value of a container.
func (s *Size) about(other Size) bool {
	return s.Container == other.Container && s.Limit == other.Limit && s.Resource == other.Resource
}

// Observe reads the progress of the resize from a Pod. ResizeOpen means that the operator
// has to do the next step. Values that the resize did not change do not count if the
// kubelet reports no resources of a container that runs: such a kubelet cannot resize the
// container, and never has.
func (s Sizes) Observe(pod *corev1.Pod) (state ResizeState, message string) {
	var containers []string
	for i := range s.Values {
		size := &s.Values[i]
		c, status := containerOf(pod, size.Container)
		if c == nil {
			return ResizeOpen, ""
		}
		live, present := listOf(c, size.Limit)[size.Resource]
		if !is(size.to(), live, present) {
			return ResizeOpen, ""
		}
		if size.from() == size.to() && status != nil && status.State.Running != nil && status.Resources == nil {
			continue
		}
		containers = append(containers, size.Container)
	}
	return ObserveResize(pod, containers)
}

func listOf(c *corev1.Container, limit bool) corev1.ResourceList {
	if limit {
		return c.Resources.Limits
	}
	return c.Resources.Requests
}

// WithSizes returns a copy that has a resize of a SidecarSet under way.
func (m Marks) WithSizes(sidecarSet string, s Sizes) Marks {
	return Marks{m.Sets, put(m.Resizes, sidecarSet, s)}
}

// WithoutSizes returns a copy that has no resize of a SidecarSet under way.
func (m Marks) WithoutSizes(sidecarSet string) Marks {
	sizes := maps.Clone(m.Resizes)
	delete(sizes, sidecarSet)
	return Marks{m.Sets, sizes}
}

// sizesJSON is Sizes in the annotation: values by container, and by names such as
// "limits.memory".
type sizesJSON struct {
	At time.Time                      `json:"at"`
	Of map[string]map[string][]string `json:"of"`
}

func (s Sizes) json() sizesJSON {
	out := sizesJSON{s.At.UTC(), map[string]map[string][]string{}}
	for _, size := range s.Values {
		if out.Of[size.Container] == nil {
			out.Of[size.Container] = map[string][]string{}
		}
		out.Of[size.Container][size.member()] = size.Values
	}
	return out
}

func (s *Size) member() string {
	if s.Limit {
		return "limits." + string(s.Resource)
	}
	return "requests." + string(s.Resource)
}

// isNoValue reports whether a text cannot be a value of a Size.
func isNoValue(text string) bool {
	_, ok := parseQuantity(text)
	return text != "" && !ok
}

// sizes reads the Sizes of one SidecarSet.
func (r *reader) sizes(raw string) (s Sizes, ok bool) {
	var in sizesJSON
	if json.Unmarshal([]byte(raw), &in) != nil || !isTime(in.At) {
		return s, false
	}
	s.At = in.At.UTC()
	for container, values := range in.Of {
		for member, texts := range values {
			list, name, found := strings.Cut(member, ".")
			isResource := name == string(corev1.ResourceCPU) || name == string(corev1.ResourceMemory)
			if !found || !isResource || list != "limits" && list != "requests" || len(texts) < 2 || len(texts) > mostSizes || !r.count() || slices.ContainsFunc(texts, isNoValue) {
				return s, false
			}
			s.Values = append(s.Values, Size{container, list == "limits", corev1.ResourceName(name), texts})
		}
	}
	slices.SortFunc(s.Values, func(a, b Size) int {
		return cmp.Or(strings.Compare(a.Container, b.Container), strings.Compare(a.member(), b.member()))
	})
	return s, true
}
