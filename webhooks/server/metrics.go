package server

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of a Server.
type metrics struct {
	requests   *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	collectors []prometheus.Collector
}

func (s *Server) newMetrics() *metrics {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_webhook_rejected_requests_total",
		Help: "Requests that were refused by a limit, before their content decided anything, by group of paths (pods, sidecarsets, conversions, probes) and reason: busy, memory, too_large, slow, invalid.",
	}, []string{"group", "reason"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_webhook_requests_total",
			Help: "Requests to the webhooks for SidecarSets and to /convert, by path and HTTP status code.",
		}, []string{"path", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sidecarset_webhook_request_duration_seconds",
			Help:    "Time to answer such a request, by path.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 4, 9), // 100 µs to 6.6 s
		}, []string{"path"}),
	}
	m.collectors = []prometheus.Collector{refused, m.requests, m.seconds,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidecarset_webhook_connections", Help: "Open connections to the webhook server.",
		}, func() float64 { return float64(s.listening().count()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sidecarset_webhook_rejected_connections_total", Help: "Connections that were closed at once, because there were too many of all clients or of that client.",
		}, func() float64 { return float64(s.listening().refused.Load()) }),
	}
	for group, limiter := range s.limiters {
		for _, reason := range reasons {
			limiter.refused[reason] = refused.WithLabelValues(string(group), string(reason))
		}
		m.collectors = append(m.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "sidecarset_webhook_requests_in_flight",
			Help:        "Requests that are being answered, by group of paths: pods, sidecarsets, conversions, probes.",
			ConstLabels: prometheus.Labels{"group": string(group)},
		}, func() float64 { return float64(limiter.active.Load()) }))
	}
	return m
}

// Instrument exposes the server's own metrics. Call it once.
func (s *Server) Instrument(registry prometheus.Registerer) {
	registry.MustRegister(s.metrics.collectors...)
}

// counted counts and times the requests that next answers.
func (m *metrics) counted(path string, next Handler) Handler {
	requests, seconds := m.requests.MustCurryWith(prometheus.Labels{"path": path}), m.seconds.WithLabelValues(path)
	return func(ctx context.Context, w http.ResponseWriter, r Request) error {
		start, code := time.Now(), http.StatusOK
		err := next(ctx, w, r)
		if err != nil {
			code = refusalOf(err).status()
		}
		requests.WithLabelValues(strconv.Itoa(code)).Inc()
		seconds.Observe(time.Since(start).Seconds())
		return err
	}
}
