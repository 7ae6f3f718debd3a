package entries

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// entryMetrics are the metrics of webhook entries for Pods.
type entryMetrics struct {
	entries  prometheus.Gauge
	unstored prometheus.Gauge
	writes   *prometheus.CounterVec
	restored prometheus.Counter
	foreign  prometheus.Counter
	widening *prometheus.HistogramVec
}

// newEntryMetrics registers the metrics. It panics if they are registered already.
func newEntryMetrics(registry prometheus.Registerer) *entryMetrics {
	r := promauto.With(registry)
	gauge := func(name, help string) prometheus.Gauge {
		return r.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return r.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &entryMetrics{
		entries:  gauge("sidecarset_pod_webhook_entries", "Webhook entries for Pods that the SidecarSets need. Reported by the leader."),
		unstored: gauge("sidecarset_pod_webhook_unstored_entries", "Webhook entries of SidecarSets that are being admitted, or that strangers have sent reviews of. Reported by the leader."),
		writes: r.NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_webhook_writes_total",
			Help: "Writes of objects that hold webhook entries for Pods, by result: written, conflict, error.",
		}, []string{"result"}),
		restored: counter("sidecarset_pod_webhook_restored_total", "Edits of webhook entries by other programs that the leader undid."),
		foreign:  counter("sidecarset_pod_webhook_foreign_total", "Webhook entries in the operator's objects that another program wrote, and that the leader removed."),
		widening: r.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sidecarset_pod_webhook_widening_seconds",
			Help:    "Time that the admission of a SidecarSet waited until API servers used its webhook entry, by result: in_force, not_proven.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5},
		}, []string{"result"}),
	}
	for _, result := range []string{"in_force", "not_proven"} {
		m.widening.WithLabelValues(result) // a query of a rate needs a value before the first one
	}
	return m
}

func (m *entryMetrics) wrote(stale bool, err error) {
	result := "written"
	switch {
	case err != nil:
		result = "error"
	case stale:
		result = "conflict"
	}
	m.writes.WithLabelValues(result).Inc()
}

func (m *entryMetrics) widened(took time.Duration, err error) {
	result := "in_force"
	if err != nil {
		result = "not_proven"
	}
	m.widening.WithLabelValues(result).Observe(took.Seconds())
}
