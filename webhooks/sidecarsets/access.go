package sidecarsets

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/requester"
	"github.com/sidecarset/operator/webhooks/server"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// How long an answer is used again. A yes serves all SidecarSets of one kubectl apply. A no
// is used for a second only, because an administrator may grant the right next.
const (
	allowedFor   = 10 * time.Second
	refusedFor   = time.Second
	maxRemembers = 4096 // of answers, of questions under way, and of users
)

// Any Pod of the cluster can send a review with a made-up user, and each costs the API server some
// questions. So the questions that it gets in a second are bounded, and as many may come together. Users
// who have some right have turns of their own: what is asked about made-up users does not keep them waiting.
const (
	knownFor     = time.Hour
	knownTurns   = 200
	unknownTurns = 200
)

// CachedAccess asks the API server by SubjectAccessReview. It asks once for all
// requests that need the same answer, and remembers answers for a few seconds, but
// no failures. It is safe for concurrent use.
//
// authorizerfactory of k8s.io/apiserver does the same, but does not share questions. It
// would add gRPC, CEL and OpenTelemetry to the binary: 20 MB (docs/design/0007).
type CachedAccess struct {
	client  client.Writer
	answers *utilcache.LRUExpireCache // bool by accessKey
	reviews *snapshot.Shared[accessKey, bool]

	known, unknown *rate.Limiter
	users          *utilcache.LRUExpireCache // those with some right, as JSON
}

// accessKey is a user and the question that is asked about their rights.
type accessKey struct {
	user     string // as JSON, because groups, uid and extra values decide, too
	question requester.Question
}

// NewCachedAccess returns a CachedAccess.
func NewCachedAccess(c client.Writer) *CachedAccess {
	a := &CachedAccess{
		client: c, answers: utilcache.NewLRUExpireCache(maxRemembers), users: utilcache.NewLRUExpireCache(maxRemembers),
		known: rate.NewLimiter(knownTurns, knownTurns), unknown: rate.NewLimiter(unknownTurns, unknownTurns),
	}
	a.reviews = snapshot.NewShared(maxRemembers, a.review)
	return a
}

// Allowed implements AccessReviewer.
func (a *CachedAccess) Allowed(ctx context.Context, user authenticationv1.UserInfo, question requester.Question) (bool, error) {
	identity, err := json.Marshal(user)
	if err != nil {
		return false, fmt.Errorf("encoding user: %w", err)
	}
	allowed, err := a.reviews.Get(ctx, accessKey{string(identity), question})
	if err != nil {
		return false, fmt.Errorf("reviewing access: %w", err)
	}
	return allowed, nil
}

// review returns the remembered answer, or asks the API server.
func (a *CachedAccess) review(ctx context.Context, key accessKey) (bool, error) {
	if known, ok := a.answers.Get(key); ok {
		return known.(bool), nil
	}
	var user authenticationv1.UserInfo
	if err := json.Unmarshal([]byte(key.user), &user); err != nil {
		return false, fmt.Errorf("decoding user: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	turns := a.unknown
	if _, known := a.users.Get(key.user); known {
		turns = a.known
	}
	if err := turns.Wait(ctx); err != nil {
		return false, errNoTurn
	}
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	q := key.question
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: q.Verb, Group: q.Group, Resource: q.Resource, Name: q.Name, Namespace: q.Namespace,
		},
	}}
	if err := a.client.Create(ctx, review); err != nil {
		return false, err
	}
	holds := refusedFor
	if review.Status.Allowed {
		holds = allowedFor
		a.users.Add(key.user, nil, knownFor)
	}
	a.answers.Add(key, review.Status.Allowed, holds)
	return review.Status.Allowed, nil
}

// errNoTurn says that a question was not asked before the time was over. Without an answer there is no
// verdict, in no mode of the check.
var errNoTurn = server.Unavailable("the operator asks the API server about the rights of too many users; try again in a moment")
