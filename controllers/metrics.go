package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sidecarset/operator/internal/tally"
)

// collectors are the metrics of the status controller.
type collectors struct {
	trackedPods   prometheus.Gauge
	trackedBytes  prometheus.Gauge
	uncountedPods prometheus.Gauge
	podEvents     *prometheus.CounterVec
	statusWrites  *prometheus.CounterVec

	matched, updated, ready, uninjected *prometheus.GaugeVec
}

// newCollectors registers the metrics. It panics if they are registered already.
func newCollectors(registry prometheus.Registerer) *collectors {
	r := promauto.With(registry)
	gauge := func(name, help string) prometheus.Gauge {
		return r.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return r.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	ofSidecarSet := func(name, help string) *prometheus.GaugeVec {
		return r.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help + " By sidecarset: its name."}, []string{"sidecarset"})
	}
	return &collectors{
		trackedPods:   gauge("sidecarset_tracked_pods", "Active Pods that the controller keeps a record of."),
		trackedBytes:  gauge("sidecarset_tracked_pods_bytes", "Estimate of the memory that the records of Pods take."),
		uncountedPods: gauge("sidecarset_uncounted_pods", "Active Pods that count for no SidecarSet, since their labels, containers or injected list are too large to be kept."),
		podEvents:     counter("sidecarset_pod_events_total", "What the Pod watch delivered, by type: added, updated, deleted, listed (one for each complete list).", "type"),
		statusWrites:  counter("sidecarset_status_writes_total", "Writes of a SidecarSet's status, by result: written, conflict, error.", "result"),
		matched:       ofSidecarSet("sidecarset_matched_pods", "Active Pods that carry the SidecarSet's sidecars."),
		updated:       ofSidecarSet("sidecarset_updated_pods", "Matched Pods that carry the current revision."),
		ready:         ofSidecarSet("sidecarset_ready_pods", "Matched Pods that are ready and run the images they were given."),
		uninjected:    ofSidecarSet("sidecarset_uninjected_pods", "Active Pods that the SidecarSet selects and that do not carry its sidecars."),
	}
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
