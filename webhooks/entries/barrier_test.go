package entries

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entryplan"
)

// pipes is a listener without a network.
type pipes struct {
	connections chan net.Conn
	closed      chan struct{}
	once        sync.Once
}

func newPipes() *pipes {
	return &pipes{connections: make(chan net.Conn), closed: make(chan struct{})}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case connection := <-p.connections:
		return connection, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.connections <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// apiServers are the API servers of a cluster, by address. One of them may refuse
// connections, or never answer.
type apiServers struct {
	client.Reader // of EndpointSlices

	published []string
	listeners map[string]*pipes
	serials   map[string]*atomic.Int64 // in force
	asked     map[string]*atomic.Int64
	refuses   sync.Map
	drops     sync.Map
}

const configuredHost = "10.96.0.1:443"

// inCluster runs a test with a barrier and the API servers that it asks, in a synctest
// bubble. The configured host answers, too.
func inCluster(t *testing.T, published []string, test func(t *testing.T, b *barrier, servers *apiServers)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &apiServers{published: published, listeners: map[string]*pipes{}, serials: map[string]*atomic.Int64{}, asked: map[string]*atomic.Int64{}}
		for _, address := range append([]string{configuredHost}, published...) {
			s.listeners[address], s.serials[address], s.asked[address] = newPipes(), &atomic.Int64{}, &atomic.Int64{}
			server := httptest.NewUnstartedServer(s.answer(address))
			server.Listener = s.listeners[address]
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()
		}
		b := &barrier{namespace: "ours", slices: s, config: &rest.Config{
			Host: "https://" + configuredHost, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Dial: s.dial, QPS: -1,
			ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		}}
		test(t, b, s)
	})
}

func (s *apiServers) dial(ctx context.Context, _, address string) (net.Conn, error) {
	if _, refuses := s.refuses.Load(address); refuses {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	if _, drops := s.drops.Load(address); drops {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	return s.listeners[address].dial(ctx)
}

func (s *apiServers) answer(address string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.asked[address].Add(1)
		probe := &corev1.ConfigMap{}
		if err := json.NewDecoder(r.Body).Decode(probe); err != nil || r.URL.Query().Get("dryRun") != "All" || !strings.HasSuffix(r.URL.Path, "/namespaces/ours/configmaps") {
			http.Error(w, "no probe", http.StatusBadRequest)
			return
		}
		probe.APIVersion, probe.Kind = "v1", "ConfigMap"
		probe.Annotations = map[string]string{entryplan.AnnotationBarrier: strconv.FormatInt(s.serials[address].Load(), 10)}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(probe)
	}
}

func (s *apiServers) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	list, ok := into.(*discoveryv1.EndpointSliceList)
	if !ok {
		return errors.New("a list of something else")
	}
	for _, address := range s.published {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		number, err := strconv.ParseInt(port, 10, 32)
		if err != nil {
			return err
		}
		list.Items = append(list.Items, discoveryv1.EndpointSlice{
			Ports: []discoveryv1.EndpointPort{{Port: new(int32(number))}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{host}}},
		})
	}
	return nil
}

// awaitFor asks for as long as the author of a SidecarSet waits.
func awaitFor(t *testing.T, b *barrier, serial int64) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proveTimeout)
	defer cancel()
	return b.await(ctx, "sidecarset-pods-3", serial)
}

