package operator

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sidecarset/operator/webhooks/server"
)

// Bounds of the ports for probes and metrics, which every process has from its start. Only a node's
// kubelet and a few scrapers use them.
const (
	noAddress          = "0" // as a flag: do not listen
	probeHeaderBytes   = 4 << 10
	metricsHeaderBytes = 16 << 10 // a token may have some KiB
	metricsKeepAlive   = 2 * time.Minute
	maxScrapes         = 4 // that are answered at a time
	portConnections    = 512
	portPerClient      = 16
)

// addPorts adds the servers of probes and metrics to a manager.
func (o Options) addPorts(ctx context.Context, mgr ctrl.Manager, certificate getCertificate) (*probes, error) {
	ready := newProbes(ctrl.Log.WithName("readiness"))
	if err := addPort(ctx, mgr, "probes", o.probeAddress, nil, &http.Server{Handler: ready, MaxHeaderBytes: probeHeaderBytes}); err != nil {
		return nil, err
	}
	access := newAccess(mgr.GetClient(), ctrl.Log.WithName("metrics"))
	scrapes := promhttp.HandlerFor(prometheus.Gatherer(metrics.Registry), promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: maxScrapes})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", access.guard(scrapes))
	return ready, addPort(ctx, mgr, "metrics", o.metricsAddress, &tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS13},
		&http.Server{Handler: mux, MaxHeaderBytes: metricsHeaderBytes, IdleTimeout: metricsKeepAlive})
}

// addPort adds a server that takes requests without bodies. The manager runs it on every replica, before
// its caches are filled. Without an IdleTimeout, a connection is closed after one request.
func addPort(ctx context.Context, mgr ctrl.Manager, name, address string, config *tls.Config, s *http.Server) error {
	if address == noAddress {
		return nil
	}
	var listener net.Listener
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listening for %s: %w", name, err)
	}
	listener = server.Limit(listener, portConnections, portPerClient)
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout = 4*time.Second, 4*time.Second, 10*time.Second
	s.ErrorLog = server.ErrorLog(ctrl.Log.WithName(name))
	s.SetKeepAlivesEnabled(s.IdleTimeout > 0)
	if err := mgr.Add(&manager.Server{Name: name, Server: s, Listener: listener, ShutdownTimeout: new(2 * time.Second)}); err != nil {
		return fmt.Errorf("adding the server of %s: %w", name, err)
	}
	return nil
}

// probes answers a kubelet: /healthz says that the process lives, /readyz whether all checks succeed,
// and /readyz/NAME why one does not. Add all checks before the manager starts.
//
// A check looks at what the process knows, and waits for nothing. If it did work that takes
// long on a busy machine, such as a TLS handshake, then a process that is only slow would not
// be ready, and unauthenticated clients could make every replica un-ready by keeping it busy.
type probes struct {
	http.ServeMux
	log   logr.Logger
	ready *healthz.Handler
}

func newProbes(log logr.Logger) *probes {
	p := &probes{log: log, ready: &healthz.Handler{Checks: map[string]healthz.Checker{}}}
	p.Handle("GET /healthz", healthz.CheckHandler{Checker: healthz.Ping})
	p.Handle("GET /readyz", http.StripPrefix("/readyz", p.ready))
	p.Handle("GET /readyz/", http.StripPrefix("/readyz", p.ready))
	return p
}

// verdictAge is how old a verdict may be: a check verifies certificates, and any client that can
// connect can ask.
const verdictAge = time.Second

// AddReadiness adds a check, which must not block. Its verdict is logged whenever it changes,
// because /readyz gives no reasons.
func (p *probes) AddReadiness(name string, check healthz.Checker) {
	var mu sync.Mutex
	var at time.Time
	var verdict error
	reason := func() string {
		if verdict == nil {
			return ""
		}
		return verdict.Error()
	}
	p.ready.Checks[name] = func(r *http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); at.IsZero() || now.Sub(at) >= verdictAge {
			before, first := reason(), at.IsZero()
			at, verdict = now, check(r)
			if first || reason() != before {
				p.log.Info("Readiness changed", "check", name, "ready", verdict == nil, "reason", reason())
			}
		}
		return verdict
	}
}
