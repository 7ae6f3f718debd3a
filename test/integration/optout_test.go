package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// optOut is the label and the annotation by which AKS leaves a webhook configuration as it is.
const optOut = "admissions.enforcer/disabled"

// webhookConfigurations is how many there are: the slots, and those of the webhooks for SidecarSets.
const webhookConfigurations = entry.Slots + 2

// notOptedOut names the webhook configurations among the objects that lack the label or the
// annotation. It returns an error if an object is missing.
func notOptedOut(objects []unstructured.Unstructured) (lacking []string, err error) {
	found := 0
	for _, object := range objects {
		if !strings.HasSuffix(object.GetKind(), "WebhookConfiguration") {
			continue
		}
		found++
		if object.GetLabels()[optOut] != "true" || object.GetAnnotations()[optOut] != "true" {
			lacking = append(lacking, object.GetKind()+" "+object.GetName())
		}
	}
	if found != webhookConfigurations {
		err = fmt.Errorf("there are %d webhook configurations, want %d", found, webhookConfigurations)
	}
	return lacking, err
}

// storedConfigurations returns the operator's webhook configurations.
func storedConfigurations(t *testing.T) (objects []unstructured.Unstructured) {
	t.Helper()
	for _, kind := range []string{"MutatingWebhookConfigurationList", "ValidatingWebhookConfigurationList"} {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind(kind))
		if err := api.List(t.Context(), &list, client.MatchingLabels{"app.kubernetes.io/part-of": "sidecarset"}); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, list.Items...)
	}
	return objects
}

func expectOptedOut(t *testing.T, after string) {
	t.Helper()
	if lacking, err := notOptedOut(storedConfigurations(t)); err != nil || len(lacking) > 0 {
		t.Errorf("after %s, these lack the label or the annotation: %q, %v", after, lacking, err)
	}
}

// The replicas publish the bundle and write entries into objects that an administrator has
// applied.
func TestOurWritesKeepTheOptOutOfAKS(t *testing.T) {
	for _, object := range storedConfigurations(t) {
		webhooks, _, _ := unstructured.NestedSlice(object.Object, "webhooks")
		for _, webhook := range webhooks {
			if bundle, _, _ := unstructured.NestedString(webhook.(map[string]any), "clientConfig", "caBundle"); bundle == "" {
				t.Errorf("%s has no bundle", object.GetName())
			}
		}
	}
	expectOptedOut(t, "a bundle was published")

	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, onlyHere("web"))
	expectOptedOut(t, "an entry was written")

	timeout := fmt.Sprintf(`{"metadata": {"annotations": {%q: "7"}}}`, appsv1beta1.AnnotationTimeoutSeconds)
	if err := api.Patch(t.Context(), set, client.RawPatch(types.MergePatchType, []byte(timeout))); err != nil {
		t.Fatal(err)
	}
	awaitEntry(t, namespace, "an entry that waits for 7 s", func(w *admissionregistrationv1.MutatingWebhook) bool { return *w.TimeoutSeconds == 7 })
	expectOptedOut(t, "an entry was updated")

	edit(t, namespace, func(_ *admissionregistrationv1.MutatingWebhookConfiguration, w *admissionregistrationv1.MutatingWebhook) {
		w.FailurePolicy = new(admissionregistrationv1.Ignore)
	})
	restored := func(w *admissionregistrationv1.MutatingWebhook) bool {
		return *w.FailurePolicy == admissionregistrationv1.Fail
	}
	awaitEntry(t, namespace, "a restored entry", restored)
	expectOptedOut(t, "an edited entry was restored")

	// An earlier version has been installed, whose objects lack both. The manifests add them.
	edit(t, namespace, func(c *admissionregistrationv1.MutatingWebhookConfiguration, w *admissionregistrationv1.MutatingWebhook) {
		delete(c.Labels, optOut)
		delete(c.Annotations, optOut)
		w.FailurePolicy = new(admissionregistrationv1.Ignore)
	})
	awaitEntry(t, namespace, "an entry in an object of an earlier version", restored)
	if lacking, err := notOptedOut(storedConfigurations(t)); err != nil || len(lacking) != 1 {
		t.Errorf("these lack the label or the annotation: %q, %v; want one", lacking, err)
	}
	applyObjects(t, cluster)
	expectOptedOut(t, "an upgrade")

	deleteSidecarSet(t, set)
	await.Eventually(t, "no entry", func(ctx context.Context) error {
		found, err := podEntries(ctx, api, namespace)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("entries are %v", found)
		}
		return err
	})
	expectOptedOut(t, "an entry was removed")
}

// awaitEntry waits until the entry for app=web in the namespace is as wanted.
func awaitEntry(t *testing.T, namespace, what string, wanted func(*admissionregistrationv1.MutatingWebhook) bool) {
	t.Helper()
	await.Eventually(t, what, func(ctx context.Context) error {
		found, err := podEntries(ctx, api, namespace)
		if err != nil {
			return err
		}
		if w, ok := found["web"]; !ok || !wanted(&w) {
			return fmt.Errorf("entries are %v", found)
		}
		return nil
	})
}

// edit changes the entry for app=web in the namespace and its object, as another program.
func edit(t *testing.T, namespace string, change func(*admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.MutatingWebhook)) {
	t.Helper()
	await.Eventually(t, "an edit", func(ctx context.Context) error { // the leader may write the object between the two requests
		var list admissionregistrationv1.MutatingWebhookConfigurationList
		if err := api.List(ctx, &list, client.MatchingLabelsSelector{Selector: entry.Labelled()}); err != nil {
			return err
		}
		for i := range list.Items {
			for k, w := range list.Items[i].Webhooks {
				if w.Rules[0].Resources[0] == "pods" && w.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] == namespace {
					change(&list.Items[i], &list.Items[i].Webhooks[k])
					return api.Update(ctx, &list.Items[i])
				}
			}
		}
		return errors.New("there is no entry")
	})
}
