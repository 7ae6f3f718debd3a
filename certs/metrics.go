package certs

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	register = promauto.With(metrics.Registry)

	certificateNotAfter = register.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sidecarset_certificate_not_after_timestamp_seconds",
		Help: "Expiry of a certificate in seconds since 1970, by certificate: serving (of this replica) or ca (that signs leaves).",
	}, []string{"certificate"})

	refreshFailures = register.NewCounter(prometheus.CounterOpts{
		Name: "sidecarset_certificate_refresh_failures_total",
		Help: "Failed attempts of this replica to find a new serving certificate; it continues to serve the present one.",
	})

	authorityWrites = register.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_ca_writes_total",
		Help: "Writes of the CA Secret by this leader, by change: created (there was none), rotated (the next CA signs), or replaced (a pair could not be used).",
	}, []string{"change"})

	bundleWrites = register.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_ca_bundle_writes_total",
		Help: "Objects whose caBundle the leader has written, also because another program had reset it, by the object's kind.",
	}, []string{"kind"})

	targetsMissing = register.NewGauge(prometheus.GaugeOpts{
		Name: "sidecarset_ca_bundle_objects_missing",
		Help: "Objects of the manifests that do not exist, or lack a webhook that they should have, as the leader sees it: apply them again.",
	})

	heldBack = register.NewGauge(prometheus.GaugeOpts{
		Name: "sidecarset_certificate_pending_seconds",
		Help: "Time since this replica has a new serving certificate that it does not serve because an API server would refuse it; 0 without one.",
	})
)
