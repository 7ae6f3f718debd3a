package ports

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// allowedFor is how long Access uses an answer that allows a token. Until knownFor after
	// that answer, the limits for unknown tokens do not apply to the token.
	allowedFor = 30 * time.Second
	knownFor   = time.Hour
	maxKnown   = 64
	// Each unknown token costs the API server a review. So Access asks about one unknown
	// token of each client address in unknownEvery, and about maxUnknown in a second of all
	// addresses.
	unknownEvery = time.Second
	maxUnknown   = 5
	// maxToken is longer than any token of a ServiceAccount.
	maxToken      = 8 << 10
	reviewTimeout = 5 * time.Second
)

// Access lets a client read a URL if the API server allows the user of its token to get that
// URL. It asks by TokenReview and SubjectAccessReview. It is safe for concurrent use.
type Access struct {
	client client.Writer
	log    logr.Logger

	mu        sync.Mutex
	known     map[accessKey]time.Time  // when it was allowed
	strangers map[netip.Addr]time.Time // when a client last sent an unknown token; 2*maxUnknown at most
	unknown   *rate.Limiter
}

// accessKey is a token that was allowed to get a path.
type accessKey struct {
	token [sha256.Size]byte
	path  string
}

// NewAccess returns an Access.
func NewAccess(c client.Writer, log logr.Logger) *Access {
	return &Access{client: c, log: log, known: map[accessKey]time.Time{}, strangers: map[netip.Addr]time.Time{},
		unknown: rate.NewLimiter(maxUnknown, maxUnknown)}
}

// Guard returns next behind Access.
func (a *Access) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !bearer || token == "" || len(token) > maxToken {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		code := a.allows(r.Context(), token, r.URL.Path, ConnectionOf(r.Context()).Client())
		if code != http.StatusOK {
			if code == http.StatusTooManyRequests {
				w.Header().Set("Retry-After", "1")
			}
			http.Error(w, http.StatusText(code), code)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allows returns 200, or the status of the refusal.
func (a *Access) allows(ctx context.Context, token, path string, client netip.Addr) int {
	key := accessKey{sha256.Sum256([]byte(token)), path}
	allowed, mayAsk := a.recall(key, client)
	switch {
	case allowed:
		return http.StatusOK
	case !mayAsk:
		return http.StatusTooManyRequests
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	code, err := a.review(ctx, token, path)
	if err != nil {
		a.log.Info("Could not check whether a client may read a URL", "path", path, "reason", err.Error())
	}
	a.remember(key, code == http.StatusOK, err)
	return code
}

// recall reports whether key is allowed, and whether the API server may be asked.
func (a *Access) recall(key accessKey, client netip.Addr) (allowed, mayAsk bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if since, ok := a.known[key]; ok && now.Sub(since) < knownFor {
		return now.Sub(since) < allowedFor, true
	}
	maps.DeleteFunc(a.strangers, func(_ netip.Addr, last time.Time) bool { return now.Sub(last) >= unknownEvery })
	if _, ok := a.strangers[client]; ok || !a.unknown.AllowN(now, 1) {
		return false, false
	}
	a.strangers[client] = now
	return false, true
}

// remember keeps an answer that allows key, and forgets one that no longer holds. It keeps
// the newest maxKnown.
func (a *Access) remember(key accessKey, allowed bool, err error) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case allowed:
		a.known[key] = now
	case err == nil:
		delete(a.known, key)
	}
	if len(a.known) > maxKnown {
		oldest := key
		for other, since := range a.known {
			if since.Before(a.known[oldest]) {
				oldest = other
			}
		}
		delete(a.known, oldest)
	}
}

// review asks the API server which user the token belongs to, and whether that user may get
// path.
func (a *Access) review(ctx context.Context, token, path string) (int, error) {
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
