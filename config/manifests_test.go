// Package config holds what is installed. Its tests hold the manifests against
// what the operator and its users rely on.
package config

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/test/manifests"
)

// An update that only removes a finalizer needs no replica: the webhooks would let
// it through. Were the spec, labels and annotations not compared, a finalizer would
// be a way around the checks.
var notOnlyFinalized = []admissionregistrationv1.MatchCondition{{
	Name: "not-only-finalized",
	Expression: "!has(object.metadata.deletionTimestamp) || oldObject == null || " +
		"has(object.spec) != has(oldObject.spec) || has(object.spec) && object.spec != oldObject.spec || " +
		"has(object.metadata.labels) != has(oldObject.metadata.labels) || " +
		"has(object.metadata.labels) && object.metadata.labels != oldObject.metadata.labels || " +
		"has(object.metadata.annotations) != has(oldObject.metadata.annotations) || " +
		"has(object.metadata.annotations) && object.metadata.annotations != oldObject.metadata.annotations",
}}

func TestWebhookConfigurations(t *testing.T) {
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	decode(t, "MutatingWebhookConfiguration", "sidecarset-mutating-webhook", &mutating)
	decode(t, "ValidatingWebhookConfiguration", "sidecarset-validating-webhook", &validating)

	sidecarSets := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{"apps.kruise.io"}, APIVersions: []string{"v1alpha1", "v1beta1"},
			Resources: []string{"sidecarsets"}, Scope: new(admissionregistrationv1.ClusterScope),
		},
	}}
	wantMutating := []admissionregistrationv1.MutatingWebhook{
		{
			Name: "mutate.sidecarsets.sidecarset.io", ClientConfig: service("/mutate-apps-kruise-io-sidecarset"), Rules: sidecarSets,
			FailurePolicy: new(admissionregistrationv1.Fail), MatchPolicy: new(admissionregistrationv1.Equivalent), MatchConditions: notOnlyFinalized,
			ReinvocationPolicy: new(admissionregistrationv1.NeverReinvocationPolicy), SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds: new(int32(10)), AdmissionReviewVersions: []string{"v1"},
		},
	}
	if diff := cmp.Diff(wantMutating, mutating.Webhooks); diff != "" {
		t.Errorf("mutating webhooks (-want +got):\n%s", diff)
	}
	wantValidating := []admissionregistrationv1.ValidatingWebhook{{
		Name: "validate.sidecarsets.sidecarset.io", ClientConfig: service("/validate-apps-kruise-io-sidecarset"), Rules: sidecarSets,
		FailurePolicy: new(admissionregistrationv1.Fail), MatchPolicy: new(admissionregistrationv1.Equivalent), MatchConditions: notOnlyFinalized,
		SideEffects: new(admissionregistrationv1.SideEffectClassNoneOnDryRun), TimeoutSeconds: new(int32(10)), AdmissionReviewVersions: []string{"v1"},
	}}
	if diff := cmp.Diff(wantValidating, validating.Webhooks); diff != "" {
		t.Errorf("validating webhooks (-want +got):\n%s", diff)
	}
}

// The port names of the Deployment are what Services, probes and the
// NetworkPolicy refer to.
func TestPortsFitTogether(t *testing.T) {
	var deployment appsv1.Deployment
	decode(t, "Deployment", "sidecarset-operator", &deployment)
	ports := map[string]int32{}
	for _, port := range deployment.Spec.Template.Spec.Containers[0].Ports {
		ports[port.Name] = port.ContainerPort
	}
	if diff := cmp.Diff(map[string]int32{"webhook": 9443, "metrics": 8443, "probes": 8081}, ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{"sidecarset-webhook": "webhook", "sidecarset-metrics": "metrics"} {
		var svc corev1.Service
		decode(t, "Service", name, &svc)
		if got := svc.Spec.Ports[0].TargetPort.StrVal; got != want {
			t.Errorf("Service %s goes to port %q, want %q", name, got, want)
		}
		if diff := cmp.Diff(deployment.Spec.Selector.MatchLabels, svc.Spec.Selector); diff != "" {
			t.Errorf("Service %s selects other Pods (-Deployment +Service):\n%s", name, diff)
		}
	}
}

// The operator's rights: no wildcard, Secrets only in its own namespace and by name, no webhooks of its own making.
func TestRolesAreNarrow(t *testing.T) {
	for _, document := range append(installed(t), built(t, hardened)...) {
		kind := text(document["kind"])
		if kind != "ClusterRole" && kind != "Role" {
			continue
		}
		var role rbacv1.ClusterRole // a Role has the same rules
		convert(t, document, &role)
		for _, rule := range role.Rules {
			if slices.Contains(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs), "*") {
				t.Errorf("%s %s has a wildcard: %v", kind, role.Name, rule)
			}
			if kind == "ClusterRole" && slices.Contains(rule.Resources, "secrets") {
				t.Errorf("ClusterRole %s may use Secrets of every namespace: %v", role.Name, rule)
			}
			for _, verb := range rule.Verbs {
				if slices.Contains([]string{"escalate", "bind", "impersonate", "deletecollection"}, verb) {
					t.Errorf("%s %s may %s: %v", kind, role.Name, verb, rule)
				}
				if (verb == "create" || verb == "delete") && strings.Contains(strings.Join(rule.Resources, " "), "webhookconfigurations") {
					t.Errorf("%s %s may make webhooks of its own, or delete the webhooks of others: %v", kind, role.Name, rule)
				}
				if slices.Contains(rule.Resources, "secrets") && verb != "create" && len(rule.ResourceNames) == 0 {
					t.Errorf("%s %s may %s more Secrets than its own: %v", kind, role.Name, verb, rule)
				}
			}
		}
	}
}

