package inject

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sidecarset/operator/internal/members"
)

var elementPath = regexp.MustCompile(`spec\.(` + strings.Join(members.OfPods(), "|") + `)\[(\d+)\]`)

// Named returns the elements which the plan puts into the Pod and which a message of an API server
// names by their places, such as spec.containers[2].ports[0]. The places are those of the Pod that
// the plan makes, so a webhook that changes the Pod afterwards makes them wrong.
func (p Plan) Named(message string) (named []Edit) {
	for _, found := range elementPath.FindAllStringSubmatch(message, -1) {
		list := List(found[1])
		index, err := strconv.Atoi(found[2])
		if err != nil {
			continue
		}
		// Back through the insertions, the last one first, to the list that the replacements are about.
		at := -1
		for i := range slices.Backward(p.Insertions) {
			switch e := &p.Insertions[i]; {
			case e.List != list || e.Index > index:
			case e.Index == index:
				at = i
			default:
				index--
			}
			if at >= 0 {
				named = append(named, p.Insertions[at])
				break
			}
		}
		if at < 0 {
			for _, e := range slices.Concat(p.Replacements, p.Additions) {
				if e.List == list && e.Index == index {
					named = append(named, e)
				}
			}
		}
	}
	return named
}
