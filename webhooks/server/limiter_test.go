package server_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/webhooks/server"
)

// blocking is a handler that answers only when the test lets it.
type blocking struct {
	entered chan struct{}
	leave   chan struct{}
}

func newBlocking(t *testing.T) *blocking {
	b := &blocking{entered: make(chan struct{}, 1000), leave: make(chan struct{})}
	t.Cleanup(sync.OnceFunc(func() { close(b.leave) }))
	return b
}

func (b *blocking) serve(context.Context, http.ResponseWriter, server.Request) error {
	b.entered <- struct{}{}
	<-b.leave
	return nil
}

func small() server.Limits {
	return server.Limits{Body: 1 << 20, Large: 1 << 20, Active: 1}
}

// bounded are limits of the group in which start registers handlers.
func bounded(l server.Limits) map[server.Group]server.Limits {
	return map[server.Group]server.Limits{server.GroupSidecarSets: l}
}

// answer is what a client sees of an answer.
type answer struct {
	status              int
	retryAfter, content string
	closes              bool
	err                 error
}

func ask(client *http.Client, url string) answer {
	return answerOf(client.Post(url, "application/json", strings.NewReader("{}")))
}

func answerOf(response *http.Response, err error) answer {
	if err != nil {
		return answer{err: err}
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header.Get("Retry-After"), string(content), response.Close, err}
}

func TestWaitingEndsSoon(t *testing.T) {
	handler := newBlocking(t)
	s := start(t, server.Options{Limits: bounded(small())}, map[string]server.Handler{"/x": handler.serve})
	s.Register(server.GroupPods, "/pods", answerOK)
	registry := prometheus.NewRegistry()
	s.Instrument(registry)
	first := make(chan answer, 1)
	go func() { first <- ask(s.client(t), s.url("/x")) }()
	<-handler.entered
	refused := ask(s.client(t), s.url("/x"))
	if refused.status != http.StatusTooManyRequests || refused.retryAfter != "1" || refused.closes {
		t.Errorf("%+v; want status 429, Retry-After 1, and a connection that stays", refused)
	}
	for _, want := range []string{`"kind":"Status"`, `"reason":"TooManyRequests"`, `"code":429`, `"retryAfterSeconds":1`} {
		if !strings.Contains(refused.content, want) {
			t.Errorf("the answer lacks %s: %s", want, refused.content)
		}
	}
	if got := ask(s.client(t), s.url("/pods")); got.status != http.StatusOK {
		t.Errorf("another group got %+v", got)
	}
	if got := metric(t, registry, "sidecarset_webhook_rejected_requests_total", "sidecarsets", "busy"); got != 1 {
		t.Errorf("%v refusals are counted", got)
	}
	if got := metric(t, registry, "sidecarset_webhook_requests_in_flight", "sidecarsets"); got != 1 {
		t.Errorf("%v requests are in flight", got)
	}
	handler.leave <- struct{}{}
	if got := <-first; got.status != http.StatusOK {
		t.Errorf("the request that had the seat got %+v", got)
	}
}

// stalled sends part of a body and then nothing more.
func stalled(t *testing.T, s *running, path string, length int) *tls.Conn {
	t.Helper()
	conn := s.dial(t)
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, 2*length)
	_, _ = io.WriteString(conn, head+strings.Repeat(" ", length)) // the server may have refused it before the end
	return conn
}

func TestSlowBodiesTakeNoSeat(t *testing.T) {
	s := start(t, server.Options{Limits: bounded(small())}, map[string]server.Handler{"/x": answerOK})
	for range 20 {
		stalled(t, s, "/x", 10)
	}
	if response, content := post(t, s.client(t), s.url("/x"), strings.NewReader("{}")); response.StatusCode != http.StatusOK {
		t.Errorf("got %d %s", response.StatusCode, content)
	}
}

// The rest of a large body is read when there is room for all of it. Small bodies need no room.
func TestLargeBodiesWaitForRoom(t *testing.T) {
	s := start(t, server.Options{Limits: bounded(small()), BodyTimeout: time.Minute}, map[string]server.Handler{"/x": answerOK})
	holder := stalled(t, s, "/x", 400<<10)
	large := strings.Repeat(" ", 900<<10)
	await.That(t, func() bool {
		return answerOf(s.client(t).Post(s.url("/x"), "application/json", strings.NewReader(large))).status == http.StatusTooManyRequests
	}, "a refusal")
	if got := ask(s.client(t), s.url("/x")); got.status != http.StatusOK {
		t.Errorf("a small body got %+v", got)
	}
	_ = holder.Close()
	await.That(t, func() bool {
		return answerOf(s.client(t).Post(s.url("/x"), "application/json", strings.NewReader(large))).status == http.StatusOK
	}, "an answer")
}

func TestBodiesAreComplete(t *testing.T) {
	s := start(t, server.Options{}, nil)
	s.Register(server.GroupConversions, "/convert", answerOK)
	for _, size := range []int{1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 80 << 10, 3 << 20} {
		body := strings.Repeat("0123456789abcdef", size/16+1)[:size]
		if _, content := post(t, s.client(t), s.url("/convert"), strings.NewReader(body)); content != body {
			t.Errorf("of %d bytes %d came back", size, len(content))
		}
	}
}

func TestRefusalsCloseTheConnection(t *testing.T) {
	s := start(t, server.Options{}, map[string]server.Handler{"/x": answerOK})
	tests := map[string]struct {
		method, path, contentType string
		status                    int
	}{
		"another method":       {http.MethodGet, "/x", "application/json", http.StatusMethodNotAllowed},
		"another content type": {http.MethodPost, "/x", "text/plain", http.StatusUnsupportedMediaType},
		"no content type":      {http.MethodPost, "/x", "", http.StatusUnsupportedMediaType},
		"another path":         {http.MethodPost, "/y", "application/json", http.StatusNotFound},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), tc.method, s.url(tc.path), strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", tc.contentType)
			response, err := s.client(t).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != tc.status || !response.Close {
				t.Errorf("got %d, closing: %t; want %d", response.StatusCode, response.Close, tc.status)
			}
		})
	}
}

// At the bound, a new connection is closed.
func TestConnectionsWithRequestsKeepOutOthers(t *testing.T) {
	handler := newBlocking(t)
	s := start(t, server.Options{MaxConnections: 4}, map[string]server.Handler{"/x": handler.serve})
	working := make(chan answer, 4)
	for range 4 {
		go func() { working <- ask(s.client(t), s.url("/x")) }()
		<-handler.entered
	}
	if got := ask(s.client(t), s.url("/x")); got.err == nil {
		t.Errorf("the fifth connection got %+v", got)
	}
	for range 4 {
		handler.leave <- struct{}{}
		if got := <-working; got.status != http.StatusOK {
			t.Errorf("a request in flight got %+v", got)
		}
	}
}

// metric returns the value of the metric with those label values.
func metric(t *testing.T, registry *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var values []string
			for _, label := range m.GetLabel() {
				values = append(values, label.GetValue())
			}
			if family.GetName() == name && cmp.Equal(values, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s of %v", name, labels)
	return 0
}
