package status

import (
	"cmp"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/text"
)

// Names of Pods, and messages about them, are text of other users. A group of Pods has at most
// maxNames names, and a status at most maxRevisions revisions with a name. Each name and message
// has at most maxText bytes.
const (
	maxNames     = 3
	maxRevisions = 10
	maxText      = 200
)

// ByRevision counts all matched Pods by the ControllerRevisions of that name. Users can write
// what Pods record, so only names that exist are shown. An empty name is for the Pods that
// record none, or one that does not exist.
func ByRevision(names []string, recorded func(name string) (pods, ready int32), all Counters) []appsv1beta1.SidecarSetRevisionPods {
	rest := appsv1beta1.SidecarSetRevisionPods{Pods: all.Matched, ReadyPods: all.Ready}
	by := make([]appsv1beta1.SidecarSetRevisionPods, 0, len(names)+1)
	for _, name := range names {
		n := appsv1beta1.SidecarSetRevisionPods{Name: name}
		n.Pods, n.ReadyPods = recorded(name)
		by = append(by, n)
		rest.Pods, rest.ReadyPods = rest.Pods-n.Pods, rest.ReadyPods-n.ReadyPods
	}
	return append(by, rest)
}

// groups orders groups by their size and reason, and bounds their texts.
func groups(all []appsv1beta1.SidecarSetPodGroup) []appsv1beta1.SidecarSetPodGroup {
	var shown []appsv1beta1.SidecarSetPodGroup
	for _, group := range all {
		if group.Pods == 0 {
			continue
		}
		var first []string
		for _, name := range group.First[:min(maxNames, len(group.First))] {
			first = append(first, text.Middle(name, maxText))
		}
		group.First, group.Message = first, text.Cut(group.Message, maxText)
		shown = append(shown, group)
	}
	slices.SortFunc(shown, func(a, b appsv1beta1.SidecarSetPodGroup) int {
		return cmp.Or(cmp.Compare(b.Pods, a.Pods), cmp.Compare(a.Reason, b.Reason))
	})
	return shown
}

// revisions orders revisions by their size and name, and adds up those that are
// not shown.
func revisions(all []appsv1beta1.SidecarSetRevisionPods) []appsv1beta1.SidecarSetRevisionPods {
	var named []appsv1beta1.SidecarSetRevisionPods
	var rest appsv1beta1.SidecarSetRevisionPods
	all = slices.SortedFunc(slices.Values(all), func(a, b appsv1beta1.SidecarSetRevisionPods) int {
		return cmp.Or(cmp.Compare(b.Pods, a.Pods), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range all {
		switch {
		case n.Pods == 0:
		case n.Name == "" || len(named) == maxRevisions:
			rest.Pods, rest.ReadyPods = rest.Pods+n.Pods, rest.ReadyPods+n.ReadyPods
		default:
			n.Name = text.Middle(n.Name, maxText)
			named = append(named, n)
		}
	}
	if rest.Pods > 0 {
		named = append(named, rest)
	}
	return named
}
