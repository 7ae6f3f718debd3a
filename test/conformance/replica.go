// Package conformance holds every way to obtain certificates against the same
// laws: what is served before it is trusted, what stays secret, and that neither
// a renewal nor a change of CA loses a handshake. It runs in the time of a
// synctest bubble against a stand-in as well as in real time against a real API
// server and a real cert-manager. It is imported by tests only.
package conformance

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/sidecarset/operator/certs"
)

// Mode is one way to obtain certificates, on one API server. Each test gets one
// of its own, with nothing in it.
type Mode struct {
	// Client is the administrator's; replicas use it as well.
	Client client.WithWatch
	// Options, Host and Targets are those of every replica. Options.Settle has to
	// be longer than Lag.
	Options certs.Options
	Host    string
	Targets []certs.Target
	// Bundles returns the CA bundles that API servers trust, by place.
	Bundles func(ctx context.Context) (map[string]string, error)
	// Reset takes the bundle away from one place.
	Reset func(t *testing.T)
	// Provide makes the first certificate, where replicas do not.
	Provide func(t *testing.T)
	// Renew has another leaf of the same CA come.
	Renew func(t *testing.T)
	// ChangeCA has another CA come, with another key.
	ChangeCA func(t *testing.T)
	// MayHoldKey names the Secret that holds the key of the serving certificate,
	// "" if none does.
	MayHoldKey string
	// Empty is what a replica says that was started before there was anything.
	Empty string
	// Tell returns a client through which the answers of API servers set a clock.
	Tell func(t *testing.T, clock *certs.ServerClock) client.WithWatch
	// Serve, if set, has real API servers call a replica that started.
	Serve func(t *testing.T, number int, serving *certs.Serving)
	// Call, if set, has an API server call all replicas.
	Call func(ctx context.Context) error

	// Patience bounds every wait, Interval is the pause between handshakes and
	// Lag how old a bundle may be that an API server still uses.
	Patience, Interval, Lag time.Duration
}

// replica is one process of the operator, as far as certificates go.
type replica struct {
	*certs.Serving
	mode     *Mode
	runs     []manager.Runnable
	log      *logs
	events   *recorder
	stop     func()
	stopLead func()

	published atomic.Bool // may publish
}

// newReplica makes a replica that is not started.
func newReplica(t *testing.T, m *Mode) *replica {
	t.Helper()
	r := &replica{mode: m, log: &logs{}, events: &recorder{}, stop: func() {}, stopLead: func() {}}
	r.published.Store(true)
	api := m.Client
	if m.Options.ServerClock != nil {
		api = m.Tell(t, m.Options.ServerClock)
	}
	held := interceptor.NewClient(api, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if !r.published.Load() {
				return errors.New("the test holds back what is published")
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	opts := m.Options
	opts.Events = r.events
	serving, err := certs.Assemble(held, m.Host, opts, m.Targets...)
	if err != nil {
		t.Fatalf("Assemble: %v", err)
	}
	r.Serving, r.runs = serving, []manager.Runnable{serving.Published, serving.Source}
	return r
}

// start runs what every replica runs, until the test ends.
func (r *replica) start(t *testing.T) {
	r.stop = r.run(t, r.runs...)
	t.Cleanup(func() { r.stop() })
}

// lead runs what the leader runs, until resign or the end of the test.
func (r *replica) lead(t *testing.T) {
	r.stopLead = r.run(t, r.Leader...)
	t.Cleanup(func() { r.stopLead() })
}

func (r *replica) resign() { r.stopLead() }

// run starts runnables; the result stops them and waits, however often it is called.
func (r *replica) run(t *testing.T, runnables ...manager.Runnable) func() {
	ctx, cancel := context.WithCancel(log.IntoContext(context.WithoutCancel(t.Context()), r.log.logger()))
	var wg sync.WaitGroup
	for _, runnable := range runnables {
		wg.Go(func() {
			if err := runnable.Start(ctx); err != nil {
				t.Errorf("Start: %v", err)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// leaf returns what the replica serves, or nil.
func (r *replica) leaf() *tls.Certificate {
	cert, err := r.Source.GetCertificate(&tls.ClientHelloInfo{ServerName: r.mode.Host})
	if err != nil {
		return nil
	}
	return cert
}

// logs keeps what a replica logs, up to the level at which the client library
// begins to log the bodies of requests; the operator's logger drops those.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text.WriteString(prefix + " " + args + "\n")
	}, funcr.Options{Verbosity: 7})
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await polls until check returns nil.
func (m *Mode) await(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(m.Patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, m.Patience, err)
		}
		<-time.After(m.Interval)
	}
}

// awaitReady waits until replicas are ready.
func (m *Mode) awaitReady(t *testing.T, replicas ...*replica) {
	t.Helper()
	for i, r := range replicas {
		m.await(t, "readiness", func() error { return r.Readiness.Ready(t.Context()) })
		if m.Serve != nil {
			m.Serve(t, i, r.Serving)
		}
	}
}

// awaitPublished waits until every place holds the bundle of each replica.
// Ready says less: a replica is ready once one client accepts its leaf.
func (m *Mode) awaitPublished(t *testing.T, replicas ...*replica) {
	t.Helper()
	m.await(t, "the bundle in every place", func() error {
		bundles, err := m.Bundles(t.Context())
		for place, bundle := range bundles {
			for i, r := range replicas {
				if bundle != string(r.Source.Bundle()) {
					err = errors.Join(err, fmt.Errorf("%s does not hold the bundle of replica %d", place, i))
				}
			}
		}
		return err
	})
}
