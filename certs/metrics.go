package certs

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	certificateNotAfter = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sidecarset_certificate_not_after_timestamp_seconds",
		Help: "When a certificate expires, in seconds since 1970, by certificate: serving (of this replica) or ca (that signs leaves).",
	}, []string{"certificate"})

	bundleWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_ca_bundle_writes_total",
		Help: "Objects whose caBundle the leader has written, also because somebody had reset it, by the object's kind.",
	}, []string{"kind"})
)

func init() {
	metrics.Registry.MustRegister(certificateNotAfter, bundleWrites)
}
