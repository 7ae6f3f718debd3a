package ports

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// startProbes serves probes on a free port and returns its address.
func startProbes(t *testing.T, probes *Probes) string {
	t.Helper()
	server, err := NewServer(t.Context(), Options{Name: "probes", Address: "127.0.0.1:0", Handler: probes, MaxHeaderBytes: 4 << 10, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return server.Listener.Addr().String()
}

// A header is refused at a few KiB, and a thousand connections that begin one do
// not keep a probe out.
func TestProbesAnswerBesideUnfinishedHeaders(t *testing.T) {
	address := startProbes(t, NewProbes(logr.Discard()))
	for range 300 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ")
	}
	response, err := http.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("status %d", response.StatusCode)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Huge", strings.Repeat("x", 16<<10))
	response, err = http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a huge header got %d", response.StatusCode)
	}
}

func probe(probes *Probes, path string) (int, string) {
	recorder := httptest.NewRecorder()
	probes.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

func TestReadinessIsAskedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := NewProbes(logr.Discard())
		var asked int
		var problem error
		probes.AddReadiness("flaky", func(*http.Request) error { asked++; return problem })
		probes.AddReadiness("fine", func(*http.Request) error { return nil })
		for range 100 {
			if code, body := probe(probes, "/readyz"); code != http.StatusOK || body != "ok" {
				t.Fatalf("%d %s", code, body)
			}
		}
		if asked != 1 {
			t.Errorf("100 probes in a moment made %d checks", asked)
		}
		problem = errors.New("the disk is full")
		<-time.After(time.Second)
		if code, body := probe(probes, "/readyz"); code != http.StatusInternalServerError || strings.Contains(body, "disk") || !strings.Contains(body, "[-]flaky failed") {
			t.Errorf("%d %s", code, body)
		}
		if code, body := probe(probes, "/readyz/flaky"); code != http.StatusInternalServerError || !strings.Contains(body, "the disk is full") {
			t.Errorf("%d %s", code, body)
		}
		for path, want := range map[string]int{"/readyz/fine": 200, "/healthz": 200, "/readyz/none": 404, "/metrics": 404} {
			if code, _ := probe(probes, path); code != want {
				t.Errorf("%s: %d, want %d", path, code, want)
			}
		}
	})
}

// A check that hangs delays no probe: the answer is the one from before, for a
// while.
func TestReadinessDoesNotWaitForSlowChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := NewProbes(logr.Discard())
		hang := make(chan struct{})
		close(hang)
		probes.AddReadiness("slow", func(*http.Request) error { <-hang; return nil })
		if code, body := probe(probes, "/readyz"); code != http.StatusOK {
			t.Fatalf("%d %s", code, body)
		}
		hang = make(chan struct{})
		defer close(hang)
		<-time.After(5 * time.Second)
		if code, body := probe(probes, "/readyz"); code != http.StatusOK {
			t.Errorf("while a check takes long: %d %s", code, body)
		}
		<-time.After(oldestAnswer)
		if code, body := probe(probes, "/readyz"); code != http.StatusInternalServerError || !strings.Contains(body, "have not ended") {
			t.Errorf("while a check hangs: %d %s", code, body)
		}
	})
}
