package controllers

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Two managers in one process share the metrics, as tests with two replicas do.
func TestSetupTwice(t *testing.T) {
	registry := prometheus.NewRegistry()
	for range 2 {
		mgr, err := ctrl.NewManager(&rest.Config{Host: newPodServer(t).URL}, manager.Options{
			Metrics:    metricsserver.Options{BindAddress: "0"},
			Controller: config.Controller{SkipNameValidation: new(true)},
		})
		if err != nil {
			t.Fatalf("manager: %v", err)
		}
		if err := Setup(mgr, &sidecarSets{}, Options{Registry: registry}); err != nil {
			t.Fatalf("Setup: %v", err)
		}
	}
	families, err := registry.Gather()
	if err != nil || len(families) == 0 {
		t.Errorf("%d metrics, %v", len(families), err)
	}
}
