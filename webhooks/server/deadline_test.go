package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sidecarset/operator/webhooks/server"
)

// A client gets the reason why a handler cannot answer. TestEveryRequestHasADeadline
// shows that this is before the API server gives up.
func TestAHandlerThatWaitsAnswersBeforeTheAPIServerGivesUp(t *testing.T) {
	hangs := func(ctx context.Context, _ http.ResponseWriter, _ server.Request) error {
		<-ctx.Done()
		return server.Unavailable(fmt.Sprintf("reading Namespace a: %v", ctx.Err()))
	}
	s := start(t, server.Options{}, map[string]server.Handler{"/x": hangs})
	for _, timeout := range []time.Duration{time.Second, 2 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			t.Parallel()
			response, content := post(t, s.client(t), s.url("/x?timeout="+timeout.String()), strings.NewReader("{}"))
			if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(content, "reading Namespace a: context deadline exceeded") {
				t.Errorf("got %d %s", response.StatusCode, content)
			}
		})
	}
}

func TestEveryRequestHasADeadline(t *testing.T) {
	const longest = time.Minute // the server's WriteTimeout
	left := make(chan time.Duration, 1)
	s := start(t, server.Options{WriteTimeout: longest}, map[string]server.Handler{"/x": func(ctx context.Context, _ http.ResponseWriter, _ server.Request) error {
		deadline, ok := ctx.Deadline()
		if !ok {
			return errors.New("no deadline")
		}
		left <- time.Until(deadline)
		return nil
	}})
	client := s.client(t)
	for query, want := range map[string]time.Duration{
		"":                   longest,
		"?timeout=30s":       30 * time.Second,
		"?timeout=24h":       longest,
		"?timeout=-1s":       longest,
		"?timeout=soon":      longest,
		"?other=1":           longest,
		"?a=b&timeout=20s":   20 * time.Second,
		"?timeout=1m0s&x=%2": longest,
	} {
		if response, content := post(t, client, s.url("/x"+query), strings.NewReader("{}")); response.StatusCode != http.StatusOK {
			t.Fatalf("%q: %d %s", query, response.StatusCode, content)
		}
		// A part of the time has passed when the handler is called, but not much.
		if got := <-left; got > want-300*time.Millisecond || got < want-10*time.Second {
			t.Errorf("%q leaves %v of %v", query, got, want)
		}
	}
}
