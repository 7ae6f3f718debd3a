package entries

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// roomMetrics are about the entries of the Pod webhook.
type roomMetrics struct {
	entries  prometheus.Gauge
	writes   *prometheus.CounterVec
	restored prometheus.Counter
	foreign  prometheus.Counter
	widening *prometheus.HistogramVec

	provisional prometheus.Gauge
	unvouched   prometheus.Counter
}

func newRoomMetrics(registry prometheus.Registerer) (*roomMetrics, error) {
	r := registrar{registry: registry}
	m := &roomMetrics{
		entries: register(&r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sidecarset_pod_webhook_entries",
			Help: "Webhook entries for Pods that the SidecarSets need. Reported by the leader.",
		})),
		writes: register(&r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_webhook_writes_total",
			Help: "Writes of objects that hold webhook entries for Pods, by result: written, conflict, error.",
		}, []string{"result"})),
		restored: register(&r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidecarset_pod_webhook_restored_total",
			Help: "Webhook entries that somebody else had removed or edited and the leader put back.",
		})),
		foreign: register(&r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidecarset_pod_webhook_foreign_total",
			Help: "Webhook entries in the operator's objects that the leader removed or put right since the operator would not have written them.",
		})),
		provisional: register(&r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sidecarset_pod_webhook_provisional_entries",
			Help: "Webhook entries of SidecarSets that are being admitted. Reported by the leader.",
		})),
		unvouched: register(&r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidecarset_pod_webhook_unvouched_total",
			Help: "Provisional webhook entries that the leader removed since no SidecarSet was stored for them.",
		})),
		widening: register(&r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sidecarset_pod_webhook_widening_seconds",
			Help:    "Time in which the webhook entry of a SidecarSet came into force while it was being admitted, by result: in_force, not_proven.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5},
		}, []string{"result"})),
	}
	return m, r.err
}

func (m *roomMetrics) wrote(stale bool, err error) {
	result := "written"
	switch {
	case err != nil:
		result = "error"
	case stale:
		result = "conflict"
	}
	m.writes.WithLabelValues(result).Inc()
}

func (m *roomMetrics) widened(took time.Duration, err error) {
	result := "in_force"
	if err != nil {
		result = "not_proven"
	}
	m.widening.WithLabelValues(result).Observe(took.Seconds())
}

type registrar struct {
	registry prometheus.Registerer
	err      error
}

func register[C prometheus.Collector](r *registrar, c C) C {
	err := r.registry.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	r.err = errors.Join(r.err, err)
	return c
}
