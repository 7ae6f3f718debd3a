package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// pace spaces the writes of each SidecarSet's status. It is safe for concurrent
// use.
//
// A new generation is written when it is ready, or else after the interval: most
// SidecarSets are ready within that time, and one write says it all. From then on
// there is one write in an interval, whatever changes. Only the first time that a
// generation is ready is written at once, since a user may wait for it.
type pace struct {
	interval time.Duration

	mu    sync.Mutex
	known map[string]paced
}

// paced is about one generation of one object.
type paced struct {
	uid        types.UID
	generation int64
	from       time.Time // when it was first seen, or last written
	ready      bool      // a write has said that it is ready
}

func newPace(interval time.Duration) *pace {
	return &pace{interval: interval, known: make(map[string]paced)}
}

// rest is how long to wait before a status that says ready, or does not, is
// written for a generation of a SidecarSet. The first call for a generation begins
// its interval.
func (p *pace) rest(sidecarSet string, uid types.UID, generation int64, ready bool, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.known[sidecarSet]
	if !ok || known.uid != uid || known.generation != generation {
		known = paced{uid: uid, generation: generation, from: now}
		p.known[sidecarSet] = known
	}
	if ready && !known.ready {
		return 0
	}
	return p.left(known, now)
}

// left is how much of the interval is left. A clock that is set back does not make
// it longer.
func (p *pace) left(known paced, now time.Time) time.Duration {
	return max(0, min(p.interval, known.from.Add(p.interval).Sub(now)))
}

// untilCounted is how long a change of counters can wait: it cannot be written
// earlier.
func (p *pace) untilCounted(sidecarSet string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.known[sidecarSet]
	if !ok {
		return 0
	}
	return p.left(known, now)
}

// wrote begins the next interval.
func (p *pace) wrote(sidecarSet string, ready bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[sidecarSet]
	known.from, known.ready = now, known.ready || ready
	p.known[sidecarSet] = known
}

func (p *pace) forget(sidecarSet string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, sidecarSet)
}
