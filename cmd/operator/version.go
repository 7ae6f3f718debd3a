package operator

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// exposeVersion tells monitoring which build runs. The value is 1; labels tell the rest.
func exposeVersion(registry prometheus.Registerer, version string) {
	promauto.With(registry).NewGaugeVec(prometheus.GaugeOpts{
		Name: "sidecarset_build_info",
		Help: "1. By version: of the operator, and goversion: of the Go that it was built with.",
	}, []string{"version", "goversion"}).WithLabelValues(version, runtime.Version()).Set(1)
}
