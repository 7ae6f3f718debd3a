package config

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// The version says that the build is not a release.
var wantLabels = map[string]string{
	"name": "sidecarset-operator", "instance": "sidecarset", "version": "dev", "part-of": "sidecarset", "managed-by": "kustomize", "component": "",
}

func TestEveryObjectHasTheCommonLabels(t *testing.T) {
	for _, profile := range append(everyProfile(t), "required") {
		for _, document := range built(t, profile) {
			metadata, _ := document["metadata"].(map[string]any)
			found, _ := metadata["labels"].(map[string]any)
			for label, want := range wantLabels {
				if got := text(found["app.kubernetes.io/"+label]); got == "" || want != "" && got != want {
					t.Errorf("%s: %s %s has the %s %q, want %q", profile, document["kind"], metadata["name"], label, got, want)
				}
			}
		}
		for name, deployment := range all[appsv1.Deployment](t, profile, "Deployment") {
			for label := range wantLabels {
				label = "app.kubernetes.io/" + label
				if got := deployment.Spec.Template.Labels[label]; got != deployment.Labels[label] {
					t.Errorf("%s: Pods of %s have %s %q, and the Deployment %q", profile, name, label, got, deployment.Labels[label])
				}
			}
			// A Deployment's selector cannot change, and Services would not select the Pods of before.
			delete(deployment.Spec.Selector.MatchLabels, "app.kubernetes.io/name")
			delete(deployment.Spec.Selector.MatchLabels, "app.kubernetes.io/component")
			if len(deployment.Spec.Selector.MatchLabels) > 0 {
				t.Errorf("%s: %s also selects by %v", profile, name, deployment.Spec.Selector.MatchLabels)
			}
		}
	}
}
