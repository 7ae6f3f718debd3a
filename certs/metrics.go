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

	authorityRepairs = register.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_ca_repairs_total",
		Help: "Changes of the CA Secret by other programs, and repairs of it, by event: restored (had been deleted), replaced (was unusable), foreign (another program stored another CA) or added (another program put certificates into ca.crt).",
	}, []string{"event"})

	bundleWrites = register.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_ca_bundle_writes_total",
		Help: "Objects whose caBundle the leader has written, also because another program had reset it, by the object's kind.",
	}, []string{"kind"})

	targetsMissing = register.NewGauge(prometheus.GaugeOpts{
		Name: "sidecarset_ca_bundle_objects_missing",
		Help: "Objects of the manifests that do not exist, or lack a webhook that they should have, as the leader sees it: apply them again.",
	})

	foreignEntries = register.NewGauge(prometheus.GaugeOpts{
		Name: "sidecarset_ca_bundle_foreign_entries",
		Help: "Webhook entries in the operator's own objects that call another server, as the leader sees it; it writes no CA bundle into them.",
	})

	heldBack = register.NewGauge(prometheus.GaugeOpts{
		Name: "sidecarset_certificate_pending_seconds",
		Help: "Time since this replica has a new serving certificate that it does not serve because an API server would refuse it; 0 without one.",
	})

	clockAhead = register.NewGauge(prometheus.GaugeOpts{
		Name: "sidecarset_clock_ahead_seconds",
		Help: "By how much the clock of this process is ahead of the API server's, at least; negative if it is behind.",
	})
)
