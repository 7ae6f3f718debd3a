package sidecarsets_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/requester"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

// authorizer is a fake API server. It allows everything to the users in granted.
type authorizer struct {
	client.Writer
	wait chan struct{} // if not nil, answers wait until it is closed

	mu      sync.Mutex
	granted []string // users
	err     error
	reviews []authorizationv1.SubjectAccessReviewSpec
}

func (a *authorizer) Create(ctx context.Context, object client.Object, _ ...client.CreateOption) error {
	review := object.(*authorizationv1.SubjectAccessReview)
	a.mu.Lock()
	a.reviews = append(a.reviews, review.Spec)
	review.Status.Allowed = slices.Contains(a.granted, review.Spec.User)
	err := a.err
	a.mu.Unlock()
	if a.wait != nil {
		select {
		case <-a.wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (a *authorizer) grant(user string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.granted, a.err = append(a.granted, user), err
}

func (a *authorizer) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.reviews)
}

var createPods = requester.Question{Verb: "create", Resource: "pods", Namespace: "team-a"}

func TestAccessIsReviewedForTheWholeUser(t *testing.T) {
	server := &authorizer{}
	user := authenticationv1.UserInfo{Username: "jane", UID: "1", Groups: []string{"devs"}, Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a", "b"}}}
	question := requester.Question{Verb: "inject-privileged", Group: "apps.kruise.io", Resource: "sidecarsets", Name: "log"}
	if allowed, err := sidecarsets.NewCachedAccess(server).Allowed(t.Context(), user, question); allowed || err != nil {
		t.Errorf("got %v, %v", allowed, err)
	}
	want := []authorizationv1.SubjectAccessReviewSpec{{
		User: "jane", UID: "1", Groups: []string{"devs"}, Extra: map[string]authorizationv1.ExtraValue{"scopes": {"a", "b"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "inject-privileged", Group: "apps.kruise.io", Resource: "sidecarsets", Name: "log"},
	}}
	if diff := cmp.Diff(want, server.reviews); diff != "" {
		t.Errorf("reviews (-want +got):\n%s", diff)
	}
}

func TestAccessIsRememberedForSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &authorizer{granted: []string{"jane"}}
		access := sidecarsets.NewCachedAccess(server)
		expect := func(user string, want bool, requests int) {
			t.Helper()
			got, err := access.Allowed(t.Context(), authenticationv1.UserInfo{Username: user}, createPods)
			if err != nil || got != want {
				t.Errorf("%s got %v, %v, want %v", user, got, err, want)
			}
			if n := server.count(); n != requests {
				t.Errorf("%d reviews after asking for %s, want %d", n, user, requests)
			}
		}
		expect("jane", true, 1)
		expect("jane", true, 1)
		expect("joe", false, 2)
		expect("joe", false, 2)
		server.grant("joe", nil)
		<-time.After(2 * time.Second)
		expect("joe", true, 3) // a no is used again for one second only
		expect("jane", true, 3)
		<-time.After(20 * time.Second)
		expect("jane", true, 4)
		server.grant("ann", errors.New("no answer"))
		if allowed, err := access.Allowed(t.Context(), authenticationv1.UserInfo{Username: "ann"}, createPods); allowed || err == nil {
			t.Errorf("without an answer got %v, %v", allowed, err)
		}
		server.grant("ann", nil)
		expect("ann", true, 6) // a failure is not remembered
	})
}

func TestConcurrentEqualQuestionsShareOneAccessReview(t *testing.T) {
	server := &authorizer{granted: []string{"jane"}, wait: make(chan struct{})}
	access := sidecarsets.NewCachedAccess(server)
	jane := authenticationv1.UserInfo{Username: "jane"}

	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := access.Allowed(impatient, jane, createPods); !errors.Is(err, context.Canceled) {
		t.Errorf("the first, which gave up, got %v", err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if allowed, err := access.Allowed(t.Context(), jane, createPods); !allowed || err != nil {
				t.Errorf("got %v, %v", allowed, err)
			}
		})
	}
	close(server.wait)
	wg.Wait()
	if n := server.count(); n != 1 {
		t.Errorf("%d reviews, want 1", n)
	}
}

// Of many answers, only the last ones are remembered.
func TestAccessRemembersABoundedNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &authorizer{}
		access := sidecarsets.NewCachedAccess(server)
		ask := func(user int) {
			t.Helper()
			if _, err := access.Allowed(t.Context(), authenticationv1.UserInfo{Username: fmt.Sprint(user)}, createPods); err != nil {
				t.Fatal(err)
			}
		}
		const users = 10_000
		for user := range users {
			ask(user)
		}
		ask(users - 1)
		if n := server.count(); n != users {
			t.Errorf("%d reviews for %d users: the last answer is not remembered", n, users)
		}
		ask(users - 4097)
		if n := server.count(); n != users+1 {
			t.Errorf("%d reviews for %d users: it remembers more than 4096 answers", n, users)
		}
	})
}

// Any Pod can send reviews with made-up users. A user who has some right does not wait for them.
func TestQuestionsAboutMadeUpUsersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &authorizer{granted: []string{"jane"}}
		access := sidecarsets.NewCachedAccess(api)
		ask := func(user string, namespace int) error {
			_, err := access.Allowed(t.Context(), authenticationv1.UserInfo{Username: user}, requester.Question{Verb: "create", Resource: "pods", Namespace: fmt.Sprint("team-", namespace)})
			return err
		}
		if err := ask("jane", 0); err != nil {
			t.Fatal(err)
		}
		const span = 10
		began, refused := time.Now(), 0
		var mu sync.Mutex
		var clients sync.WaitGroup
		for i := range 4000 {
			clients.Go(func() {
				<-time.After(time.Duration(i) * span * time.Second / 4000)
				for namespace := range 20 {
					if err := ask(fmt.Sprint("ghost-", i/20), i*100+namespace); err != nil {
						mu.Lock()
						refused++
						mu.Unlock()
					}
				}
			})
		}
		<-time.After(span / 2 * time.Second)
		for i := range 20 {
			if err := ask("jane", i); err != nil {
				t.Errorf("a user who is known: %v", err)
			}
		}
		clients.Wait()
		took := time.Since(began)
		if most := int(took.Seconds()+2) * 500; api.count() > most || refused == 0 {
			t.Errorf("the API server was asked %d times in %v, want %d at most; %d questions were refused", api.count(), took, most, refused)
		}
	})
}
