package operator

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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// added has the server that was added to a manager.
type added struct {
	ctrl.Manager
	server *manager.Server
}

func (a *added) Add(r manager.Runnable) error {
	a.server = r.(*manager.Server)
	return nil
}

// startProbes serves probes on a free port and returns its address.
func startProbes(t *testing.T, p *probes) string {
	t.Helper()
	a := &added{}
	if err := addPort(t.Context(), a, "probes", "127.0.0.1:0", nil, &http.Server{Handler: p, MaxHeaderBytes: probeHeaderBytes}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- a.server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return a.server.Listener.Addr().String()
}

// Connections whose header does not end do not keep a probe out, whether one client has all
// of them or many clients have one each.
func TestProbesAnswerBesideUnfinishedHeaders(t *testing.T) {
	for name, from := range map[string]func(i int) net.IP{
		"of one client":    func(int) net.IP { return net.IPv4(127, 0, 0, 2) },
		"of a few clients": func(i int) net.IP { return net.IPv4(127, 0, 0, byte(2+i%8)) },
		"of many clients":  func(i int) net.IP { return net.IPv4(127, 0, 1, byte(i)) },
	} {
		t.Run(name, func(t *testing.T) {
			address := startProbes(t, newProbes(logr.Discard()))
			for i := range 250 {
				conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from(i)}}).DialContext(t.Context(), "tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ") // conn may be closed already
			}
			for range 3 {
				if code := ask(t, address, ""); code != http.StatusOK {
					t.Errorf("status %d", code)
				}
			}
		})
	}
}

// A header is refused at a few KiB.
func TestProbesReadNoLongHeader(t *testing.T) {
	address := startProbes(t, newProbes(logr.Discard()))
	if code := ask(t, address, strings.Repeat("x", 16<<10)); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a huge header got %d", code)
	}
}

// ask probes a server on a new connection, with a header of any content.
func ask(t *testing.T, address, header string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Header", header)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func probe(p *probes, path string) (int, string) {
	recorder := httptest.NewRecorder()
	p.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

func TestReadinessIsAskedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbes(logr.Discard())
		var asked int
		var problem error
		p.AddReadiness("flaky", func(*http.Request) error { asked++; return problem })
		p.AddReadiness("fine", func(*http.Request) error { return nil })
		for range 100 {
			if code, body := probe(p, "/readyz"); code != http.StatusOK {
				t.Fatalf("%d %s", code, body)
			}
		}
		if asked != 1 {
			t.Errorf("100 probes in a moment made %d checks", asked)
		}
		problem = errors.New("the disk is full")
		<-time.After(time.Second)
		if code, body := probe(p, "/readyz"); code != http.StatusInternalServerError || strings.Contains(body, "disk") || !strings.Contains(body, "[-]flaky failed") {
			t.Errorf("%d %s", code, body)
		}
		if code, body := probe(p, "/readyz/flaky"); code != http.StatusInternalServerError || !strings.Contains(body, "the disk is full") {
			t.Errorf("%d %s", code, body)
		}
		for path, want := range map[string]int{"/readyz/fine": 200, "/healthz": 200, "/readyz/none": 404, "/metrics": 404} {
			if code, _ := probe(p, path); code != want {
				t.Errorf("%s: %d, want %d", path, code, want)
			}
		}
	})
}
