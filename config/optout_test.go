package config

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// optOut is the label and the annotation by which AKS leaves a webhook configuration as it is.
const optOut = "admissions.enforcer/disabled"

// 16 objects for entries, the one for provisional entries, and those of the webhooks for
// SidecarSets. test/integration shows the same of the overlays.
func TestWebhookConfigurationsOptOutOfAKS(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			found := 0
			for _, document := range documents(t, layout.path) {
				if !isWebhookConfiguration(document) {
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
			if found != 19 {
				t.Errorf("there are %d webhook configurations, want 19", found)
			}
		})
	}
}

// The kustomization in config/webhook gives them the label and the annotation.
func TestWebhookConfigurationsAreInOneDirectory(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		for _, document := range documents(t, path) {
			if isWebhookConfiguration(document) && filepath.Dir(path) != "webhook" {
				t.Errorf("%s has a %s; move it to config/webhook", path, document["kind"])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func isWebhookConfiguration(document map[string]any) bool {
	return strings.HasSuffix(text(document["kind"]), "WebhookConfiguration")
}
