package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reviewer is an API server that knows two tokens, one of which may read.
type reviewer struct {
	client.Writer
	tokens, accesses int
	down             error
}

func (r *reviewer) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	if r.down != nil {
		return r.down
	}
	switch review := object.(type) {
	case *authenticationv1.TokenReview:
		r.tokens++
		review.Status.Authenticated = review.Spec.Token == "reader" || review.Spec.Token == "outsider"
		review.Status.User = authenticationv1.UserInfo{Username: review.Spec.Token, Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	case *authorizationv1.SubjectAccessReview:
		r.accesses++
		spec := review.Spec
		review.Status.Allowed = spec.User == "reader" && len(spec.Groups) == 1 && len(spec.Extra["k"]) == 1 &&
			*spec.NonResourceAttributes == authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
	}
	return nil
}

func TestAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &reviewer{}
		guarded := newAccess(server, logr.Discard()).guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		ask := func(header string) int {
			recorder := httptest.NewRecorder()
			request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			if header != "" {
				request.Header.Set("Authorization", header)
			}
			guarded.ServeHTTP(recorder, request)
			return recorder.Code
		}
		expect := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d, want %d", what, got, want)
			}
		}
		expect("no token", ask(""), 401)
		expect("another scheme", ask("Basic abc"), 401)
		expect("no token is asked about", server.tokens, 0)
		expect("a token that may read", ask("Bearer reader"), 200)
		expect("the same again", ask("Bearer reader"), 200)
		expect("reviews of it", server.tokens, 1)
		refused := 0
		for i := range 1000 {
			if ask(fmt.Sprint("Bearer x", i)) == 429 {
				refused++
			}
		}
		expect("made-up tokens that are refused unasked", refused, 1000-maxUnknown+1)
		<-time.After(time.Second)
		expect("a token that may not", ask("Bearer outsider"), 403)
		expect("reviews", server.tokens, maxUnknown+1)
		expect("reviews of rights", server.accesses, 2)

		// Requests of unauthenticated clients do not delay a review of a known token.
		<-time.After(allowedFor)
		expect("a made-up token", ask("Bearer y"), 401)
		expect("the reader, whose answer is old", ask("Bearer reader"), 200)
		expect("reviews", server.tokens, maxUnknown+3)
		server.down = errors.New("away")
		expect("the reader, while an answer holds", ask("Bearer reader"), 200)
		<-time.After(allowedFor)
		expect("the reader, after it", ask("Bearer reader"), 503)
		server.down = nil
		expect("the reader, once it is back", ask("Bearer reader"), 200)
	})
}
