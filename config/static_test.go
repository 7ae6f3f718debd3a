package config

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/podwebhook"
)

// The leader recognizes the two webhooks by their paths, and creates ConfigMaps with a label that
// the probe webhook has to select.
func TestTheOperatorFindsTheEntriesOfStaticMode(t *testing.T) {
	var c admissionregistrationv1.MutatingWebhookConfiguration
	convert(t, object(t, built(t, "overlays/static"), "MutatingWebhookConfiguration", "sidecarset-mutating-webhook"), &c)
	if !injectors.CallsUs(&c, "sidecarset-system") || !injectors.HasProbe(&c, "sidecarset-system") || injectors.Find(&c) != nil {
		t.Fatalf("it does not find them in %v", c.Webhooks)
	}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		if w.Name != "static.probe.sidecarset.io" {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(w.ObjectSelector)
		if err != nil || !selector.Matches(labels.Set{podwebhook.LabelStaticProbe: "1"}) || selector.Matches(labels.Set{}) {
			t.Errorf("the probe webhook selects %v: %v", w.ObjectSelector, err)
		}
		if w.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] != "sidecarset-system" || *w.FailurePolicy != admissionregistrationv1.Ignore {
			t.Errorf("every ConfigMap of the cluster may depend on the operator: %v", w)
		}
	}
}
