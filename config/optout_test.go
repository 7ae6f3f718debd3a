package config

import (
	"path/filepath"
	"strings"
	"testing"
)

// optOut is the label and the annotation by which AKS leaves a webhook configuration as it is.
const optOut = "admissions.enforcer/disabled"

// 16 slots, and the configurations of the webhooks for SidecarSets.
func TestWebhookConfigurationsOptOutOfAKS(t *testing.T) {
	layouts, err := filepath.Glob("overlays/*")
	if err != nil || len(layouts) == 0 {
		t.Fatalf("there are the overlays %q, %v", layouts, err)
	}
	for _, layout := range append(layouts, standard) {
		t.Run(layout, func(t *testing.T) {
			found := 0
			for _, document := range built(t, layout) {
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
