package controllers

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/sidecarset/operator/internal/fixtures"
)

func TestSetupListensToTheSnapshotAndToReadiness(t *testing.T) {
	mgr, err := ctrl.NewManager(&rest.Config{Host: "http://api.test"}, manager.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatalf("manager: %v", err)
	}
	sets, readiness := &fixtures.Snapshots{}, &judgements{}
	if err := Setup(mgr, sets, Options{Registry: prometheus.NewRegistry(), Readiness: readiness}); err != nil {
		t.Fatalf("Setup: %v", err)
	}
	if sets.Listeners() != 1 || readiness.changed == nil {
		t.Errorf("%d parts listen to the snapshot, readiness is listened to: %v", sets.Listeners(), readiness.changed != nil)
	}
	readiness.changed("log") // is harmless before the manager starts
}
