package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/clock"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

const (
	// revisionTimeout bounds one live look-up, so that the next one may succeed instead.
	revisionTimeout = 2 * time.Second
	// revisionMemory is how long an answer is used again, and failureMemory a failure. So one
	// version of a SidecarSet costs the API server one look-up per second, or five that fail,
	// however many Pods the SidecarSet selects.
	revisionMemory, failureMemory = time.Second, 200 * time.Millisecond
	// revisionReads is for how many SidecarSets revisions are looked up at the same time.
	revisionReads = 8
	// revisionRate is how many look-ups there may be per second; twice as many may come at
	// once. An answer usually has up to 2.5 MiB, and an unauthenticated client may send reviews.
	revisionRate = 20
)

// errTooManyMissing refuses a look-up above revisionRate.
var errTooManyMissing = errors.New("too many SidecarSets name revisions that this replica does not know")

// liveRevisions looks up recorded revisions that the snapshot lacks, because its watch may
// be behind. It is safe for concurrent use.
type liveRevisions struct {
	named  func(context.Context, *inject.Compiled) (*appsv1.ControllerRevision, error)
	clock  clock.PassiveClock
	shared *snapshot.Shared[*inject.Compiled, *inject.Compiled] // by the SidecarSet that names the revision
	rate   *rate.Limiter

	mu      sync.Mutex
	answers map[*inject.Compiled]revisionAnswer
}

// revisionAnswer is the revision that a SidecarSet names, or why that is not known. The
// compiled SidecarSet is nil if the revision is not stored, or cannot be used.
type revisionAnswer struct {
	compiled *inject.Compiled
	err      error
	until    time.Time
}

func newLiveRevisions(named func(context.Context, *inject.Compiled) (*appsv1.ControllerRevision, error), c clock.PassiveClock) *liveRevisions {
	l := &liveRevisions{named: named, clock: c, rate: rate.NewLimiter(revisionRate, 2*revisionRate), answers: map[*inject.Compiled]revisionAnswer{}}
	l.shared = snapshot.NewShared(revisionReads, l.ask)
	return l
}

// addMissing looks up the missing revision and adds it to its candidate. It returns false if
// the revision is not stored or cannot be used, and an error if this is not known.
func (l *liveRevisions) addMissing(ctx context.Context, candidates []inject.Candidate, missing *inject.RevisionError) (added bool, err error) {
	for i := range candidates {
		c := &candidates[i]
		if c.Current.Name() != missing.SidecarSet || c.History != nil {
			continue
		}
		if c.History, err = l.find(ctx, c.Current); err != nil {
			return false, fmt.Errorf("looking up %s of SidecarSet %q: %w", missing.Reference, missing.SidecarSet, err)
		}
		return c.History != nil, nil
	}
	return false, nil
}

// addStable looks up the stable revisions that the snapshot lacks. Without one that is stored and can be
// used, the Pod gets the current revision.
func (l *liveRevisions) addStable(ctx context.Context, candidates []inject.Candidate) (err error) {
	for i := range candidates {
		c := &candidates[i]
		if !c.Current.IsHeld() || c.History != nil {
			continue
		}
		if c.History, err = l.find(ctx, c.Current); err != nil {
			return fmt.Errorf("looking up the stable revision of SidecarSet %q: %w", c.Current.Name(), err)
		}
	}
	return nil
}

// find returns the revision that a SidecarSet names, by an answer that is still valid or by
// a look-up that concurrent requests share.
func (l *liveRevisions) find(ctx context.Context, current *inject.Compiled) (*inject.Compiled, error) {
	if answer, holds := l.recall(current); holds {
		return answer.compiled, answer.err
	}
	return l.shared.Get(ctx, current)
}

// ask looks up the revision that a SidecarSet names, unless an earlier look-up has just
// given an answer.
func (l *liveRevisions) ask(ctx context.Context, current *inject.Compiled) (*inject.Compiled, error) {
	if answer, holds := l.recall(current); holds {
		return answer.compiled, answer.err
	}
	if !l.rate.AllowN(l.clock.Now(), 1) {
		return nil, errTooManyMissing
	}
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	recorded, err := l.named(ctx, current)
	answer, memory := revisionAnswer{err: err}, revisionMemory
	switch {
	case err != nil:
		memory = failureMemory
	case recorded != nil:
		answer.compiled, _ = inject.CompileRevision(current, recorded) // the snapshot will report the error
	}
	l.remember(current, answer, memory)
	return answer.compiled, answer.err
}

// remember keeps an answer for a time.
func (l *liveRevisions) remember(current *inject.Compiled, answer revisionAnswer, memory time.Duration) {
	answer.until = l.clock.Now().Add(memory)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[current] = answer
	time.AfterFunc(memory, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.answers[current].until.Equal(answer.until) {
			delete(l.answers, current)
		}
	})
}

func (l *liveRevisions) recall(current *inject.Compiled) (answer revisionAnswer, holds bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer, known := l.answers[current]
	return answer, known && l.clock.Now().Before(answer.until)
}
