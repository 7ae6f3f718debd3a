package operator

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sidecarset/operator/webhooks/ports"
)

// Bounds of the ports for probes and metrics, which every process has from its start.
const (
	probeHeaderBytes   = 4 << 10
	metricsHeaderBytes = 16 << 10 // a token may have some KiB
	metricsKeepAlive   = 2 * time.Minute
	noAddress          = "0" // as a flag: do not listen
)

// addPorts adds the servers of probes and metrics to a manager.
func (o Options) addPorts(ctx context.Context, mgr ctrl.Manager, certificate getCertificate) (*ports.Probes, error) {
	probes := ports.NewProbes(ctrl.Log.WithName("readiness"))
	servers := []ports.Options{{
		Name: "probes", Address: o.probeAddress, Handler: probes, MaxHeaderBytes: probeHeaderBytes,
	}, {
		Name: "metrics", Address: o.metricsAddress, MaxHeaderBytes: metricsHeaderBytes, KeepAlive: metricsKeepAlive,
		Handler: ports.Metrics(prometheus.Gatherer(metrics.Registry), ports.NewAccess(mgr.GetClient(), ctrl.Log.WithName("metrics"))),
		TLS:     &tls.Config{GetCertificate: certificate, MinVersion: o.minTLSVersion()},
	}}
	for _, options := range servers {
		if options.Address == noAddress {
			continue
		}
		options.Log = ctrl.Log.WithName(options.Name)
		server, err := ports.NewServer(ctx, options)
		if err != nil {
			return nil, err
		}
		if err := mgr.Add(server); err != nil {
			return nil, fmt.Errorf("adding the server of %s: %w", options.Name, err)
		}
	}
	return probes, nil
}

// minTLSVersion is TLS 1.3, or 1.2 if the flag accepts it.
func (o Options) minTLSVersion() uint16 {
	if o.tls12 {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}
