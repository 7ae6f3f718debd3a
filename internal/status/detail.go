package status

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

// Names of Pods and records on Pods are text of other users. The part of a status that
// repeats them takes at most maxDetail bytes as JSON, so the whole status stays below 4
// KB.
const maxDetail = 1700

// ByRevision counts all matched Pods by the ControllerRevisions of that name. Users can write
// what Pods record, so only names that exist are shown. An empty name is for the Pods that
// record none, or one that does not exist.
func ByRevision(names []string, recorded map[podstate.Name]tally.RevisionCount, all tally.Counters) []appsv1beta1.SidecarSetRevisionPods {
	rest := appsv1beta1.SidecarSetRevisionPods{Pods: all.Matched, ReadyPods: all.Ready}
	by := make([]appsv1beta1.SidecarSetRevisionPods, 0, len(names)+1)
	for _, name := range names {
		n := recorded[podstate.MakeName(name)]
		by = append(by, appsv1beta1.SidecarSetRevisionPods{Name: name, Pods: n.Pods, ReadyPods: n.Ready})
		rest.Pods, rest.ReadyPods = rest.Pods-n.Pods, rest.ReadyPods-n.Ready
	}
	return append(by, rest)
}

// detail is the part of a status that names Pods and revisions.
type detail struct {
	Uninjected, Blocked []appsv1beta1.SidecarSetPodGroup
	Revisions           []appsv1beta1.SidecarSetRevisionPods
}

// extent says how much of a detail is shown.
type extent struct {
	uninjected, blocked int // names in each group
	message             int // bytes
	revisions           int
	name                int // bytes of a name
}

// The extents, from the usual one to one that always fits: reasons are words of the operator,
// and there are few.
var extents = []extent{
	{5, 3, 200, 10, maxName},
	{3, 2, 120, 10, maxName},
	{2, 1, 80, 10, 64},
	{1, 1, 60, 5, 48},
	{0, 0, 0, 3, 48},
}

// maxName holds a namespace of 63 bytes and a Pod of 63, which is the longest
// name that Kubernetes itself generates.
const maxName = 127

// detailOf shows as much as fits into maxDetail. Equal observations give equal
// details.
func detailOf(o Observation) (d detail) {
	for _, e := range extents {
		d = detail{
			Uninjected: groups(o.Uninjected, e.uninjected, e),
			Blocked:    groups(o.Blocked, e.blocked, e),
			Revisions:  revisions(o.Revisions, e),
		}
		if text, err := json.Marshal(d); err == nil && len(text) <= maxDetail {
			break
		}
	}
	return d
}

// groups orders groups by their size and reason, and names the given number of
// Pods of each.
func groups(all []appsv1beta1.SidecarSetPodGroup, names int, e extent) []appsv1beta1.SidecarSetPodGroup {
	var shown []appsv1beta1.SidecarSetPodGroup
	for _, group := range all {
		if group.Pods == 0 {
			continue
		}
		var first []string
		for _, name := range group.First[:min(names, len(group.First))] {
			first = append(first, shortened(name, e.name))
		}
		group.First, group.Message = first, cut(group.Message, e.message)
		shown = append(shown, group)
	}
	slices.SortFunc(shown, func(a, b appsv1beta1.SidecarSetPodGroup) int {
		return cmp.Or(cmp.Compare(b.Pods, a.Pods), cmp.Compare(a.Reason, b.Reason))
	})
	return shown
}

// revisions orders revisions by their size and name, and adds up those that are
// not shown.
func revisions(all []appsv1beta1.SidecarSetRevisionPods, e extent) []appsv1beta1.SidecarSetRevisionPods {
	var named []appsv1beta1.SidecarSetRevisionPods
	var rest appsv1beta1.SidecarSetRevisionPods
	all = slices.SortedFunc(slices.Values(all), func(a, b appsv1beta1.SidecarSetRevisionPods) int {
		return cmp.Or(cmp.Compare(b.Pods, a.Pods), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range all {
		switch {
		case n.Pods == 0:
		case n.Name == "" || len(named) == e.revisions:
			rest.Pods, rest.ReadyPods = rest.Pods+n.Pods, rest.ReadyPods+n.ReadyPods
		default:
			n.Name = shortened(n.Name, e.name)
			named = append(named, n)
		}
	}
	if rest.Pods > 0 {
		named = append(named, rest)
	}
	return named
}

const more = "…"

// shortened leaves out the middle of a name that is too long. What is left has
// the end of the name, which tells the Pods of one owner apart.
func shortened(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	tail := (limit - len(more)) / 2
	head := limit - len(more) - tail
	return strings.ToValidUTF8(name[:head], "") + more + strings.ToValidUTF8(name[len(name)-tail:], "")
}

// cut leaves out the end of a text that would take more than a limit as JSON.
func cut(text string, limit int) string {
	whole, size := 0, 0 // what fits together with the mark, and the size of all so far
	for i, c := range text {
		if size+len(more) <= limit {
			whole = i
		}
		if size += width(c); size > limit {
			if whole == 0 {
				return ""
			}
			return strings.ToValidUTF8(text[:whole], "?") + more
		}
	}
	return strings.ToValidUTF8(text, "?")
}

// width is how many bytes a character takes in JSON as Go writes it, at most.
func width(c rune) int {
	switch {
	case c == '"', c == '\\', c == '\n', c == '\t', c == '\r', c == '\b', c == '\f':
		return 2
	case c < ' ', c == '<', c == '>', c == '&', c == '\u2028', c == '\u2029':
		return 6
	}
	return utf8.RuneLen(c)
}
