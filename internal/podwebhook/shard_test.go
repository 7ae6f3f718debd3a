package podwebhook_test

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/podwebhook"
)

func TestSettingsShowInWebhooks(t *testing.T) {
	t.Parallel()
	e := podWebhook(t, sidecarSet("log", "web"))
	tests := map[string]struct {
		change func(*podwebhook.Settings)
		shows  func(*podwebhook.Shard, *webhook) bool
	}{
		"a port of the Service": {func(s *podwebhook.Settings) { s.Service.Port = new(int32(8443)) }, func(_ *podwebhook.Shard, w *webhook) bool { return *w.ClientConfig.Service.Port == 8443 }},
		"a URL takes the place of the Service": {func(s *podwebhook.Settings) { s.URL = "https://127.0.0.1:9443/prefix/" }, func(s *podwebhook.Shard, w *webhook) bool {
			return w.ClientConfig.Service == nil && *w.ClientConfig.URL == "https://127.0.0.1:9443/prefix"+podwebhook.PodsPath(s.Index, s.RequiredSerial)
		}},
		"reinvocation": {func(s *podwebhook.Settings) { s.Reinvocation = admissionregistrationv1.IfNeededReinvocationPolicy }, func(_ *podwebhook.Shard, w *webhook) bool {
			return *w.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy
		}},
		"no excluded namespace": {func(s *podwebhook.Settings) { s.ExcludedNamespaces = nil }, func(_ *podwebhook.Shard, w *webhook) bool { return len(w.NamespaceSelector.MatchExpressions) == 0 }},
		"no owner":              {func(s *podwebhook.Settings) { s.Ownerless = true }, func(s *podwebhook.Shard, _ *webhook) bool { return len(s.Object.OwnerReferences) == 0 }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			settings := settings()
			tc.change(settings)
			reviewed, _ := bareWith(t, e.Shard(ours), settings).Review([]podwebhook.Webhook{e}, none, 0, settings)
			s := stored(t, stored(t, reviewed).Reconcile([]podwebhook.Webhook{e}, nil, false, settings).Next)
			if w := webhookOf(s, e.Name); !tc.shows(s, w) || !s.Has(&e, settings) {
				t.Errorf("the webhook is %v", w)
			}
			if p := s.Reconcile([]podwebhook.Webhook{e}, nil, false, settings); p.Next != nil {
				t.Errorf("a second pass writes %v", p.Next)
			}
		})
	}
}

func TestUnobservedAreTheDependenciesOfThePodsWebhooks(t *testing.T) {
	t.Parallel()
	apps := appsOf(t, 7, 2)
	s := holding(t, podWebhook(t, sidecarSet("web", apps[0])), podWebhook(t, sidecarSet("db", apps[1])), podWebhook(t, sidecarSet("both", apps[0])))
	gone := edited(t, s, func(c *configuration) { c.Webhooks = nil })
	for _, tc := range []struct {
		shard *podwebhook.Shard
		pod   labels.Labels
		want  string
	}{
		{s, nil, "db web"},
		{s, labels.Set{"app": apps[0], "x": "y"}, "web"},
		{s, labels.Set(nil), ""},
		{gone, labels.Set{"app": "other"}, "db web"}, // another program has removed the webhooks, and the call came by one
	} {
		var got []string
		for _, n := range tc.shard.Unobserved(tc.pod, func(n podwebhook.Dependency) bool { return n.Name == "both" }) {
			got = append(got, n.Name)
		}
		if slices.Sort(got); strings.Join(got, " ") != tc.want {
			t.Errorf("for %v unheld are %v, want %s", tc.pod, got, tc.want)
		}
	}
}
