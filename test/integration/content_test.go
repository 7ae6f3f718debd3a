package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// contentOf is a SidecarSet in a namespace. members are of its spec.
func contentOf(t *testing.T, namespace, members string) *unstructured.Unstructured {
	t.Helper()
	return newSidecarSet(t, namespace, "selector: {matchLabels: {app: content}}\nupdateStrategy: {type: NotUpdate}\n"+inNamespace+members+"\n")
}

// causesOf are the fields because of which a SidecarSet is refused.
func causesOf(err error) (fields []string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field)
	}
	return fields
}

const unchecked = "spec: the API server could not check the containers and volumes"

// A SidecarSet with a fault was stored while a webhook of others could not be called. The fault
// does not hold up its cure.
func TestAFaultThatWasStoredUncheckedDoesNotHoldUpItsCure(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, api, nil)
	author := newUser(t, cluster, api, "unchecked", namespace+"/system:aggregate-to-edit")
	const fault = `{name: "a=b"}`
	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "nobody.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/")},
			Rules: []admissionregistrationv1.RuleWithOperations{ofTemplates}, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			MatchConditions:         []admissionregistrationv1.MatchCondition{{Name: "policed", Expression: isPoliced(namespace)}},
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	create(t, webhook)
	set := policed(t, namespace, "v1", fault)
	await.Eventually(t, "the webhook", func(ctx context.Context) error {
		err := author.Create(ctx, set.DeepCopy(), client.DryRunAll)
		if told := author.told(); err != nil || !strings.Contains(told, unchecked) || !strings.Contains(told, "nobody.example.com") {
			return fmt.Errorf("the author is answered %w and told %q", err, told)
		}
		return nil
	})
	create(t, set)
	t.Cleanup(func() { deleteSidecarSet(t, set) })

	if err := api.Delete(t.Context(), webhook); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "no webhook", func(ctx context.Context) error {
		err := api.Create(ctx, policed(t, namespace, "v1", fault), client.DryRunAll)
		if !slices.Contains(causesOf(err), "spec.containers[0].env[0].name") {
			return fmt.Errorf("a faulty SidecarSet is answered %w", err)
		}
		return nil
	})
	change := func(tag, env string) error {
		updated := policed(t, namespace, tag, env)
		patch, err := json.Marshal(map[string]any{"spec": updated.Object["spec"]})
		if err != nil {
			t.Fatal(err)
		}
		return author.Patch(t.Context(), set.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	}
	if err := change("v2", fault); err != nil {
		t.Errorf("a new image: %v", err)
	}
	if told := author.told(); !strings.Contains(told, "spec.containers[0].env[0].name") || !strings.Contains(told, "(the stored SidecarSet has this problem already)") {
		t.Errorf("the author of the new image was told %q", told)
	}
	if err := change("v3", fault+`, {name: "c=d"}`); !slices.Equal(causesOf(err), []string{"spec.containers[0].env[1].name"}) {
		t.Errorf("one more fault: %v", err)
	}
	if err := change("v3", ""); err != nil {
		t.Errorf("the cure: %v", err)
	}
}

// policed is a SidecarSet whose container is called like its namespace.
func policed(t *testing.T, namespace, tag, env string) *unstructured.Unstructured {
	t.Helper()
	return contentOf(t, namespace, "containers: [{name: "+namespace+", image: \"example.com/a:"+tag+"\", env: ["+env+"]}]")
}

// isPoliced is a condition about the templates of policed SidecarSets of a namespace.
func isPoliced(namespace string) string {
	return fmt.Sprintf("object.template.spec.containers.exists(c, c.name == %q)", namespace)
}

var ofTemplates = admissionregistrationv1.RuleWithOperations{
	Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
	Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"podtemplates"}},
}
