package tally

import "github.com/sidecarset/operator/internal/inplace"

// overAfter is how many seconds a Pod has to be back from an update without a break for
// that update to be over. With an image that fails within ten minutes of each start, a
// Pod is never back for so long.
const overAfter = 600

// tenure is how long a Pod has been back from its last update in place. Once that update is
// over, it is not the reason for anything that happens to the Pod later: neither a restart of
// the sidecar nor one of the node makes the Pod count as in flight again.
type tenure struct {
	update uint32 // when it was sent
	since  uint32 // when the Pod was back as it is now; 0 if it is not
	over   bool
}

// observe updates the tenure from what a Pod's status says about its last update. The status
// also says since when the Pod is back, so that a new leader knows it.
func (n *tenure) observe(p inplace.Progress, now int64) {
	if p.At() != n.update {
		*n = tenure{update: p.At()}
	}
	n.over = n.over || n.since != 0 && now-int64(n.since) >= overAfter
	n.since, _ = p.BackSince()
}
