package controllers

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sidecarset/operator/internal/tally"
)

// collectors are the metrics of this package.
type collectors struct {
	trackedPods   prometheus.Gauge
	trackedBytes  prometheus.Gauge
	uncountedPods prometheus.Gauge
	podEvents     *prometheus.CounterVec
	statusWrites  *prometheus.CounterVec

	matched, updated, ready, uninjected *prometheus.GaugeVec
}

// newCollectors registers the metrics, or finds those that another Setup of the
// same process registered.
func newCollectors(registry prometheus.Registerer) (*collectors, error) {
	r := registrar{registry: registry}
	c := &collectors{
		trackedPods: register(&r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sidecarset_tracked_pods",
			Help: "Active Pods that the controller keeps a record of.",
		})),
		trackedBytes: register(&r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sidecarset_tracked_pods_bytes",
			Help: "Estimate of the memory that the records of Pods take.",
		})),
		uncountedPods: register(&r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sidecarset_uncounted_pods",
			Help: "Active Pods that count for no SidecarSet, since their labels, containers or injected list are too large to be kept.",
		})),
		podEvents: register(&r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_events_total",
			Help: "What the Pod watch delivered, by type: added, updated, deleted, listed (one for each complete list).",
		}, []string{"type"})),
		statusWrites: register(&r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_status_writes_total",
			Help: "Writes of a SidecarSet's status, by result: written, conflict, error.",
		}, []string{"result"})),
		matched:    register(&r, podGauge("matched", "Active Pods that carry the SidecarSet's sidecars.")),
		updated:    register(&r, podGauge("updated", "Matched Pods that carry the current revision.")),
		ready:      register(&r, podGauge("ready", "Matched Pods that are ready and run the images they were given.")),
		uninjected: register(&r, podGauge("uninjected", "Active Pods that the SidecarSet selects and that do not carry its sidecars.")),
	}
	return c, r.err
}

func podGauge(state, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sidecarset_" + state + "_pods",
		Help: help + " By sidecarset: its name.",
	}, []string{"sidecarset"})
}

// observe publishes the counters of one SidecarSet.
func (c *collectors) observe(sidecarSet string, n tally.Counters) {
	c.matched.WithLabelValues(sidecarSet).Set(float64(n.Matched))
	c.updated.WithLabelValues(sidecarSet).Set(float64(n.Updated))
	c.ready.WithLabelValues(sidecarSet).Set(float64(n.Ready))
	c.uninjected.WithLabelValues(sidecarSet).Set(float64(n.Uninjected))
}

// forget removes the gauges of a SidecarSet that is gone.
func (c *collectors) forget(sidecarSet string) {
	for _, gauge := range []*prometheus.GaugeVec{c.matched, c.updated, c.ready, c.uninjected} {
		gauge.DeleteLabelValues(sidecarSet)
	}
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
