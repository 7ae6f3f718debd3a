package pods

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
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
	total    map[admissionResult]prometheus.Counter
	seconds  map[admissionResult]prometheus.Observer
	warnings map[inject.WarningKind]prometheus.Counter
	bySet    *injections
}

func newPodMetrics(registry prometheus.Registerer, snapshot func() *match.Snapshot) *podMetrics {
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
	warnings := r.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_injection_warnings_total",
		Help: "How often an injected Pod did not get all that a SidecarSet asks for, by kind: TransferEnv, Reference, Volume, VolumeMount, PortName, Metadata.",
	}, []string{"kind"})
	m := &podMetrics{
		map[admissionResult]prometheus.Counter{}, map[admissionResult]prometheus.Observer{}, map[inject.WarningKind]prometheus.Counter{},
		newInjections(snapshot),
	}
	if registry != nil {
		registry.MustRegister(m.bySet)
	}
	for _, kind := range inject.WarningKinds() {
		m.warnings[kind] = warnings.WithLabelValues(string(kind))
	}
	for _, result := range admissionResults {
		m.total[result] = total.WithLabelValues(string(result))
		m.seconds[result] = seconds.WithLabelValues(string(result))
	}
	return m
}

// injections counts, by SidecarSet, the Pods that it was injected into and those that were denied
// because of it. It forgets a SidecarSet that the snapshot does not have any more.
type injections struct {
	*prometheus.CounterVec
	snapshot func() *match.Snapshot
	names    sync.Map // of the SidecarSets that have counters
}

func newInjections(snapshot func() *match.Snapshot) *injections {
	return &injections{snapshot: snapshot, CounterVec: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_injections_total",
		Help: "Pod admissions that a SidecarSet took part in. By sidecarset: its name, and result: injected, or denied because of it.",
	}, []string{"sidecarset", "result"})}
}

// count counts a verdict for the SidecarSets that it names. An unauthenticated client's Pod may name others.
func (i *injections) count(v *verdict) {
	names := v.plan.Injected
	if refusal, is := errors.AsType[inject.Refusal](v.err); is {
		names = refusal.SidecarSets()
	}
	if v.result != resultInjected && v.result != resultDenied {
		return
	}
	snapshot := i.snapshot()
	for n, name := range names {
		if snapshot != nil && snapshot.Has(name) && !slices.Contains(names[:n], name) {
			i.names.Store(name, nil)
			i.WithLabelValues(name, string(v.result)).Inc()
		}
	}
}

// Collect implements prometheus.Collector.
func (i *injections) Collect(into chan<- prometheus.Metric) {
	if snapshot := i.snapshot(); snapshot != nil {
		i.names.Range(func(name, _ any) bool {
			if !snapshot.Has(name.(string)) {
				i.names.Delete(name)
				i.DeletePartialMatch(prometheus.Labels{"sidecarset": name.(string)})
			}
			return true
		})
	}
	i.CounterVec.Collect(into)
}

func (m *podMetrics) observe(result admissionResult, took time.Duration) {
	m.total[result].Inc()
	m.seconds[result].Observe(took.Seconds())
}
