package snapshot

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// storeMetrics are the metrics of the Store.
type storeMetrics struct {
	sidecarSets, unusable, namespaces, bytes prometheus.Gauge
	rebuildSeconds                           prometheus.Histogram
}

func newStoreMetrics(registry prometheus.Registerer) *storeMetrics {
	r := promauto.With(registry)
	gauge := func(name, help string) prometheus.Gauge {
		return r.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	return &storeMetrics{
		sidecarSets: gauge("sidecarset_snapshot_sidecarsets", "SidecarSets that this replica knows."),
		unusable:    gauge("sidecarset_snapshot_unusable_sidecarsets", "SidecarSets that this replica knows and cannot use; their condition Accepted says why."),
		namespaces:  gauge("sidecarset_snapshot_namespaces", "Namespaces whose labels this replica knows."),
		bytes:       gauge("sidecarset_snapshot_bytes", "Estimate of the memory that the SidecarSets take in this replica."),
		rebuildSeconds: r.NewHistogram(prometheus.HistogramOpts{
			Name:    "sidecarset_snapshot_rebuild_seconds",
			Help:    "Time to bring the store up to date with changed SidecarSets and Namespaces.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 10), // 10 µs to 2.6 s
		}),
	}
}
