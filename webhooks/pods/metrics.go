package pods

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sidecarset/operator/internal/inject"
)

// admissionResult is how one Pod admission ended. It is the value of a metric's label.
type admissionResult string

const (
	resultInjected    admissionResult = "injected"     // a patch was sent
	resultUnchanged   admissionResult = "unchanged"    // selected, but nothing to add
	resultNotSelected admissionResult = "not_selected" // no SidecarSet selects the Pod
	resultIgnored     admissionResult = "ignored"      // not a Pod's creation, or an excluded namespace
	resultOther       admissionResult = "other"        // left to another injector, which is live
	resultDenied      admissionResult = "denied"       // SidecarSets and Pod do not fit together
	resultInvalid     admissionResult = "invalid"      // the request cannot be understood
	resultError       admissionResult = "error"        // this replica could not decide
	resultAbandoned   admissionResult = "abandoned"    // the client did not wait for the answer
)

var admissionResults = []admissionResult{
	resultInjected, resultUnchanged, resultNotSelected, resultIgnored, resultOther, resultDenied, resultInvalid, resultError,
	resultAbandoned,
}

// podMetrics are the metrics of Pod admission. Their labels are resolved once, so that
// counting costs a few atomic operations.
type podMetrics struct {
	total   map[admissionResult]prometheus.Counter
	seconds map[admissionResult]prometheus.Observer
	notices map[inject.NoticeKind]prometheus.Counter
}

func newPodMetrics(registry prometheus.Registerer) *podMetrics {
	r := promauto.With(registry)
	total := r.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_pod_admissions_total",
		Help: "Pod admissions by result: injected, unchanged, not_selected, ignored, other, denied, invalid, error, abandoned.",
	}, []string{"result"})
	seconds := r.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sidecarset_pod_admission_duration_seconds",
		Help: "Time to answer one Pod admission, by result: injected, unchanged, not_selected, ignored, other, denied, invalid, error, abandoned.",
		// 10 µs to 2.6 s in steps of 4. The waits for the body and for a seat are not included.
		Buckets: prometheus.ExponentialBuckets(10e-6, 4, 10),
	}, []string{"result"})
	notices := r.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_injection_notices_total",
		Help: "How often an injected Pod did not get all that a SidecarSet asks for, by kind: TransferEnv, Reference, Volume, VolumeMount, PortName, Metadata.",
	}, []string{"kind"})
	m := &podMetrics{
		map[admissionResult]prometheus.Counter{}, map[admissionResult]prometheus.Observer{}, map[inject.NoticeKind]prometheus.Counter{},
	}
	for _, kind := range inject.NoticeKinds() {
		m.notices[kind] = notices.WithLabelValues(string(kind))
	}
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
