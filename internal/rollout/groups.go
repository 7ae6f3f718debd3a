package rollout

import (
	"cmp"
	"maps"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// maxNames is the number of Pods that a group names.
const maxNames = 3

// Groups are Pods by reason. The zero value has none.
type Groups struct{ by map[inplace.Reason]*group }

type group struct {
	pods    int
	message string
	first   []*podstate.Summary // by name
}

// Add adds one Pod. A group keeps its first message.
func (g *Groups) Add(reason inplace.Reason, message string, r *podstate.Summary) {
	if g.by == nil {
		g.by = map[inplace.Reason]*group{}
	}
	of := g.by[reason]
	if of == nil {
		of = &group{}
		g.by[reason] = of
	}
	of.pods++
	of.message = cmp.Or(of.message, message)
	if n := len(of.first); n == maxNames && compareNames(r, of.first[n-1]) > 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(of.first, r, compareNames)
	of.first = slices.Insert(of.first, at, r)
	of.first = of.first[:min(len(of.first), maxNames)]
}

func compareNames(a, b *podstate.Summary) int {
	return cmp.Or(cmp.Compare(a.Namespace.Value(), b.Namespace.Value()), cmp.Compare(a.Name, b.Name))
}

// Pods is the number of Pods in all groups.
func (g Groups) Pods() (n int) {
	for _, of := range g.by {
		n += of.pods
	}
	return n
}

// List returns the groups, sorted by reason; nil if there are none. Each names its first Pods as
// namespace/name.
func (g Groups) List() (list []appsv1beta1.SidecarSetPodGroup) {
	for _, reason := range slices.Sorted(maps.Keys(g.by)) {
		of := g.by[reason]
		shown := appsv1beta1.SidecarSetPodGroup{Reason: string(reason), Message: of.message, Pods: int32(of.pods)}
		for _, r := range of.first {
			shown.First = append(shown.First, r.FullName())
		}
		list = append(list, shown)
	}
	return list
}
