package rollout

import (
	"github.com/sidecarset/operator/internal/inplace"
)

// refusals limit how many Pods are asked about while the API server refuses them: a
// refusal makes the window a quarter, and a success doubles it. Where it is closed, one Pod is tried every
// probeEvery seconds. So thousands of Pods that one policy refuses cost a few requests a minute,
// and Pods that are refused for reasons of their own do not hold up others for long.
type refusals struct {
	window  int
	probeAt int64 // when the next Pod may be tried while the window is closed
}

const fullWindow, probeEvery = 64, 30

func (f *refusals) refused(now int64) {
	f.window /= 4
	f.probeAt = now + probeEvery
}

// accepted notes a success. If the Pod had been refused, Pods of its namespace that were refused,
// too, need not wait any longer.
func (r *Rollout) accepted(e *entry, now int64) {
	if e.hold != nil && e.hold.reason == inplace.Refused {
		for _, other := range r.entries {
			if other != nil && other.hold != nil && other.hold.reason == inplace.Refused && other.Record.Namespace == e.Record.Namespace {
				other.hold.until = now
			}
		}
	}
	e.hold = nil
	r.window = min(max(2*r.window, 1), fullWindow)
}

// free is how many Pods may be taken while others are in hand.
func (f *refusals) free(inHand int, now int64) int {
	switch {
	case f.window > 0:
		return f.window - inHand
	case inHand == 0 && now >= f.probeAt:
		return 1
	}
	return 0
}
