// Package server is the webhook server: TLS with a certificate that may change at
// any time, bounded connections, bodies and requests, a drain before it stops, and
// the form of answers and refusals. It knows nothing about Pods and SidecarSets.
//
// To follow one request: the Listener (listener.go) bounds its connection; Server (server.go)
// routes it; a limiter (limits.go) gives it a deadline, reads its body and waits for a seat; the
// Handler (review.go) answers, with an Answer (answer.go) or a Refusal (refusal.go).
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	defaultBodyTimeout  = 8 * time.Second
	defaultWriteTimeout = 10 * time.Second
)

// Options configures a Server. Only GetCertificate is required.
type Options struct {
	// Address is "host:port" to listen on; ":9443" if empty. Port 0 takes a free
	// port, which Addr returns.
	Address string
	// GetCertificate returns the serving certificate; it must not block.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCAs, if not nil, returns the CAs of the clients that are answered. It must
	// not block. GroupConversions answers any client, because API servers show no
	// certificate to conversion webhooks.
	ClientCAs func() *x509.CertPool
	// BodyTimeout (8 s) bounds the time in which a body arrives, WriteTimeout (10 s) the handshake,
	// and the time from the header to the end of the answer. IdleTimeout (2 min, longer than the 90 s
	// after which the API server closes) bounds the wait for the header of a request, of the first
	// one too: API servers open connections before they need them, and do not send a request again
	// that fails because the server closes the connection.
	BodyTimeout, WriteTimeout, IdleTimeout time.Duration
	// MaxHeaderBytes is 8 KiB if zero.
	MaxHeaderBytes int
	// MaxConnections is 4096 if zero, and MaxPerClient 640: an API server opens a connection for each
	// request that it sends at the same time, and by default lets 600 requests of its own clients
	// run at the same time.
	MaxConnections, MaxPerClient int
	// Limits bound what the requests of a group take at the same time; a group that is
	// not in it has a default by the number of cores.
	Limits map[Group]Limits

	// Stopping, if not nil, is closed when the process is asked to stop. The manager
	// stops the server later, after its controllers.
	Stopping <-chan struct{}
	// DrainTimeout (10 s) bounds how long Close waits for requests in flight.
	DrainTimeout time.Duration
}

// Server is the webhook server. Register handlers before Start; the other methods
// are safe for concurrent use.
type Server struct {
	options  Options
	mux      *http.ServeMux
	limiters map[Group]*limiter
	metrics  *metrics
	draining atomic.Bool
	listener atomic.Pointer[Listener] // nil until the server listens
	http     atomic.Pointer[http.Server]
}

// New returns a Server that Start runs.
func New(options Options) *Server {
	options.setDefaults()
	s := &Server{options: options, mux: http.NewServeMux(), limiters: map[Group]*limiter{}}
	all := defaultLimits()
	maps.Copy(all, options.Limits)
	for group, limits := range all {
		s.limiters[group] = newLimiter(limits, options.BodyTimeout, options.WriteTimeout)
	}
	s.metrics = s.newMetrics()
	s.mux.HandleFunc("/", notFound)
	return s
}

func (o *Options) setDefaults() {
	o.Address = cmp.Or(o.Address, ":9443")
	o.BodyTimeout = cmp.Or(o.BodyTimeout, defaultBodyTimeout)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, defaultWriteTimeout)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, 8<<10)
	o.MaxConnections = cmp.Or(o.MaxConnections, 4096) // of some 40 KiB each
	o.MaxPerClient = cmp.Or(o.MaxPerClient, 640)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 10*time.Second)
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
	admitted := s.limiters[group].admit(handler)
	if s.options.ClientCAs != nil && group != GroupConversions {
		admitted = knownClients(admitted)
	}
	s.mux.Handle(path, recoverPanics(admitted))
}

// Start serves, and returns when ctx ends. The server continues serving until Close: a process that has lost its Lease
// answers until its endpoint is withdrawn. As soon as Options.Stopping is closed or ctx
// ends, the server is not ready.
func (s *Server) Start(ctx context.Context) error {
	logger := logf.FromContext(ctx).WithName("webhook-server")
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("listening for webhooks: %w", err)
	}
	limited := Limit(listener, s.options.MaxConnections, s.options.MaxPerClient)
	server := s.httpServer(ctx, logger)
	s.http.Store(server)
	s.listener.Store(limited)
	logger.Info("Serving webhooks", "address", listener.Addr().String())
	served := make(chan error, 1)
	go func() {
		err := server.ServeTLS(limited, "", "")
		if errors.Is(err, http.ErrServerClosed) {
			served <- nil
			return
		}
		served <- fmt.Errorf("serving webhooks: %w", err)
	}()
	select {
	case err := <-served:
		return err
	case <-s.options.Stopping: // nil blocks forever
		s.draining.Store(true)
	case <-ctx.Done():
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		s.draining.Store(true)
		return nil
	}
}

// Close refuses new connections, waits for requests in flight, and closes the connections that are
// left. Call it right before the process exits, also if Start never ran or ctx is done.
func (s *Server) Close(ctx context.Context) {
	server := s.http.Load()
	if server == nil {
		return
	}
	s.draining.Store(true)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.DrainTimeout)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close() // the listener is closed already, so an error says nothing new
	}
}

// listening returns the listener; an empty one before Start.
func (s *Server) listening() *Listener {
	if l := s.listener.Load(); l != nil {
		return l
	}
	return &Listener{}
}

func (s *Server) httpServer(ctx context.Context, logger logr.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	base := logf.IntoContext(context.WithoutCancel(ctx), logger) // requests outlive ctx while the server drains
	return &http.Server{
		Handler:           s.partWhileDraining(s.mux),
		TLSConfig:         s.tlsConfig(),
		Protocols:         protocols,
		ReadHeaderTimeout: s.options.IdleTimeout, // no ReadTimeout: it would begin with the handshake
		WriteTimeout:      s.options.WriteTimeout,
		IdleTimeout:       s.options.IdleTimeout,
		MaxHeaderBytes:    s.options.MaxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          ErrorLog(logger),
	}
}

// tlsConfig asks clients for a certificate if there are CAs for them. The handshake
// refuses a client with a certificate of another CA; knownClients refuses a client
// without one.
func (s *Server) tlsConfig() *tls.Config {
	config := &tls.Config{GetCertificate: s.options.GetCertificate, MinVersion: tls.VersionTLS13}
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
	if l := s.listener.Load(); l != nil {
		return l.Addr()
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
