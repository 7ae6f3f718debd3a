package snapshot

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// catalogMetrics are the metrics of the Catalog.
type catalogMetrics struct {
	sidecarSets, unusable, namespaces, bytes prometheus.Gauge
	rebuildSeconds                           prometheus.Histogram
}

func newCatalogMetrics(registry prometheus.Registerer) *catalogMetrics {
	r := promauto.With(registry)
	gauge := func(name, help string) prometheus.Gauge {
		return r.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	return &catalogMetrics{
		sidecarSets: gauge("sidecarset_catalog_sidecarsets", "SidecarSets that this replica knows."),
		unusable:    gauge("sidecarset_catalog_unusable_sidecarsets", "SidecarSets that this replica knows and cannot use; their condition Accepted says why."),
		namespaces:  gauge("sidecarset_catalog_namespaces", "Namespaces whose labels this replica knows."),
		bytes:       gauge("sidecarset_catalog_bytes", "Estimate of the memory that the SidecarSets take in this replica."),
		rebuildSeconds: r.NewHistogram(prometheus.HistogramOpts{
			Name:    "sidecarset_catalog_rebuild_seconds",
			Help:    "Time to bring the catalog up to date with changed SidecarSets and Namespaces.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 10), // 10 µs to 2.6 s
		}),
	}
}
