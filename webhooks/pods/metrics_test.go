package pods_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// Each admission counts once, by its result.
func TestInjectorCountsResults(t *testing.T) {
	registry := prometheus.NewRegistry()
	store := storeOf(t, fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").Map(),
		fixtures.SidecarSet("paused").Select("app", "paused").Container("log", "log:v1").Paused().Map())
	current := store
	handler := server.Handler(newInjector(pods.Options{
		Snapshot: func() *match.Snapshot { return current }, Registry: registry, ExcludedNamespaces: []string{"kube-system"},
		OtherInjector: func() *injectors.Injector { return &injectors.Injector{Configuration: "kruise"} },
	}).static)
	create := func(app, container string) []byte {
		return fixtures.Encode(t, request(fixtures.Pod("web").Label("app", app).Container(container, "app:v1").Obj()))
	}
	fixtures.Send(t, handler, bytes.NewReader(create("web", "app")))
	fixtures.Send(t, handler, bytes.NewReader(create("paused", "app")))
	fixtures.Send(t, handler, bytes.NewReader(create("db", "app")))
	fixtures.Send(t, handler, bytes.NewReader(create("web", "log"))) // the app has a container of that name
	fixtures.Send(t, handler, bytes.NewReader(bytes.Replace(create("web", "app"), []byte("CREATE"), []byte("UPDATE"), 1)))
	fixtures.Send(t, handler, strings.NewReader("no review"))
	fixtures.Send(t, handler, bytes.NewReader(fixtures.Encode(t, request(fixtures.Pod("web").Label("app", "web").Annotation("kruise.io/sidecarset-injected-list", "log").Container("app", "app:v1").Obj()))))
	gone, leave := context.WithCancel(t.Context())
	leave()
	r := httptest.NewRequestWithContext(gone, http.MethodPost, "/pods", bytes.NewReader(create("web", "app")))
	r.Header.Set("Content-Type", "application/json")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	if diff := cmp.Diff(map[string]float64{"log injected": 1, "log denied": 1}, injections(t, registry)); diff != "" {
		t.Errorf("by SidecarSet (-want +got):\n%s", diff)
	}
	current = storeOf(t) // the SidecarSets are deleted
	if left := injections(t, registry); len(left) != 0 {
		t.Errorf("counters of SidecarSets that are gone: %v", left)
	}
	current = nil
	fixtures.Send(t, handler, bytes.NewReader(create("web", "app")))

	counted, timed := gather(t, registry)
	want := map[string]float64{
		"injected": 1, "unchanged": 1, "not_selected": 1, "other": 1, "denied": 1, "ignored": 1, "invalid": 1, "error": 1, "abandoned": 1,
	}
	if diff := cmp.Diff(want, counted); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, timed); diff != "" {
		t.Errorf("timed (-want +got):\n%s", diff)
	}
}

// injections returns the counters of SidecarSets, by name and result.
func injections(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatalf("gathering: %v", err)
	}
	counted := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if labels := metric.GetLabel(); family.GetName() == "sidecarset_injections_total" { // sorted by name
				counted[labels[1].GetValue()+" "+labels[0].GetValue()] = metric.GetCounter().GetValue()
			}
		}
	}
	return counted
}

// gather returns, by result, how many admissions were counted and timed.
func gather(t *testing.T, registry *prometheus.Registry) (counted, timed map[string]float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatalf("gathering: %v", err)
	}
	counted, timed = map[string]float64{}, map[string]float64{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "sidecarset_") {
			t.Errorf("metric %s lacks the prefix", family.GetName())
		}
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetName() != "result" {
				continue
			}
			result := metric.GetLabel()[0].GetValue()
			if histogram := metric.GetHistogram(); histogram != nil {
				timed[result] = float64(histogram.GetSampleCount())
				continue
			}
			counted[result] = metric.GetCounter().GetValue()
		}
	}
	return counted, timed
}
