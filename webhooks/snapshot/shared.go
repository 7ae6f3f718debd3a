package snapshot

import (
	"context"
	"errors"
	"sync"
)

// Shared asks one question for all requests that need its answer. For each key, at most
// one question is under way, and at most one waits. The waiting one answers all requests
// that came meanwhile, because a request needs an answer to a question that was put
// after it came. Shared keeps no answers. It is safe for concurrent use.
type Shared[K comparable, V any] struct {
	ask  func(context.Context, K) (V, error) // bounds its own time
	most int                                 // keys with a question under way

	mu sync.Mutex
	// next has every key with a question under way, and the question that waits
	// for that to end; nil if none does.
	next map[K]*question[V]
}

// question is put once, for one or more requests.
type question[V any] struct {
	done   chan struct{}
	answer V // read it and err when done is closed
	err    error
}

// errTooManyQuestions refuses a question if as many keys as allowed have one under way.
var errTooManyQuestions = errors.New("too many others are being asked about")

// NewShared returns a Shared that calls ask for at most so many keys at a time. ask has to
// bound its own time.
func NewShared[K comparable, V any](most int, ask func(context.Context, K) (V, error)) *Shared[K, V] {
	return &Shared[K, V]{ask: ask, most: most, next: map[K]*question[V]{}}
}

// Get returns the answer to a question that was put after Get was called.
func (s *Shared[K, V]) Get(ctx context.Context, key K) (none V, err error) {
	if err := ctx.Err(); err != nil {
		return none, err
	}
	q, err := s.join(ctx, key)
	if err != nil {
		return none, err
	}
	select {
	case <-q.done:
		return q.answer, q.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// join returns the question that waits to be put. If there is none, join adds one, and
// starts run unless it is running for this key.
func (s *Shared[K, V]) join(ctx context.Context, key K) (*question[V], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, underWay := s.next[key]
	if q != nil {
		return q, nil
	}
	if !underWay && len(s.next) >= s.most {
		return nil, errTooManyQuestions
	}
	q = &question[V]{done: make(chan struct{})}
	s.next[key] = q
	if !underWay {
		go s.run(context.WithoutCancel(ctx), key) // others wait for it as well
	}
	return q, nil
}

// run puts questions until no request waits for one.
func (s *Shared[K, V]) run(ctx context.Context, key K) {
	for {
		s.mu.Lock()
		q := s.next[key]
		s.next[key] = nil
		if q == nil {
			delete(s.next, key)
		}
		s.mu.Unlock()
		if q == nil {
			return
		}
		q.answer, q.err = s.ask(ctx, key)
		close(q.done)
	}
}
