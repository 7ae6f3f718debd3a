package sidecarsets

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/requester"
)

// How long an answer holds. A yes serves all SidecarSets of one kubectl apply;
// a no is asked again by whoever has just been granted the right.
const (
	allowedFor   = 10 * time.Second
	refusedFor   = time.Second
	maxRemembers = 4096
)

// CachedAccess asks the API server by SubjectAccessReview, once for all who want
// to know the same at the same time, and remembers answers for a few seconds. A
// question that failed is forgotten. It is safe for concurrent use.
type CachedAccess struct {
	client client.Writer
	clock  clock.PassiveClock

	mu      sync.Mutex
	answers map[accessKey]*accessAnswer
}

// accessKey is who wants to do what.
type accessKey struct {
	user     string // as JSON: groups and the like decide as well
	question requester.Question
}

// accessAnswer is there while it is asked for, and holds once done is closed.
type accessAnswer struct {
	done    chan struct{}
	allowed bool
	err     error
	until   time.Time // guarded by CachedAccess.mu; zero while it is asked for
}

// NewCachedAccess returns a CachedAccess; the real clock counts if clk is nil.
func NewCachedAccess(c client.Writer, clk clock.PassiveClock) *CachedAccess {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &CachedAccess{client: c, clock: clk, answers: map[accessKey]*accessAnswer{}}
}

// Remembered is how many answers are kept; 4096 at most while nobody waits.
func (a *CachedAccess) Remembered() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.answers)
}

// Allowed implements AccessReviewer.
func (a *CachedAccess) Allowed(ctx context.Context, user authenticationv1.UserInfo, question requester.Question) (bool, error) {
	identity, err := json.Marshal(user)
	if err != nil {
		return false, fmt.Errorf("encoding user: %w", err)
	}
	key := accessKey{string(identity), question}
	answer, first := a.find(key)
	if first {
		// Others wait for this one, whatever becomes of the request that asked.
		go a.ask(context.WithoutCancel(ctx), key, answer, user)
	}
	select {
	case <-answer.done:
		return answer.allowed, answer.err
	case <-ctx.Done():
		return false, fmt.Errorf("reviewing access: %w", context.Cause(ctx))
	}
}

// find returns the answer that holds or that is asked for, or a new one that the
// caller has to ask for.
func (a *CachedAccess) find(key accessKey) (answer *accessAnswer, first bool) {
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if known, ok := a.answers[key]; ok && (known.until.IsZero() || now.Before(known.until)) {
		return known, false
	}
	if len(a.answers) >= maxRemembers {
		a.forget(now)
	}
	answer = &accessAnswer{done: make(chan struct{})}
	a.answers[key] = answer
	return answer, true
}

// forget makes room: what is out of date goes, or else all that nobody waits for.
func (a *CachedAccess) forget(now time.Time) {
	for _, all := range []bool{false, true} {
		for key, answer := range a.answers {
			if !answer.until.IsZero() && (all || !now.Before(answer.until)) {
				delete(a.answers, key)
			}
		}
		if len(a.answers) < maxRemembers {
			return
		}
	}
}

// ask finds the answer and lets everybody have it.
func (a *CachedAccess) ask(ctx context.Context, key accessKey, answer *accessAnswer, user authenticationv1.UserInfo) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	review := accessReview(user, key.question)
	err := a.client.Create(ctx, review)
	if err != nil {
		answer.err = fmt.Errorf("reviewing access: %w", err)
	}
	answer.allowed = err == nil && review.Status.Allowed
	holds := refusedFor
	if answer.allowed {
		holds = allowedFor
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	answer.until = a.clock.Now().Add(holds)
	if err != nil {
		delete(a.answers, key)
	}
	close(answer.done)
}

func accessReview(user authenticationv1.UserInfo, q requester.Question) *authorizationv1.SubjectAccessReview {
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: q.Verb, Group: q.Group, Resource: q.Resource, Name: q.Name, Namespace: q.Namespace,
		},
	}}
}
