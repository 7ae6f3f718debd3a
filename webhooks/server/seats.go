package server

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// seats are a semaphore with a short queue, shared fairly by client address. A seat that
// becomes free goes to the waiting client that has the fewest seats. If the queue is full,
// the client with the most requests in it loses its last one. So a client that sends
// without end only delays its own requests. It is safe for concurrent use.
type seats struct {
	most, queue int
	patience    time.Duration

	mu      sync.Mutex
	taken   int
	active  map[netip.Addr]int
	waiting []*waiter // in the order in which they came
}

// waiter is a request that waits; it is told once whether it has a seat.
type waiter struct {
	client netip.Addr
	told   chan bool // has capacity 1
}

// take reports whether there was a seat in time; leave gives it back.
func (s *seats) take(ctx context.Context, client netip.Addr) bool {
	s.mu.Lock()
	if s.taken < s.most {
		s.enter(client)
		s.mu.Unlock()
		return true
	}
	own, ok := s.join(client)
	s.mu.Unlock()
	if !ok {
		return false
	}
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	select {
	case got := <-own.told:
		return got
	case <-timer.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, own); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		return false
	}
	return <-own.told // told since the wait ended
}

func (s *seats) leave(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.active[client]--; s.active[client] == 0 {
		delete(s.active, client)
	}
	if len(s.waiting) == 0 {
		return
	}
	next := 0
	for i, w := range s.waiting {
		if s.active[w.client] < s.active[s.waiting[next].client] {
			next = i
		}
	}
	s.enter(s.waiting[next].client)
	s.waiting[next].told <- true
	s.waiting = slices.Delete(s.waiting, next, next+1)
}

func (s *seats) enter(client netip.Addr) {
	s.taken++
	s.active[client]++
}

// join puts a request into the queue. If the queue is full, the request may take the place
// of another one. It returns false if the request cannot wait.
func (s *seats) join(client netip.Addr) (*waiter, bool) {
	if len(s.waiting) >= s.queue && !s.makeRoom(client) {
		return nil, false
	}
	own := &waiter{client, make(chan bool, 1)}
	s.waiting = append(s.waiting, own)
	return own, true
}

// makeRoom refuses the last request of the client that has the most in the queue. It
// returns false, and refuses none, if client would then have as many as that one.
func (s *seats) makeRoom(client netip.Addr) bool {
	counts := map[netip.Addr]int{}
	greediest := client
	for _, w := range s.waiting {
		if counts[w.client]++; counts[w.client] > counts[greediest] {
			greediest = w.client
		}
	}
	if counts[greediest] <= counts[client]+1 {
		return false
	}
	for i, w := range slices.Backward(s.waiting) {
		if w.client == greediest {
			w.told <- false
			s.waiting = slices.Delete(s.waiting, i, i+1)
			break
		}
	}
	return true
}

// inUse is the number of seats that are taken.
func (s *seats) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}
