// Package conformance tests every way to obtain certificates by the same laws: which certificate
// a replica serves before API servers trust it, which keys stay secret, and that neither a
// renewal nor a change of CA makes a handshake fail. It runs in a synctest bubble with a
// stand-in, and in real time with a real API server and a real cert-manager. Only tests
// import it.
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

// Mode is one way to obtain certificates, on one API server. Each test gets a Mode of its own,
// without certificates.
type Mode struct {
	// Client is the client of the administrator and of replicas.
	Client client.WithWatch
	// Options, Host and Targets are those of every replica. Options.Settle has to
	// be longer than Lag.
	Options certs.Options
	Host    string
	Targets []certs.Target
	// Bundles returns the CA bundles that API servers trust, by place.
	Bundles func(ctx context.Context) (map[string]string, error)
	// Reset removes the bundle from one place.
	Reset func(t *testing.T)
	// Provide makes the first certificate, if replicas do not make it; nil if they do.
	Provide func(t *testing.T)
	// Renew causes another leaf of the same CA, if it does not come by itself.
	Renew func(t *testing.T)
	// ChangeCA causes another CA with another key.
	ChangeCA func(t *testing.T)
	// MayHoldKey names the Secret that holds the key of the serving certificate,
	// "" if none does.
	MayHoldKey string
	// Empty is the error of a replica that was started before there was a certificate.
	Empty string
	// Tell returns a client that sets a clock by the API servers' answers.
	Tell func(t *testing.T, clock *certs.ServerClock) client.WithWatch
	// Serve, if set, makes real API servers call a replica that started.
	Serve func(t *testing.T, number int, serving *certs.Serving)
	// Call, if set, makes an API server call all replicas.
	Call func(ctx context.Context) error

	// Patience bounds every wait. Interval is the pause between handshakes. Lag is for how
	// long an API server may still use an old bundle.
	Patience, Interval, Lag time.Duration
}

// replica is the part of one operator process that is about certificates.
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

// lead also runs what only the leader runs, until resign or the end of the test.
func (r *replica) lead(t *testing.T) {
	r.stopLead = r.run(t, r.Leader...)
	t.Cleanup(func() { r.stopLead() })
}

func (r *replica) resign() { r.stopLead() }

// run starts runnables. The returned function stops them and waits; it may be called again.
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

// leaf returns the certificate that the replica serves, or nil.
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

// awaitPublished waits until every place holds the bundle of each replica. Readiness is not
// enough: a replica is ready as soon as one client accepts its leaf.
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
