package registration

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// webhookMetrics are the metrics of Pod webhooks.
type webhookMetrics struct {
	webhooks     prometheus.Gauge
	unstored     prometheus.Gauge
	writes       *prometheus.CounterVec
	restored     prometheus.Counter
	foreign      prometheus.Counter
	registration *prometheus.HistogramVec
}

// newWebhookMetrics registers the metrics. It panics if they are registered already.
func newWebhookMetrics(registry prometheus.Registerer) *webhookMetrics {
	r := promauto.With(registry)
	gauge := func(name, help string) prometheus.Gauge {
		return r.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return r.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &webhookMetrics{
		webhooks: gauge("sidecarset_pod_webhooks", "Pod webhooks that the SidecarSets need. Reported by the leader."),
		unstored: gauge("sidecarset_pod_webhooks_unstored", "Pod webhooks of SidecarSets that are being admitted, or that unauthenticated clients have sent reviews of. Reported by the leader."),
		writes: r.NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_webhook_writes_total",
			Help: "Writes of objects that hold Pod webhooks, by result: written, conflict, error.",
		}, []string{"result"}),
		restored: counter("sidecarset_pod_webhook_restored_total", "Edits of Pod webhooks by other programs that the leader undid."),
		foreign:  counter("sidecarset_pod_webhook_foreign_total", "Pod webhooks in the operator's objects that another program wrote, and that the leader removed."),
		registration: r.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sidecarset_pod_webhook_registration_seconds",
			Help:    "Time that the admission of a SidecarSet waited until API servers used its Pod webhook, by result: propagated, not_propagated.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5},
		}, []string{"result"}),
	}
	for _, result := range []string{"propagated", "not_propagated"} {
		m.registration.WithLabelValues(result) // a query of a rate needs a value before the first one
	}
	return m
}

func (m *webhookMetrics) wrote(stale bool, err error) {
	result := "written"
	switch {
	case err != nil:
		result = "error"
	case stale:
		result = "conflict"
	}
	m.writes.WithLabelValues(result).Inc()
}

func (m *webhookMetrics) registered(took time.Duration, err error) {
	result := "propagated"
	if err != nil {
		result = "not_propagated"
	}
	m.registration.WithLabelValues(result).Observe(took.Seconds())
}
