package operator

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestTheVersionIsAMetric(t *testing.T) {
	registry := prometheus.NewRegistry()
	exposeVersion(registry, "v1.2.3")
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 1 {
		t.Fatalf("gathered %v, %v; want one value", families, err)
	}
	metric := families[0].GetMetric()[0]
	got := map[string]string{}
	for _, label := range metric.GetLabel() {
		got[label.GetName()] = label.GetValue()
	}
	if diff := cmp.Diff(map[string]string{"version": "v1.2.3", "goversion": runtime.Version()}, got); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if name, value := families[0].GetName(), metric.GetGauge().GetValue(); name != "sidecarset_build_info" || value != 1 {
		t.Errorf("%s is %v, want sidecarset_build_info to be 1", name, value)
	}
}
