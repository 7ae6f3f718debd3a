package certs_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/sidecarset/operator/certs"
)

// mode is one way to obtain certificates, on one API server. Each test has one of its own, without
// certificates.
type mode struct {
	client.WithWatch // of the administrator and of replicas
	certs.Options    // of every replica
	writes           *writes

	// provide makes the first certificate, if replicas do not make it.
	provide func(t *testing.T)
	// renew causes another leaf of the same CA; nil if there is no such thing.
	renew func(t *testing.T)
	// changeCA causes another CA with another key.
	changeCA func(t *testing.T)
	// empty is the error of a replica that was started before there was a certificate.
	empty string
}

// The tests run in bubbles of synctest, in which time costs nothing. API servers may use a bundle for lag after it
// was replaced. It is shorter than Times.Hold.
const (
	patience = 30 * time.Minute
	interval = 5 * time.Second // between handshakes
	lag      = 20 * time.Second
)

// replica is the part of one operator process that is about certificates.
type replica struct {
	*certs.Serving
	log      *logs
	events   *events.FakeRecorder
	stop     func()
	stopLead func()

	published atomic.Bool // may publish
	suspended atomic.Bool // its requests fail
	deaf      atomic.Bool // its watches bring nothing
}

var errSuspended = errors.New("the process is suspended")

// newReplica makes a replica that is not started.
func newReplica(t *testing.T, m *mode) *replica {
	t.Helper()
	r := &replica{log: &logs{}, events: events.NewFakeRecorder(1000), stop: func() {}, stopLead: func() {}}
	r.published.Store(true)
	held := interceptor.NewClient(m.WithWatch, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if r.suspended.Load() {
				return errSuspended
			}
			return c.Get(ctx, key, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := mayWrite(ctx, c, o); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if r.suspended.Load() {
				return errSuspended
			}
			if !r.published.Load() {
				return errors.New("the test holds back what is published")
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	opts := m.Options
	opts.Events = r.events
	serving, err := certs.Assemble(held, informers{t, m, r}, host, opts, targets)
	if err != nil {
		t.Fatalf("Assemble: %v", err)
	}
	r.Serving = serving
	return r
}

// mayWrite refuses what an API server refuses in a Secret that exists.
func mayWrite(ctx context.Context, c client.Client, o client.Object) error {
	next, is := o.(*corev1.Secret)
	stored := &corev1.Secret{}
	if !is {
		return nil
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), stored); err != nil {
		return client.IgnoreNotFound(err)
	}
	if next.Type != stored.Type || stored.Immutable != nil && *stored.Immutable {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, o.GetName(), field.ErrorList{field.Forbidden(field.NewPath("data"), "field is immutable")})
	}
	return nil
}

// start runs what every replica runs, until the test ends.
func (r *replica) start(t *testing.T) {
	r.stop = r.run(t, r.Published, r.Source)
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
	cert, err := r.Source.GetCertificate(&tls.ClientHelloInfo{ServerName: host})
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
func (m *mode) await(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		<-time.After(interval)
	}
}

// awaitLeaf waits until the replica serves a leaf that is so.
func (m *mode) awaitLeaf(t *testing.T, what string, r *replica, is func(*tls.Certificate) bool) {
	t.Helper()
	m.await(t, what, func() error {
		if now := r.leaf(); now == nil || !is(now) {
			return errors.New("it serves another")
		}
		return nil
	})
}

// awaitReady waits until replicas are ready.
func (m *mode) awaitReady(t *testing.T, replicas ...*replica) {
	t.Helper()
	for _, r := range replicas {
		m.await(t, "readiness", r.Source.Ready)
	}
}

// awaitPublished waits until every place holds the CAs of each replica. Readiness is not
// enough: a replica may be ready when some do.
func (m *mode) awaitPublished(t *testing.T, replicas ...*replica) {
	t.Helper()
	m.await(t, "the CAs in every place", func() error {
		var err error
		for place, bundle := range m.bundles(t) {
			published, _ := certs.ParseBundle([]byte(bundle.pem))
			for i, r := range replicas {
				for _, ca := range r.Source.CAs() {
					if !slices.ContainsFunc(published, ca.Equal) {
						err = errors.Join(err, fmt.Errorf("%s does not hold the CAs of replica %d", place, i))
					}
				}
			}
		}
		return err
	})
}
