package entries

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sidecarset/operator/internal/entry"
)

// pace limits the writes that only reviews cause: any Pod of the cluster can send a review. Each
// write has API servers rebuild the entries of the slot. Up to version 1.35 they also keep 10 KB
// for each path that they were ever given.
//
// A write does not count if a SidecarSet is stored for it. The zero pace is ready to use, and is
// safe for concurrent use.
type pace struct {
	mu     sync.Mutex
	counts []*pacedWrite // oldest first
	since  time.Time     // when the last one was forgotten
}

// pacedWrite is a write of needs whose SidecarSets were not stored yet.
type pacedWrite struct{ needs []entry.Need }

const (
	// reviewBurst is how many writes count at most. The oldest is forgotten after reviewInterval.
	reviewBurst    = 100
	reviewInterval = 10 * time.Second
)

var errPace = errors.New("too many SidecarSets that are not stored have been reviewed; the leader writes the webhook entry as soon as this one is stored")

// take begins a write of needs; errPace if too many count. holds reports whether the SidecarSet of
// a need is stored in that generation. The caller calls undo if nothing was written.
func (p *pace) take(needs []entry.Need, holds func(entry.Need) bool, now time.Time) (undo func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts = slices.DeleteFunc(p.counts, func(w *pacedWrite) bool { return slices.ContainsFunc(w.needs, holds) })
	for ; len(p.counts) > 0 && now.Sub(p.since) >= reviewInterval; p.since = p.since.Add(reviewInterval) {
		p.counts = p.counts[1:]
	}
	switch len(p.counts) {
	case 0:
		p.since = now
	case reviewBurst:
		return nil, errPace
	}
	w := &pacedWrite{slices.DeleteFunc(slices.Clone(needs), holds)}
	p.counts = append(p.counts, w)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.counts = slices.DeleteFunc(p.counts, func(other *pacedWrite) bool { return other == w })
	}, nil
}
