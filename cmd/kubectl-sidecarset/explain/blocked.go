package explain

import (
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/reasons"
)

// Blocked returns the meaning of a reason for which a running Pod is not updated, and what to do.
// A newer operator may have a reason that the plugin does not know.
func Blocked(reason inplace.Reason) (meaning, remedy string) {
	if r, known := reasons.Find(reasons.Blocked, string(reason)); known {
		return reasons.Plain(r.Meaning), reasons.Plain(r.Remedy)
	}
	return "docs/troubleshooting.md explains the reason", "look at status.blockedPods of the SidecarSet"
}

// NewPodHelps reports whether a new Pod would have the revision that a Pod with this reason lacks.
func NewPodHelps(reason inplace.Reason) bool {
	r, _ := reasons.Find(reasons.Blocked, string(reason))
	return r.Recreate
}
