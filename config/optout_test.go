package config

import (
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// optOut is the label and the annotation by which AKS leaves a webhook configuration as it is.
const optOut = "admissions.enforcer/disabled"

// 16 shards, and the configurations of the webhooks for SidecarSets.
func TestWebhookConfigurationsOptOutOfAKS(t *testing.T) {
	for _, profile := range everyProfile(t) {
		t.Run(profile, func(t *testing.T) {
			found := 0
			for _, document := range built(t, profile) {
				if !strings.HasSuffix(text(document["kind"]), "WebhookConfiguration") {
					continue
				}
				found++
				metadata, _ := document["metadata"].(map[string]any)
				for _, where := range []string{"labels", "annotations"} {
					if values, _ := metadata[where].(map[string]any); values[optOut] != "true" {
						t.Errorf("%s %s: %s is %v in its %s, want true", document["kind"], metadata["name"], optOut, values[optOut], where)
					}
				}
			}
			if found != 18 {
				t.Errorf("there are %d webhook configurations, want 18", found)
			}
		})
	}
}

// The label of Istio's sidecars keeps API servers from calling Istio. The annotation of the
// same name, which is older, would not.
func TestPodsOptOutOfMeshes(t *testing.T) {
	for _, profile := range everyProfile(t) {
		deployments := all[appsv1.Deployment](t, profile, "Deployment")
		if len(deployments) == 0 {
			t.Errorf("%s has no Deployment", profile)
		}
		for name, deployment := range deployments {
			pod := deployment.Spec.Template
			if pod.Labels["sidecar.istio.io/inject"] != "false" || pod.Labels["istio.io/dataplane-mode"] != "none" || pod.Annotations["linkerd.io/inject"] != "disabled" {
				t.Errorf("%s: a mesh may take Pods of %s, which have the labels %v and the annotations %v", profile, name, pod.Labels, pod.Annotations)
			}
		}
	}
}

// everyProfile returns the paths of the default profile and of all overlays.
func everyProfile(t *testing.T) []string {
	t.Helper()
	overlays, err := filepath.Glob("overlays/*")
	if err != nil || len(overlays) == 0 {
		t.Fatalf("there are the overlays %q, %v", overlays, err)
	}
	return append(overlays, standard)
}
