package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sidecarset/operator/webhooks/ports"
)

// Instrumented counts and times the requests of the handlers other than that for
// Pods, which counts for itself.
func Instrumented(registry prometheus.Registerer) func(path string, next http.Handler) http.Handler {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_webhook_requests_total",
		Help: "Requests for SidecarSets by path of the webhook and HTTP status code.",
	}, []string{"path", "code"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sidecarset_webhook_request_duration_seconds",
		Help:    "Time to answer one request for SidecarSets, by path of the webhook.",
		Buckets: prometheus.ExponentialBuckets(100e-6, 4, 9), // 100 µs to 6.6 s
	}, []string{"path"})
	registry.MustRegister(total, seconds)
	return func(path string, next http.Handler) http.Handler {
		label := prometheus.Labels{"path": path}
		return promhttp.InstrumentHandlerDuration(seconds.MustCurryWith(label),
			promhttp.InstrumentHandlerCounter(total.MustCurryWith(label), next))
	}
}

// serverMetrics are the figures of the Server itself.
type serverMetrics struct {
	refused    *prometheus.CounterVec
	collectors []prometheus.Collector
}

func newServerMetrics(gates map[Group]*gate, open *ports.Connections) *serverMetrics {
	m := &serverMetrics{refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_webhook_refused_requests_total",
		Help: "Requests that were refused before they were looked at, by group of paths (pods, sidecarsets, conversions, barriers) and reason: busy, memory, too_large, slow, invalid.",
	}, []string{"group", "reason"})}
	m.collectors = []prometheus.Collector{m.refused,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidecarset_webhook_connections", Help: "Open connections to the webhook server.",
		}, func() float64 { return float64(open.Count()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sidecarset_webhook_evicted_connections_total", Help: "Connections that were closed because there were too many.",
		}, func() float64 { return float64(open.Evicted()) }),
	}
	for group, gate := range gates {
		for _, reason := range refusalReasons {
			gate.refused[reason] = m.refused.WithLabelValues(string(group), string(reason))
		}
		m.collectors = append(m.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "sidecarset_webhook_requests_in_flight",
			Help:        "Requests that are being answered, by group of paths: pods, sidecarsets, conversions, barriers.",
			ConstLabels: prometheus.Labels{"group": string(group)},
		}, func() float64 { return float64(gate.inFlight()) }))
	}
	return m
}

// Instrument exposes the server's own metrics. Call it once.
func (s *Server) Instrument(registry prometheus.Registerer) {
	registry.MustRegister(s.metrics.collectors...)
}
