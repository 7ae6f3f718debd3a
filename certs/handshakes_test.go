package certs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// handshake connects to the replica as an API server does that trusts bundle.
func (r *replica) handshake(ctx context.Context, bundle string) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(bundle)) {
		return errors.New("the bundle holds no certificate")
	}
	near, far, err := connection()
	if err != nil {
		return err
	}
	server := tls.Server(far, &tls.Config{GetCertificate: r.Source.GetCertificate, SessionTicketsDisabled: true})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.HandshakeContext(ctx) // the client's error says what is wrong
		_ = far.Close()
	}()
	err = tls.Client(near, &tls.Config{RootCAs: roots, ServerName: host}).HandshakeContext(ctx)
	_ = near.Close()
	<-done
	return err
}

// connection returns the two ends of a connection with buffers. Without buffers, a client that
// refuses a certificate could not say so while the server is still sending.
func connection() (near, far net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socket")
		end, fileErr := net.FileConn(file)
		ends[i], err = end, errors.Join(err, fileErr, file.Close())
	}
	return ends[0], ends[1], err
}

// callers are API servers that call replicas all the time, each call with a new handshake. Some
// API servers are behind: they use a bundle that was published a while ago. Some have gone back: they
// use the version before the newest one, until the object is written again.
type callers struct {
	mode     *mode
	replicas []*replica
	stop     func()

	mu      sync.Mutex
	history []publication
	made    int
	failed  []error
}

// publication is a bundle that was published somewhere.
type publication struct {
	place  string
	bundle bundle
	until  time.Time // when it was seen last in this place
	newest bool      // of this place
	before bool      // the version before the newest one
}

// call waits until every place holds the bundle of the replicas, and calls them
// until end.
func (m *mode) call(t *testing.T, replicas ...*replica) *callers {
	t.Helper()
	m.awaitPublished(t, replicas...)
	c := &callers{mode: m, replicas: replicas}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			c.round(ctx, t)
			select {
			case <-ctx.Done():
			case <-time.After(interval):
			}
		}
	})
	c.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(func() { c.stop() })
	return c
}

// round makes every API server call every replica once.
func (c *callers) round(ctx context.Context, t *testing.T) {
	began := time.Now()
	for _, bundle := range c.inUse(c.mode.bundles(t), began) {
		for i, r := range c.replicas {
			if r.Source.Ready() != nil {
				continue // it is no endpoint
			}
			err := r.handshake(ctx, bundle.bundle.pem)
			if err != nil {
				err = fmt.Errorf("replica %d, called because of %s: %w", i, bundle.place, err)
			}
			c.count(ctx, err)
		}
	}
}

// inUse returns the bundles that an API server may use, each once.
func (c *callers) inUse(bundles map[string]bundle, now time.Time) []publication {
	c.mu.Lock()
	defer c.mu.Unlock()
	for place, bundle := range bundles {
		at := slices.IndexFunc(c.history, func(p publication) bool { return p.place == place && p.newest })
		switch {
		case at >= 0 && c.history[at].bundle == bundle:
			c.history[at].until = now
			continue
		case at >= 0:
			for i := range c.history {
				if c.history[i].place == place {
					c.history[i].before = i == at && c.history[at].bundle.version != ""
					c.history[i].newest = false
				}
			}
		}
		c.history = append(c.history, publication{place: place, bundle: bundle, until: now, newest: true})
	}
	c.history = slices.DeleteFunc(c.history, func(p publication) bool { return !p.before && now.Sub(p.until) > lag })
	var different []publication
	for _, p := range c.history {
		if p.bundle.pem == "" {
			continue // no call succeeds, whatever a replica serves
		}
		if !slices.ContainsFunc(different, func(d publication) bool { return d.bundle.pem == p.bundle.pem }) {
			different = append(different, p)
		}
	}
	return different
}

func (c *callers) count(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // the end of the test, not a failure
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	if err != nil {
		c.failed = append(c.failed, fmt.Errorf("%s: %w", time.Now().Format(time.TimeOnly), err))
	}
}

// end waits until no replica and no API server is behind, and stops calling. It fails the
// test if a call has failed.
func (c *callers) end(t *testing.T) {
	t.Helper()
	<-time.After(lag + 2*interval)
	c.mode.await(t, "calls enough to show something", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.made < 10 {
			return fmt.Errorf("%d were made", c.made)
		}
		return nil
	})
	c.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%d calls, %d failed", c.made, len(c.failed))
	if len(c.failed) > 0 {
		t.Errorf("%d of %d calls failed, at first: %v", len(c.failed), c.made, c.failed[0])
	}
}
