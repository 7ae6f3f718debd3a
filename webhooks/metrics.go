package webhooks

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sidecarset/operator/webhooks/ports"
)

// admissionResult is how one Pod admission ended; the values of a label.
type admissionResult string

const (
	resultInjected    admissionResult = "injected"     // a patch was sent
	resultUnchanged   admissionResult = "unchanged"    // selected, but nothing to add
	resultNotSelected admissionResult = "not_selected" // no SidecarSet selects the Pod
	resultIgnored     admissionResult = "ignored"      // not a Pod's creation, or an excluded namespace
	resultOther       admissionResult = "other"        // left to another injector, which is live
	resultDenied      admissionResult = "denied"       // SidecarSets and Pod do not fit together
	resultInvalid     admissionResult = "invalid"      // the request cannot be understood
	resultError       admissionResult = "error"        // this replica could not tell
	resultAbandoned   admissionResult = "abandoned"    // the client did not wait for the answer
)

var admissionResults = []admissionResult{
	resultInjected, resultUnchanged, resultNotSelected, resultIgnored, resultOther, resultDenied, resultInvalid, resultError,
	resultAbandoned,
}

// podMetrics are the figures of Pod admission, resolved once so that counting
// costs a few atomic operations.
type podMetrics struct {
	total   map[admissionResult]prometheus.Counter
	seconds map[admissionResult]prometheus.Observer
}

func newPodMetrics(registry prometheus.Registerer) *podMetrics {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_pod_admissions_total",
		Help: "Pod admissions by result: injected, unchanged, not_selected, ignored, other, denied, invalid, error, abandoned.",
	}, []string{"result"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sidecarset_pod_admission_duration_seconds",
		Help: "Time to answer one Pod admission, by result: injected, unchanged, not_selected, ignored, other, denied, invalid, error, abandoned.",
		// 10 µs to 2.6 s in steps of 4; the request's body is read within.
		Buckets: prometheus.ExponentialBuckets(10e-6, 4, 10),
	}, []string{"result"})
	registry.MustRegister(total, seconds)

	m := &podMetrics{total: map[admissionResult]prometheus.Counter{}, seconds: map[admissionResult]prometheus.Observer{}}
	for _, result := range admissionResults {
		m.total[result] = total.WithLabelValues(string(result))
		m.seconds[result] = seconds.WithLabelValues(string(result))
	}
	return m
}

func (m *podMetrics) observe(result admissionResult, took time.Duration) {
	m.total[result].Inc()
	m.seconds[result].Observe(took.Seconds())
}

// instrument counts and times the requests of the handlers other than that for
// Pods, which counts for itself.
func instrument(registry prometheus.Registerer) func(path string, next http.Handler) http.Handler {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_webhook_requests_total",
		Help: "Requests for SidecarSets by path of the webhook and HTTP status code.",
	}, []string{"path", "code"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sidecarset_webhook_request_duration_seconds",
		Help:    "Time to answer one request for SidecarSets, by path of the webhook.",
		Buckets: prometheus.ExponentialBuckets(100e-6, 4, 9), // 100 µs to 6.6 s
	}, []string{"path"})
	registry.MustRegister(total, seconds)
	return func(path string, next http.Handler) http.Handler {
		label := prometheus.Labels{"path": path}
		return promhttp.InstrumentHandlerDuration(seconds.MustCurryWith(label),
			promhttp.InstrumentHandlerCounter(total.MustCurryWith(label), next))
	}
}

// serverMetrics are the figures of the Server itself.
type serverMetrics struct {
	refused    *prometheus.CounterVec
	collectors []prometheus.Collector
}

func newServerMetrics(gates map[Group]*gate, open *ports.Connections) *serverMetrics {
	m := &serverMetrics{refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_webhook_refused_requests_total",
		Help: "Requests that were refused before they were looked at, by group of paths (pods, sidecarsets, conversions, barriers) and reason: busy, memory, too_large, slow, invalid.",
	}, []string{"group", "reason"})}
	m.collectors = []prometheus.Collector{m.refused,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidecarset_webhook_connections", Help: "Open connections to the webhook server.",
		}, func() float64 { return float64(open.Count()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sidecarset_webhook_evicted_connections_total", Help: "Connections that were closed because there were too many.",
		}, func() float64 { return float64(open.Evicted()) }),
	}
	for group, gate := range gates {
		for _, reason := range refusalReasons {
			gate.refused[reason] = m.refused.WithLabelValues(string(group), string(reason))
		}
		m.collectors = append(m.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "sidecarset_webhook_requests_in_flight",
			Help:        "Requests that are being answered, by group of paths: pods, sidecarsets, conversions, barriers.",
			ConstLabels: prometheus.Labels{"group": string(group)},
		}, func() float64 { return float64(gate.inFlight()) }))
	}
	return m
}

// Instrument exposes the server's own metrics. Call it once.
func (s *Server) Instrument(registry prometheus.Registerer) {
	registry.MustRegister(s.metrics.collectors...)
}
