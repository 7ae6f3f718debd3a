package sidecarsets_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

func TestAuthorsAreWarnedOfPodSecurity(t *testing.T) {
	restricted := labels.Set{"pod-security.kubernetes.io/enforce": "restricted"}
	const fields = "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}"
	set := strings.Replace(betaManifest, "name: agent", "name: agent, "+fields, 1)
	always := betaManifest + "  injectionStrategy: {revision: {revisionName: log-1, policy: Always}}\n"
	tests := map[string]struct {
		manifest   string
		namespaces map[string]labels.Set
		dryRun     bool
		want       string
	}{
		"a Namespace refuses it":         {manifest: betaManifest, namespaces: map[string]labels.Set{"a": restricted}, want: `(restricted) refuses Pods with these sidecars in namespace a: container "agent" must set securityContext.allowPrivilegeEscalation=false; `},
		"under dry-run":                  {manifest: betaManifest, namespaces: map[string]labels.Set{"a": restricted}, dryRun: true, want: "in namespace a: "},
		"v1alpha1":                       {manifest: strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1) + "  namespace: a\n", namespaces: map[string]labels.Set{"a": {"kubernetes.io/metadata.name": "a", "pod-security.kubernetes.io/enforce": "restricted"}, "b": restricted}, want: "in namespace a: "},
		"the fields are set":             {manifest: set, namespaces: map[string]labels.Set{"a": restricted}},
		"an excluded Namespace":          {manifest: betaManifest, namespaces: map[string]labels.Set{"kube-system": restricted}},
		"no Namespace enforces anything": {manifest: betaManifest, namespaces: map[string]labels.Set{"a": {}}},
		"its sidecars go into no Pod":    {manifest: always, namespaces: map[string]labels.Set{"a": restricted}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			reader := &live{revisions: []appsv1.ControllerRevision{{ObjectMeta: metav1.ObjectMeta{Name: "log-1", Labels: map[string]string{"kruise.io/sidecarset-name": "log"}}}}}
			handler := sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
				Stored: reader.store, Reader: reader, Namespace: "ours", ExcludedNamespaces: []string{"ours", "kube-system"},
				Current: func() *match.Snapshot { return match.Build(nil, tc.namespaces) },
			})
			answer := fixtures.Review(t, handler, registerReview(t, defaulted(t, tc.manifest), "", tc.dryRun))
			told := 0
			for _, warning := range answer.Warnings {
				if strings.HasPrefix(warning, "Pod Security ") {
					told++
					if tc.want == "" || !strings.Contains(warning, tc.want) {
						t.Errorf("it says %q, want %q", warning, tc.want)
					}
				}
			}
			if !answer.Allowed || (told == 1) != (tc.want != "") {
				t.Errorf("allowed %v, with %q", answer.Allowed, answer.Warnings)
			}
		})
	}
}
