package controllers

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
)

// collectors are the metrics of the status controller.
type collectors struct {
	trackedPods   prometheus.Gauge
	uncountedPods prometheus.Gauge
	podEvents     *prometheus.CounterVec
	statusWrites  *prometheus.CounterVec

	matched, updated, ready, updatedReady, uninjected *prometheus.GaugeVec
	waiting, inFlight, readiness, held, degraded      *prometheus.GaugeVec
	blocked, notRunning, phase                        *prometheus.GaugeVec // by reason too
	revisions                                         *prometheus.GaugeVec // by revision too
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
	by := func(label, name, help string) *prometheus.GaugeVec {
		return r.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help + " By sidecarset: its name, and " + label + "."}, []string{"sidecarset", label})
	}
	return &collectors{
		trackedPods:   gauge("sidecarset_tracked_pods", "Active Pods that the controller keeps a record of."),
		uncountedPods: gauge("sidecarset_uncounted_pods", "Active Pods that are in no counter, because their labels, containers or injected list are too large."),
		podEvents:     counter("sidecarset_pod_events_total", "What the Pod watch delivered, by type: added, updated, deleted, listed (one for each complete list).", "type"),
		statusWrites:  counter("sidecarset_status_writes_total", "Writes of a SidecarSet's status, by result: written, conflict, error.", "result"),
		matched:       ofSidecarSet("sidecarset_matched_pods", "Active Pods that have the SidecarSet's sidecars."),
		updated:       ofSidecarSet("sidecarset_updated_pods", "Matched Pods that have the current revision."),
		ready:         ofSidecarSet("sidecarset_ready_pods", "Matched Pods that are ready, and of which no update is under way."),
		updatedReady:  ofSidecarSet("sidecarset_updated_ready_pods", "Matched Pods that are both updated and ready."),
		uninjected:    ofSidecarSet("sidecarset_uninjected_pods", "Active Pods that the SidecarSet selects and that do not have its sidecars."),
		waiting:       ofSidecarSet("sidecarset_waiting_pods", "Matched Pods that are outdated and wait to be updated."),
		inFlight:      ofSidecarSet("sidecarset_budget_used_pods", "Pods that use maxUnavailable: those that are being updated, or are not Ready since, and those that disappeared meanwhile."),
		readiness:     ofSidecarSet("sidecarset_ready", "1 if the condition Ready is True, 0 if it is not. There is no value while the SidecarSet has no such condition, because its injection is paused."),
		held:          ofSidecarSet("sidecarset_new_pods_held", "1 while new Pods get an earlier revision, because running Pods are not available with the current one yet (sidecarset.io/new-pods: Stable), or else 0."),
		degraded:      ofSidecarSet("sidecarset_degraded", "1 if the condition Degraded is True, or else 0."),
		blocked:       by("reason", "sidecarset_blocked_pods", "Matched Pods that are outdated and cannot be updated in place."),
		notRunning:    by("reason", "sidecarset_pods_not_running", "Matched Pods one of whose sidecars does not run."),
		phase:         by("reason", "sidecarset_rollout", "1 for the reason of the condition Progressing."),
		revisions:     by("revision", "sidecarset_revision_pods", "Matched Pods that have this ControllerRevision, of the ten with the most Pods; other: all other Pods."),
	}
}

// observe publishes the counters of one SidecarSet.
func (c *collectors) observe(sidecarSet string, seen status.Observation) {
	n := seen.Counters
	c.matched.WithLabelValues(sidecarSet).Set(float64(n.Matched))
	c.updated.WithLabelValues(sidecarSet).Set(float64(n.Updated))
	c.ready.WithLabelValues(sidecarSet).Set(float64(n.Ready))
	c.updatedReady.WithLabelValues(sidecarSet).Set(float64(n.UpdatedReady))
	c.uninjected.WithLabelValues(sidecarSet).Set(float64(n.Uninjected))
	if p := seen.Plan; p != nil {
		c.waiting.WithLabelValues(sidecarSet).Set(float64(max(0, p.Outdated-p.Kept)))
		c.inFlight.WithLabelValues(sidecarSet).Set(float64(p.BudgetUsed))
		observeGroups(c.blocked, sidecarSet, p.Blocked)
		observeGroups(c.notRunning, sidecarSet, p.NotRunning)
	}
}

func observeGroups(gauge *prometheus.GaugeVec, sidecarSet string, groups rollout.Groups) {
	gauge.DeletePartialMatch(prometheus.Labels{"sidecarset": sidecarSet})
	for _, group := range groups.List() {
		gauge.WithLabelValues(sidecarSet, group.Reason).Set(float64(group.Pods))
	}
}

// observeStatus publishes the conditions of one SidecarSet, and its Pods by revision.
func (c *collectors) observeStatus(sidecarSet string, s appsv1beta1.SidecarSetStatus) {
	for gauge, kind := range map[*prometheus.GaugeVec]string{
		c.readiness: appsv1beta1.ConditionReady, c.degraded: appsv1beta1.ConditionDegraded,
	} {
		switch condition := meta.FindStatusCondition(s.Conditions, kind); {
		case condition == nil:
			gauge.DeleteLabelValues(sidecarSet)
		case condition.Status == metav1.ConditionTrue:
			gauge.WithLabelValues(sidecarSet).Set(1)
		default:
			gauge.WithLabelValues(sidecarSet).Set(0)
		}
	}
	held := 0.0
	if ready := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionReady); ready != nil && ready.Reason == appsv1beta1.ReasonRevisionNotStable {
		held = 1
	}
	c.held.WithLabelValues(sidecarSet).Set(held)
	c.phase.DeletePartialMatch(prometheus.Labels{"sidecarset": sidecarSet})
	if progressing := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionProgressing); progressing != nil {
		c.phase.WithLabelValues(sidecarSet, progressing.Reason).Set(1)
	}
	c.revisions.DeletePartialMatch(prometheus.Labels{"sidecarset": sidecarSet})
	for _, revision := range s.Revisions {
		c.revisions.WithLabelValues(sidecarSet, cmp.Or(revision.Name, "other")).Set(float64(revision.Pods))
	}
}

// forget removes the gauges of a SidecarSet that is gone.
func (c *collectors) forget(sidecarSet string) {
	for _, gauge := range []*prometheus.GaugeVec{
		c.matched, c.updated, c.ready, c.updatedReady, c.uninjected, c.waiting, c.inFlight, c.readiness, c.held, c.degraded, c.blocked, c.notRunning, c.phase, c.revisions,
	} {
		gauge.DeletePartialMatch(prometheus.Labels{"sidecarset": sidecarSet})
	}
}
