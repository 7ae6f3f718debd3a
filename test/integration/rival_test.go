package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// openKruise is the webhook configuration that OpenKruise installs, for one namespace. No server
// answers these calls, and API servers ignore the failures.
const openKruise = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: kruise-mutating-webhook-configuration}
webhooks:
- name: mpod.kb.io
  clientConfig: {service: {namespace: kruise-system, name: kruise-webhook-service, path: /mutate-pod}}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
- name: msidecarset.kb.io
  clientConfig: {service: {namespace: kruise-system, name: kruise-webhook-service, path: /mutate-apps-kruise-io-sidecarset}}
  rules: [{operations: [CREATE, UPDATE], apiGroups: [apps.kruise.io], apiVersions: [v1alpha1, v1beta1], resources: [sidecarsets]}]
  objectSelector: {matchLabels: {no-object: has-this}}
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
`

// awaitWord waits until the log of every replica reports another injector in a line that
// contains all parts.
func awaitWord(t *testing.T, parts ...string) {
	t.Helper()
	for _, replica := range replicas {
		await.Eventually(t, "a word about another injector", func(context.Context) error {
			for line := range strings.Lines(replica.Log()) {
				says := strings.Contains(line, "Another program injects SidecarSets")
				for _, part := range parts {
					says = says && strings.Contains(line, part)
				}
				if says {
					return nil
				}
			}
			return fmt.Errorf("%s says none", replica.Name)
		})
	}
}

// While OpenKruise's webhook is configured, the operator does not inject Pods that OpenKruise
// has injected. It injects all other Pods. When OpenKruise's webhook is removed, it injects
// all Pods.
func TestALiveOpenKruiseIsNotInjectedOver(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, "selector: {matchLabels: {app: web}}\n"+inNamespace+"containers: [{name: side, image: \"example.com/side:v1\"}]\n")
	awaitInjected(t, set, namespace, "app=web")
	kruise := parse(t, openKruise, namespace)
	create(t, kruise)
	t.Cleanup(func() { _ = api.Delete(context.WithoutCancel(t.Context()), kruise) })
	awaitWord(t, "OpenKruise", "mpod.kb.io", "Delete that configuration")

	recorded := pod(namespace, "recorded", "app=web")
	recorded.Annotations = map[string]string{appsv1beta1.AnnotationInjectedList: set.GetName()}
	create(t, recorded)
	if diff := cmp.Diff([]string{"app"}, testkit.ContainerNames(recorded.Spec.Containers)); diff != "" {
		t.Errorf("a Pod that it injected (-want +got):\n%s", diff)
	}
	missed := pod(namespace, "missed", "app=web")
	create(t, missed)
	if diff := cmp.Diff([]string{"side", "app"}, testkit.ContainerNames(missed.Spec.Containers)); diff != "" {
		t.Errorf("a Pod that it missed (-want +got):\n%s", diff)
	}

	if err := api.Delete(t.Context(), kruise); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "all of the Pods being ours again", func(ctx context.Context) error {
		p := pod(namespace, "ours", "app=web")
		p.Annotations = map[string]string{appsv1beta1.AnnotationInjectedList: set.GetName()}
		if err := api.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if !slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "side" }) {
			return fmt.Errorf("its containers are %v", testkit.ContainerNames(p.Spec.Containers))
		}
		return nil
	})
}