func TestABarrierIsPassedWhereEveryServerIs(t *testing.T) {
	inCluster(t, []string{"10.0.0.1:6443", "10.0.0.2:6443"}, func(t *testing.T, b *barrier, servers *apiServers) {
		servers.serials["10.0.0.1:6443"].Store(8)
		servers.serials["10.0.0.2:6443"].Store(6)
		err := awaitFor(t, b, 7)
		if want := "API server 10.0.0.2:6443 uses serial 6 of sidecarset-pods-3, and not 7 yet"; err == nil || err.Error() != want || b.passed("sidecarset-pods-3", 7) {
			t.Errorf("got %v, want %s; passed: %v", err, want, b.passed("sidecarset-pods-3", 7))
		}
		servers.serials["10.0.0.2:6443"].Store(7)
		if err := awaitFor(t, b, 7); err != nil || !b.passed("sidecarset-pods-3", 7) || b.passed("sidecarset-pods-3", 8) {
			t.Errorf("got %v; passed 7: %v, 8: %v", err, b.passed("sidecarset-pods-3", 7), b.passed("sidecarset-pods-3", 8))
		}
		if servers.asked[configuredHost].Load() != 0 {
			t.Error("the configured host was asked though servers answer by their own addresses")
		}
	})
}

// An API server that does not run creates no Pods. Its address may stay published for a long
// time.
func TestABarrierLeavesOutServersThatCannotBeReached(t *testing.T) {
	inCluster(t, []string{"10.0.0.1:6443", "10.0.0.2:6443"}, func(t *testing.T, b *barrier, servers *apiServers) {
		servers.serials["10.0.0.1:6443"].Store(7)
		servers.refuses.Store("10.0.0.2:6443", true)
		if err := awaitFor(t, b, 7); err != nil || !b.passed("sidecarset-pods-3", 7) {
			t.Fatalf("one refuses connections: %v; passed: %v", err, b.passed("sidecarset-pods-3", 7))
		}
		// The API server counts again when it is back.
		servers.refuses.Delete("10.0.0.2:6443")
		if err := awaitFor(t, b, 7); err == nil || b.passed("sidecarset-pods-3", 7) {
			t.Fatal("it is back, with an old configuration, and nobody waits for it")
		}
		servers.serials["10.0.0.2:6443"].Store(7)
		if err := awaitFor(t, b, 7); err != nil || !b.passed("sidecarset-pods-3", 7) {
			t.Fatalf("it has caught up: %v", err)
		}
	})
}

func TestABarrierLeavesOutServersThatNeverAnswer(t *testing.T) {
	inCluster(t, []string{"10.0.0.1:6443", "10.0.0.2:6443"}, func(t *testing.T, b *barrier, servers *apiServers) {
		servers.serials["10.0.0.1:6443"].Store(7)
		servers.drops.Store("10.0.0.2:6443", true)
		if err := awaitFor(t, b, 7); err == nil || b.passed("sidecarset-pods-3", 7) {
			t.Fatal("a packet may have been lost, and nobody waits")
		}
		<-time.After(connectTimeout)
		synctest.Wait()
		if !b.passed("sidecarset-pods-3", 7) {
			t.Error("it is waited for though nothing answers there")
		}
		start := time.Now()
		if err := awaitFor(t, b, 7); err != nil || time.Since(start) > silentPatience {
			t.Errorf("the author of a SidecarSet waits for it for %v: %v", time.Since(start), err)
		}
		<-time.After(connectTimeout)
	})
}

func TestABarrierAsksTheConfiguredHostIfNoOtherAnswers(t *testing.T) {
	tests := map[string][]string{
		"none is published":                       nil,
		"those that are published are elsewhere":  {"10.0.0.1:6443", "10.0.0.2:6443"},
		"the one that is published hides another": {"10.0.0.1:6443"},
	}
	for name, published := range tests {
		t.Run(name, func(t *testing.T) {
			inCluster(t, published, func(t *testing.T, b *barrier, servers *apiServers) {
				for _, address := range published {
					servers.refuses.Store(address, true)
				}
				servers.serials[configuredHost].Store(6)
				if err := awaitFor(t, b, 7); err == nil || b.passed("sidecarset-pods-3", 7) {
					t.Fatalf("passed by an older serial: %v", err)
				}
				servers.serials[configuredHost].Store(7)
				if err := awaitFor(t, b, 7); err != nil || !b.passed("sidecarset-pods-3", 7) {
					t.Errorf("got %v; passed: %v", err, b.passed("sidecarset-pods-3", 7))
				}
			})
		})
	}
}
