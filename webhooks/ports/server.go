package ports

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Options configures a small server. It takes requests without bodies.
type Options struct {
	// Name is how the log calls the server.
	Name string
	// Address is "host:port".
	Address string
	// TLS, if not nil, makes the server use TLS.
	TLS     *tls.Config
	Handler http.Handler
	// MaxHeaderBytes bounds a request's header. net/http adds 4 KiB.
	MaxHeaderBytes int
	// KeepAlive is how long a connection may wait for another request; if zero, the
	// connection is closed after the first.
	KeepAlive time.Duration
	Log       logr.Logger
}

// The bounds of small servers. Only a node's kubelet and a few scrapers use these servers.
const (
	maxConnections  = 64
	maxPerClient    = 16
	headerTimeout   = 4 * time.Second
	answerTimeout   = 10 * time.Second
	shutdownTimeout = 2 * time.Second
)

// NewServer listens, and returns a server to add to a manager. The manager runs it on every
// replica, before its caches are filled.
func NewServer(ctx context.Context, o Options) (*manager.Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listening for %s: %w", o.Name, err)
	}
	server := &http.Server{
		Handler:           o.Handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       o.KeepAlive,
		MaxHeaderBytes:    o.MaxHeaderBytes,
		ErrorLog:          log.New(LineLogger{Logger: o.Log.V(1)}, "", 0),
	}
	server.SetKeepAlivesEnabled(o.KeepAlive > 0)
	NewConnections(maxConnections, maxPerClient).Bound(server)
	if o.TLS != nil {
		listener = tls.NewListener(listener, o.TLS)
	}
	return &manager.Server{Name: o.Name, Server: server, Listener: listener, ShutdownTimeout: new(shutdownTimeout)}, nil
}

// LineLogger logs the lines that net/http writes to its log: mostly failed handshakes of
// port scanners and probes.
type LineLogger struct{ logr.Logger }

// Write implements io.Writer.
func (l LineLogger) Write(line []byte) (int, error) {
	l.Info("Connection failed", "reason", string(line))
	return len(line), nil
}
