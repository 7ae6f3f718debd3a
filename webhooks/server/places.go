package server

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// places are a semaphore with a short queue, shared fairly by client address: a
// place that becomes free goes to whoever waits and has the fewest, and a full
// queue loses the last one of the client that has the most in it. So a client
// that sends without end waits for itself. It is safe for concurrent use.
type places struct {
	most, queue int
	patience    time.Duration

	mu      sync.Mutex
	taken   int
	active  map[netip.Addr]int
	waiting []*waiter // the one that came first is first
}

// waiter is a request that waits; it learns once whether it has a place.
type waiter struct {
	client netip.Addr
	told   chan bool // of one
}

func newPlaces(count, queue int, patience time.Duration) *places {
	return &places{most: count, queue: queue, patience: patience, active: map[netip.Addr]int{}}
}

// take reports whether there was a place in time; leave gives it back.
func (p *places) take(ctx context.Context, client netip.Addr) bool {
	p.mu.Lock()
	if p.taken < p.most {
		p.enter(client)
		p.mu.Unlock()
		return true
	}
	own, ok := p.join(client)
	p.mu.Unlock()
	if !ok {
		return false
	}
	timer := time.NewTimer(p.patience)
	defer timer.Stop()
	select {
	case got := <-own.told:
		return got
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, own); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		return false
	}
	return <-own.told // it was told in this moment
}

func (p *places) leave(client netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.active[client]--; p.active[client] == 0 {
		delete(p.active, client)
	}
	if len(p.waiting) == 0 {
		return
	}
	next := 0
	for i, w := range p.waiting {
		if p.active[w.client] < p.active[p.waiting[next].client] {
			next = i
		}
	}
	p.enter(p.waiting[next].client)
	p.waiting[next].told <- true
	p.waiting = slices.Delete(p.waiting, next, next+1)
}

func (p *places) enter(client netip.Addr) {
	p.taken++
	p.active[client]++
}

// join makes a request wait, if need be in the stead of another one.
func (p *places) join(client netip.Addr) (*waiter, bool) {
	if len(p.waiting) >= p.queue {
		if !p.makeRoom(client) {
			return nil, false
		}
	}
	own := &waiter{client, make(chan bool, 1)}
	p.waiting = append(p.waiting, own)
	return own, true
}

// makeRoom sends away the last request of the client that has the most in the
// queue, unless client would have as many.
func (p *places) makeRoom(client netip.Addr) bool {
	counts := map[netip.Addr]int{}
	greediest := client
	for _, w := range p.waiting {
		if counts[w.client]++; counts[w.client] > counts[greediest] {
			greediest = w.client
		}
	}
	if counts[greediest] <= counts[client]+1 {
		return false
	}
	for i, w := range slices.Backward(p.waiting) {
		if w.client == greediest {
			w.told <- false
			p.waiting = slices.Delete(p.waiting, i, i+1)
			break
		}
	}
	return true
}

// inUse is how many places are taken.
func (p *places) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