// The API server refuses an annotation of more than 256 KiB, and kubectl apply
// keeps the whole object in one.
func TestDefinitionFitsClientSideApply(t *testing.T) {
	data, err := yaml.Marshal(object(t, installed(t), "CustomResourceDefinition", "sidecarsets.apps.kruise.io"))
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 200<<10 {
		t.Errorf("the CRD has %d bytes, want at most 200 KiB", len(data))
	}
}

func service(path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{
		Namespace: "sidecarset-system", Name: "sidecarset-webhook", Path: &path, Port: new(int32(443)),
	}}
}

const standard = "default"

// installed are the objects of the default profile.
func installed(t *testing.T) []map[string]any {
	t.Helper()
	return built(t, standard)
}

var rendered = map[string]string{} // by profile

// render returns a profile as kubectl kustomize prints it.
func render(t *testing.T, profile string) string {
	t.Helper()
	if rendered[profile] == "" {
		var err error
		if rendered[profile], err = manifests.Build(profile); err != nil {
			t.Fatal(err)
		}
	}
	return rendered[profile]
}

var parsed = map[string][]map[string]any{} // by profile

// built returns the objects of a profile, which no test changes.
func built(t *testing.T, profile string) []map[string]any {
	t.Helper()
	if parsed[profile] == nil {
		parsed[profile] = parse(t, profile, render(t, profile))
	}
	return parsed[profile]
}

var update = flag.Bool("update", false, "write the chart's copies instead of comparing them")

// A chart has only files of its own directory, so it has copies.
func TestTheChartHasTheFilesOfConfig(t *testing.T) {
	for copied, file := range map[string]string{"crd": "crd/bases/apps.kruise.io_sidecarsets", "roles": "rbac/role", "user_roles": "rbac/user_roles", "policy": "required/policy", "bindings": "required/bindings"} {
		want, err := os.ReadFile(file + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		copied = "../charts/sidecarset/files/" + copied + ".yaml"
		if *update {
			if err := os.WriteFile(copied, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is out of date (%v): run make generate", copied, err)
		}
	}
}

func parse(t *testing.T, path, text string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		document := map[string]any{}
		if err := yaml.Unmarshal([]byte(part), &document); err != nil {
			t.Fatalf("parsing %s: %v", path, err)
		}
		if len(document) > 0 {
			found = append(found, document)
		}
	}
	return found
}

func object(t *testing.T, documents []map[string]any, kind, name string) map[string]any {
	t.Helper()
	for _, document := range documents {
		metadata, _ := document["metadata"].(map[string]any)
		if document["kind"] == kind && metadata["name"] == name {
			return document
		}
	}
	t.Fatalf("no %s %s is installed", kind, name)
	return nil
}

// decode reads one installed object into a typed one; an unknown member fails.
func decode(t *testing.T, kind, name string, into any) {
	t.Helper()
	convert(t, object(t, installed(t), kind, name), into)
}

func convert(t *testing.T, document map[string]any, into any) {
	t.Helper()
	data, err := yaml.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("decoding %s %v: %v", document["kind"], document["metadata"], err)
	}
}
