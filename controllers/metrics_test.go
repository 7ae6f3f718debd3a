package controllers

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// The condition Ready of a SidecarSet is a metric, until the SidecarSet is deleted.
func TestReadyIsAMetric(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		registry := prometheus.NewRegistry()
		registry.MustRegister(r.m.readiness)
		want := func(values map[string]float64) {
			t.Helper()
			if diff := cmp.Diff(values, bySidecarSet(t, registry)); diff != "" {
				t.Errorf("sidecarset_ready (-want +got):\n%s", diff)
			}
		}
		r.feed(t)
		r.judge("set-1", 1, notYet)
		want(map[string]float64{"log": 0})
		r.judge("set-1", 1, inForce)
		r.pass(writeInterval)
		want(map[string]float64{"log": 1})
		r.judge("set-1", 1, noReplica)
		r.pass(writeInterval)
		want(map[string]float64{"log": 0})
		r.store.replace(nil)
		synctest.Wait()
		want(map[string]float64{})
	})
}

// bySidecarSet gathers one metric.
func bySidecarSet(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			values[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
		}
	}
	return values
}
