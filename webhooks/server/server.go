// Package server is the webhook server: TLS with a certificate that may change at
// any time, bounded connections, bodies and requests, a drain before it stops, and
// the form of answers and refusals. It knows nothing about Pods and SidecarSets.
//
// To follow one request: package ports bounds its connection; Server (server.go)
// routes it; a gate (gate.go) gives it a deadline (deadline.go), reads its body
// (body.go) and waits for a seat (seats.go); the Handler (handler.go) answers, with
// an Answer (answer.go) or a Refusal (refusal.go).
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/webhooks/ports"
)

// Bounds of a request's body. An AdmissionReview has two objects of at most 3 MiB each,
// and less than 1 MiB of other content. A ConversionReview has all objects of a LIST:
// 16 MiB is some 1,600 SidecarSets of 10 KiB. A barrier probe has some 2 KiB.
const (
	MaxAdmissionBytes  = 7 << 20
	MaxConversionBytes = 16 << 20
	MaxBarrierBytes    = 256 << 10
)

const defaultWriteTimeout = 10 * time.Second

// Options configures a Server. Only GetCertificate is required.
type Options struct {
	// Address is "host:port" to listen on; ":9443" if empty. Port 0 takes a free
	// port, which Addr returns.
	Address string
	// GetCertificate returns the serving certificate; it must not block.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// MinTLSVersion is TLS 1.2 if it is tls.VersionTLS12, and TLS 1.3 otherwise.
	MinTLSVersion uint16
	// ClientCAs, if not nil, returns the CAs of the clients that are answered. It must
	// not block. GroupConversions answers any client, because API servers show no
	// certificate to conversion webhooks.
	ClientCAs func() *x509.CertPool
	// ReadHeaderTimeout (7 s) bounds the handshake and a request's header. It is longer than
	// the 5 s that API servers wait for a Pod's answer by default: if a handshake is slow, the
	// API server gives up, and not the server. ReadTimeout (8 s) bounds header and body, and is
	// not equal to ReadHeaderTimeout (unusedConn). WriteTimeout (10 s) bounds the time from the
	// header to the end of the answer, IdleTimeout (2 min, longer than the 90 s after which the
	// API server closes) the wait for the first and the next request.
	ReadHeaderTimeout, ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	// MaxHeaderBytes is 64 KiB if zero.
	MaxHeaderBytes int
	// MaxConnections is 1280 if zero; one client address may have half of that. An API
	// server opens a connection for each request that it sends at the same time. By
	// default it lets 600 requests of its own clients run at once, and each of them may
	// have it call this server. If there is one connection too many, the server closes one
	// of the client address that has the most.
	MaxConnections int
	// Limits bound what the requests of a group take at the same time; a group that is
	// not in it has a default by the number of cores.
	Limits map[Group]Limits

	// Stopping, if not nil, is closed when the process is asked to stop. The manager
	// stops the server later, after its controllers.
	Stopping <-chan struct{}
	// Grace is how long the server still serves as before once it is not ready, so that
	// endpoints are withdrawn before connections are refused.
	Grace time.Duration
	// DrainTimeout (10 s) bounds the wait for requests in flight after Grace.
	// The manager's graceful shutdown timeout has to exceed Grace + DrainTimeout.
	DrainTimeout time.Duration

	// Clock measures Grace; the real clock if nil.
	Clock clock.Clock
}

// Server is the webhook server. Register handlers before Start; the other methods
// are safe for concurrent use.
type Server struct {
	options     Options
	mux         *http.ServeMux
	gates       map[Group]*gate
	connections *ports.Connections
	metrics     *metrics
	draining    atomic.Bool
	running     sync.WaitGroup           // Start
	addr        atomic.Pointer[net.Addr] // nil until the server listens
}

// New returns a Server that Start runs.
func New(options Options) *Server {
	options.setDefaults()
	s := &Server{options: options, mux: http.NewServeMux(), gates: map[Group]*gate{}}
	all := defaultLimits()
	maps.Copy(all, options.Limits)
	for group, limits := range all {
		limits.check(group)
		s.gates[group] = newGate(limits, options.WriteTimeout)
	}
	s.connections = ports.NewConnections(options.MaxConnections, max(1, options.MaxConnections/2))
	s.metrics = s.newMetrics()
	s.mux.HandleFunc("/", notFound)
	return s
}

func (o *Options) setDefaults() {
	o.Address = cmp.Or(o.Address, ":9443")
	if o.MinTLSVersion != tls.VersionTLS12 {
		o.MinTLSVersion = tls.VersionTLS13
	}
	o.ReadHeaderTimeout = cmp.Or(o.ReadHeaderTimeout, 7*time.Second)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 8*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, defaultWriteTimeout)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, 64<<10)
	o.MaxConnections = cmp.Or(o.MaxConnections, 1280) // of some 40 KiB each
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 10*time.Second)
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.RealClock{})
}

// NeedLeaderElection reports false: every replica serves.
func (*Server) NeedLeaderElection() bool { return false }

