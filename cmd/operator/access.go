package operator

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// allowedFor is how long access uses an answer that allows a token. Until knownFor after
	// that answer, the limits for unknown tokens do not apply to the token.
	allowedFor = 30 * time.Second
	knownFor   = time.Hour
	maxKnown   = 64
	// Each unknown token costs the API server a review. So access asks about maxUnknown in a second.
	maxUnknown = 5
	// maxToken is longer than any token of a ServiceAccount.
	maxToken      = 8 << 10
	reviewTimeout = 5 * time.Second
)

// access lets a client read a URL if the API server allows the user of its token to get that
// URL. It asks by TokenReview and SubjectAccessReview. It is safe for concurrent use.
type access struct {
	client client.Writer
	log    logr.Logger

	known   *utilcache.LRUExpireCache // when a token was allowed, by token and path
	unknown *rate.Limiter
}

// accessKey is a token that was allowed to get a path.
type accessKey struct {
	token [sha256.Size]byte
	path  string
}

func newAccess(c client.Writer, log logr.Logger) *access {
	return &access{client: c, log: log, known: utilcache.NewLRUExpireCache(maxKnown), unknown: rate.NewLimiter(maxUnknown, maxUnknown)}
}

// guard returns next behind access.
func (a *access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code := a.allows(r)
		if code == http.StatusOK {
			next.ServeHTTP(w, r)
			return
		}
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		http.Error(w, http.StatusText(code), code)
	})
}

// allows returns 200, or the status of the refusal.
func (a *access) allows(r *http.Request) int {
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer || token == "" || len(token) > maxToken {
		return http.StatusUnauthorized
	}
	key := accessKey{sha256.Sum256([]byte(token)), r.URL.Path}
	switch since, known := a.known.Get(key); {
	case known && time.Since(since.(time.Time)) < allowedFor:
		return http.StatusOK
	case !known && !a.unknown.Allow():
		return http.StatusTooManyRequests
	}
	code, err := a.review(r.Context(), token, r.URL.Path)
	switch {
	case err != nil:
		a.log.Info("Failed to check whether a client may read a URL", "path", r.URL.Path, "reason", err.Error())
	case code == http.StatusOK:
		a.known.Add(key, time.Now(), knownFor)
	default:
		a.known.Remove(key)
	}
	return code
}

// review asks the API server which user the token belongs to, and whether that user may get
// path.
func (a *access) review(ctx context.Context, token, path string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	authentication := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := a.client.Create(ctx, authentication); err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("reviewing a token: %w", err)
	}
	if !authentication.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := authentication.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	authorization := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: path},
	}}
	if err := a.client.Create(ctx, authorization); err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("reviewing access: %w", err)
	}
	if !authorization.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
