package injectors_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/injectors"
)

// The Pod and SidecarSet webhooks of OpenKruise's configuration.
const openKruise = `
metadata: {name: kruise-mutating-webhook-configuration}
webhooks:
- name: mpod.kb.io
  clientConfig: {service: {namespace: kruise-system, name: kruise-webhook-service, path: /mutate-pod}}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
- name: msidecarset.kb.io
  clientConfig: {service: {namespace: kruise-system, name: kruise-webhook-service, path: /mutate-apps-kruise-io-sidecarset}}
  rules: [{operations: [CREATE, UPDATE], apiGroups: [apps.kruise.io], apiVersions: [v1alpha1, v1beta1], resources: [sidecarsets]}]
`

// The operator's own, static and exact.
const (
	static = `
metadata: {name: sidecarset-mutating-webhook}
webhooks:
- name: mutate.sidecarsets.sidecarset.io
  clientConfig: {service: {namespace: sidecarset-system, name: sidecarset-webhook, path: /mutate-apps-kruise-io-sidecarset}}
  rules: [{operations: [CREATE, UPDATE], apiGroups: [apps.kruise.io], apiVersions: [v1alpha1, v1beta1], resources: [sidecarsets]}]
- name: inject.pods.sidecarset.io
  clientConfig: {service: {namespace: sidecarset-system, name: sidecarset-webhook, path: /pods}}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
`
	exact = `
metadata: {name: sidecarset-pods-3}
webhooks:
- name: 0a1b.pods.sidecarset.io
  clientConfig: {service: {namespace: sidecarset-system, name: sidecarset-webhook, path: /pods/3/1700}}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
`
	policies = `
metadata: {name: a-policy-engine}
webhooks:
- name: mutate.policies.example.com
  clientConfig: {service: {namespace: policies, name: policies, path: /mutate}}
  rules:
  - {operations: ["*"], apiGroups: ["*"], apiVersions: ["*"], resources: ["*/*"]}
  - {operations: [CREATE], apiGroups: [apps.kruise.io], apiVersions: ["*"], resources: [sidecarsets]}
`
)

func read(t *testing.T, manifest string, replace ...string) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	var c admissionregistrationv1.MutatingWebhookConfiguration
	if err := yaml.Unmarshal([]byte(strings.NewReplacer(replace...).Replace(manifest)), &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func find(t *testing.T, manifest string, replace ...string) *injectors.Injector {
	t.Helper()
	return injectors.Find(read(t, manifest, replace...))
}

func TestCallsUsRecognizesWebhooksThatCallTheOperator(t *testing.T) {
	tests := map[string]struct {
		manifest string
		replace  []string
		want     bool
	}{
		"the static webhook":                  {static, nil, true},
		"an exact one":                        {exact, nil, true},
		"one by URL":                          {exact, []string{"{service: {namespace: sidecarset-system, name: sidecarset-webhook, path: /pods/3/1700}}", `{url: "https://127.0.0.1:9443/pods/3/1700"}`}, true},
		"not one that calls another program":  {static, []string{"sidecarset-system", "elsewhere"}, false},
		"not a policy engine that covers all": {policies, nil, false},
		"not one of the wrong shard":          {exact, []string{"/pods/3/", "/pods/16/"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := injectors.CallsUs(read(t, tc.manifest, tc.replace...), "sidecarset-system"); got != tc.want {
				t.Errorf("CallsUs = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestHasProbeRecognizesTheProbeOfStaticMode(t *testing.T) {
	tests := map[string]struct {
		replace []string
		want    bool
	}{
		"it":                                 {[]string{"path: /pods}", "path: /probe/static}"}, true},
		"not one that calls another program": {[]string{"path: /pods}", "path: /probe/static}", "sidecarset-system", "elsewhere"}, false},
		"not the probe of a shard":           {[]string{"path: /pods}", "path: /probe/3}"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := injectors.HasProbe(read(t, static, tc.replace...), "sidecarset-system"); got != tc.want {
				t.Errorf("HasProbe = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestFind(t *testing.T) {
	ofKruise := &injectors.Injector{Configuration: "kruise-mutating-webhook-configuration", Webhook: "mpod.kb.io", Server: "Service kruise-system/kruise-webhook-service"}
	tests := map[string]struct {
		manifest string
		replace  []string
		want     *injectors.Injector
	}{
		"OpenKruise": {openKruise, nil, ofKruise},
		"OpenKruise by URL": {openKruise, []string{"{service: {namespace: kruise-system, name: kruise-webhook-service, path: /mutate-pod}}", `{url: "https://kruise.example.com/mutate-pod"}`},
			&injectors.Injector{Configuration: ofKruise.Configuration, Webhook: "mpod.kb.io", Server: "kruise.example.com"}},
		"not OpenKruise whose Pod webhook is off":    {openKruise, []string{"/mutate-pod", "/mutate-something"}, nil},
		"not OpenKruise without SidecarSets":         {openKruise, []string{"sidecarsets", "clonesets", "sidecarset", "cloneset"}, nil},
		"not a policy engine, though it covers both": {policies, nil, nil},
		"not our static webhook":                     {static, nil, nil},
		"not our exact webhooks":                     {exact, nil, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, find(t, tc.manifest, tc.replace...)); diff != "" {
				t.Errorf("injector (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMessageSaysWhoAndWhatToDo(t *testing.T) {
	tests := map[string]struct {
		injector *injectors.Injector
		want     []string
	}{
		"nobody":     {nil, nil},
		"OpenKruise": {find(t, openKruise), []string{"OpenKruise", "kruise-mutating-webhook-configuration", "mpod.kb.io", "kruise-system/kruise-webhook-service", "Delete that configuration", "Then this operator injects new Pods"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			message := tc.injector.Message()
			if (message == "") != (tc.want == nil) {
				t.Errorf("the message is %q", message)
			}
			for _, part := range tc.want {
				if !strings.Contains(message, part) {
					t.Errorf("%q does not say %q", message, part)
				}
			}
		})
	}
}

func TestOwns(t *testing.T) {
	kruise := find(t, openKruise)
	record := map[string]string{"kruise.io/sidecarset-hash": `{"log":{"hash":"h","sidecarSetName":"log"}}`}
	tests := map[string]struct {
		injector    *injectors.Injector
		annotations map[string]string
		want        bool
	}{
		"nothing, if there is no other":            {nil, record, false},
		"a Pod that it recorded the SidecarSet in": {kruise, record, true},
		"as injected alone, too":                   {kruise, map[string]string{"kruise.io/sidecarset-injected-list": "log,mesh"}, true},
		"not one with other SidecarSets":           {kruise, map[string]string{"kruise.io/sidecarset-injected-list": "mesh"}, false},
		"not one that it did not inject":           {kruise, nil, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.injector.Owns(tc.annotations, slices.Values([]string{"db", "log"})); got != tc.want {
				t.Errorf("Owns is %v, want %v", got, tc.want)
			}
		})
	}
}