// Register serves path with handler, within the limits of a group. It panics if the
// path is taken. It counts the requests of SidecarSets and conversions; package pods
// counts those of Pods.
func (s *Server) Register(group Group, path string, handler Handler) {
	if group == GroupSidecarSets || group == GroupConversions {
		handler = s.metrics.counted(path, handler)
	}
	admitted := s.gates[group].admit(handler)
	if s.options.ClientCAs != nil && group != GroupConversions {
		admitted = knownClients(admitted)
	}
	s.mux.Handle(path, recoverPanics(admitted))
}

// Start serves until Options.Stopping is closed or ctx ends. From then on the server is
// not ready. It still serves for Options.Grace, and until ctx ends. Then it refuses new
// connections, waits for requests in flight, and closes the connections that are left.
func (s *Server) Start(ctx context.Context) error {
	s.running.Add(1)
	defer s.running.Done()
	logger := logf.FromContext(ctx).WithName("webhook-server")
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("listening for webhooks: %w", err)
	}
	server := s.httpServer(ctx, logger)
	s.addr.Store(new(listener.Addr()))
	logger.Info("Serving webhooks", "address", listener.Addr().String())

	listener = unusedListener{listener, s.options.IdleTimeout}
	served := make(chan error, 1)
	go func() { served <- fmt.Errorf("serving webhooks: %w", server.ServeTLS(listener, "", "")) }()
	select {
	case err := <-served:
		return err
	case <-s.stopping(ctx):
	}
	return s.drain(ctx, server, served)
}

// Wait returns once Start has returned, and at once if Start never ran. A manager that
// loses its Lease does not wait for its parts. So call Wait before the process exits:
// then requests in flight are answered.
func (s *Server) Wait() { s.running.Wait() }

// stopping is closed as soon as the server may stop, at the latest when ctx ends. From
// then on the server is not ready.
func (s *Server) stopping(ctx context.Context) <-chan struct{} {
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		select {
		case <-s.options.Stopping: // nil blocks forever
		case <-ctx.Done():
		}
		s.draining.Store(true)
	}()
	return stop
}

func (s *Server) drain(ctx context.Context, server *http.Server, served <-chan error) error {
	logger := logf.FromContext(ctx).WithName("webhook-server")
	if s.options.Grace > 0 {
		logger.Info("Serving on until endpoints are withdrawn", "grace", s.options.Grace.String())
		select {
		case <-s.options.Clock.After(s.options.Grace):
		case err := <-served:
			return err
		}
	}
	select {
	case <-ctx.Done(): // until then the manager stops its controllers, whose writes may be sent here
	case err := <-served:
		return err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.DrainTimeout)
	defer cancel()
	if err := server.Shutdown(bounded); err != nil {
		logger.Info("Closing connections that did not end in time", "timeout", s.options.DrainTimeout.String())
		_ = server.Close() // the listener is closed already, so an error says nothing new
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) httpServer(ctx context.Context, logger logr.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	base := logf.IntoContext(context.WithoutCancel(ctx), logger) // requests outlive ctx while the server drains
	server := &http.Server{
		Handler:           s.partWhileDraining(s.mux),
		TLSConfig:         s.tlsConfig(),
		Protocols:         protocols,
		ReadHeaderTimeout: s.options.ReadHeaderTimeout,
		ReadTimeout:       s.options.ReadTimeout,
		WriteTimeout:      s.options.WriteTimeout,
		IdleTimeout:       s.options.IdleTimeout,
		MaxHeaderBytes:    s.options.MaxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          log.New(ports.LineLogger{Logger: logger.V(1)}, "", 0),
	}
	s.connections.Bound(server)
	return server
}

// tlsConfig asks clients for a certificate if there are CAs for them. The handshake
// refuses a client with a certificate of another CA; knownClients refuses a client
// without one.
func (s *Server) tlsConfig() *tls.Config {
	config := &tls.Config{GetCertificate: s.options.GetCertificate, MinVersion: s.options.MinTLSVersion}
	if s.options.ClientCAs == nil {
		return config
	}
	config.ClientAuth = tls.VerifyClientCertIfGiven
	config.SessionTicketsDisabled = true // a ticket would outlive its CA
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := config.Clone()
		current.GetConfigForClient = nil
		current.ClientCAs = s.options.ClientCAs()
		return current, nil
	}
	return config
}

// partWhileDraining makes clients open new connections, which lead to other replicas
// once the endpoint is withdrawn. Otherwise the API server would use its connection for
// as long as it is open, and might send a request in the moment in which it is closed.
func (s *Server) partWhileDraining(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// Addr is the address that the server listens on; nil before Start has opened it.
func (s *Server) Addr() net.Addr {
	if addr := s.addr.Load(); addr != nil {
		return *addr
	}
	return nil
}

// Ready reports why no more requests should be sent here: the server is not
// listening yet, or is draining. It is a readiness check.
func (s *Server) Ready(*http.Request) error {
	switch {
	case s.draining.Load():
		return errors.New("the webhook server is draining")
	case s.Addr() == nil:
		return errors.New("the webhook server is not listening yet")
	}
	return nil
}
