package integration

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// applyObjects applies the manifests of the entry objects, to create the missing ones.
func applyObjects(t *testing.T, c *stand.Cluster) {
	t.Helper()
	file := filepath.Join(deploy.Root(), "dist/install.yaml")
	if _, err := c.Kubectl(context.WithoutCancel(t.Context()), "", "apply", "--server-side", "-f", file, "-l", entryplan.LabelConfiguration); err != nil {
		t.Fatal(err)
	}
}

// holder returns the entry object with the entry for app=<app> in namespace default.
func (i *installation) holder(ctx context.Context, app string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	var list admissionregistrationv1.MutatingWebhookConfigurationList
	if err := i.api.List(ctx, &list, client.MatchingLabelsSelector{Selector: entryplan.Labelled()}); err != nil {
		return nil, err
	}
	for k := range list.Items {
		for _, w := range list.Items[k].Webhooks {
			if w.ObjectSelector.MatchLabels["app"] == app && !strings.Contains(w.Name, ".provisional.") {
				return &list.Items[k], nil
			}
		}
	}
	return nil, fmt.Errorf("no object holds the entry of %s", app)
}

func (i *installation) ready(ctx context.Context, name string) (*metav1.Condition, error) {
	set := &appsv1beta1.SidecarSet{}
	if err := i.api.Get(ctx, client.ObjectKey{Name: name}, set); err != nil {
		return nil, err
	}
	condition := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
	if condition == nil || condition.ObservedGeneration != set.Generation {
		return nil, fmt.Errorf("the condition is %v", condition)
	}
	return condition, nil
}

// applySet creates a SidecarSet for app=<app> in namespace default, and waits until it is
// Ready.
func (i *installation) applySet(t *testing.T, app string) *unstructured.Unstructured {
	t.Helper()
	set := newSidecarSet(t, "default", onlyHere(app))
	set.SetGenerateName("")
	set.SetName(app)
	if err := i.api.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the condition Ready of "+app, func(ctx context.Context) error { return i.isReady(ctx, app) })
	return set
}

func (i *installation) isReady(ctx context.Context, name string) error {
	condition, err := i.ready(ctx, name)
	if err == nil && condition.Status != metav1.ConditionTrue {
		err = fmt.Errorf("the condition is %v", condition)
	}
	return err
}

func (i *installation) injects(ctx context.Context, app string) error {
	p := pod("default", "", "app="+app)
	p.GenerateName = app + "-"
	if err := i.api.Create(ctx, p); err != nil {
		return err
	}
	if got := testkit.ContainerNames(p.Spec.Containers); len(got) != 2 {
		return fmt.Errorf("the containers of a Pod of %s are %q", app, got)
	}
	return nil
}

func (i *installation) mustInject(t *testing.T, app string) {
	t.Helper()
	if err := i.injects(t.Context(), app); err != nil {
		t.Error(err)
	}
}

// The operator has no right to create entry objects. If a user deletes one object, the leader
// moves its entries to another. If a user deletes all of them, the condition Ready and an
// Event of every SidecarSet name the command that restores them.
func TestDeletedObjectsForEntries(t *testing.T) {
	operator.NeedReplicas(t)
	i := newInstallation(t, stand.Options{}, deploy.Default)
	i.start(t, 31)
	testkit.AwaitCalled(t, i.api)
	i.applySet(t, "web")
	i.applySet(t, "db")

	object, err := i.holder(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := i.api.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the entry in another object", func(ctx context.Context) error {
		now, err := i.holder(ctx, "web")
		if err == nil && now.Name == object.Name {
			err = errors.New("it is in the one that was deleted")
		}
		return err
	})
	figures(t, "the entry is in another object", begin)
	await.Eventually(t, "the condition Ready", func(ctx context.Context) error { return i.isReady(ctx, "web") })
	// The SidecarSet may still be Ready from before. The API server follows the objects with
	// a delay.
	await.Eventually(t, "injection", func(ctx context.Context) error { return i.injects(ctx, "web") })
	figures(t, "Pods are injected again", begin)

	if _, err := i.cluster.Kubectl(t.Context(), "", "delete", "mutatingwebhookconfigurations", "-l", entryplan.LabelConfiguration); err != nil {
		t.Fatal(err)
	}
	var command string
	for _, name := range []string{"web", "db"} {
		await.Eventually(t, "a condition of "+name+" that says what to do", func(ctx context.Context) error {
			condition, err := i.ready(ctx, name)
			if err != nil {
				return err
			}
			if command = regexp.MustCompile(`kubectl apply .*`).FindString(condition.Message); condition.Status != metav1.ConditionFalse || condition.Reason != appsv1beta1.ReasonEntryMissing || command == "" {
				return fmt.Errorf("the condition is %v", condition)
			}
			return nil
		})
		await.Eventually(t, "an event about "+name+" that says what to do", func(ctx context.Context) error {
			text, err := i.cluster.Kubectl(ctx, "", "get", "events", "-n", "default", "--field-selector", "involvedObject.name="+name+",reason="+appsv1beta1.ReasonEntryMissing, "-o", "jsonpath={.items[*].message}")
			if err == nil && !strings.Contains(text, command) {
				err = fmt.Errorf("the events say %q", text)
			}
			return err
		})
	}
	// The command of the message, run in a directory with the file.
	args := strings.Fields(strings.TrimPrefix(command, "kubectl "))
	for k := range args {
		if strings.HasPrefix(args[k], "dist/") {
			args[k] = filepath.Join(deploy.Root(), args[k])
		}
	}
	if _, err := i.cluster.Kubectl(t.Context(), "", args...); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web", "db"} {
		await.Eventually(t, "the condition Ready of "+name, func(ctx context.Context) error { return i.isReady(ctx, name) })
		i.mustInject(t, name)
	}
	i.applySet(t, "late")
	i.mustInject(t, "late")

	// Applying the manifests again, in either way, changes no entry.
	before, err := i.holder(t.Context(), "late")
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"--server-side=false", "--server-side=true"} {
		if _, err := i.cluster.Kubectl(t.Context(), "", "apply", way, "--force-conflicts="+strings.TrimPrefix(way, "--server-side="), "-f", filepath.Join(deploy.Root(), "dist/install.yaml"), "-l", entryplan.LabelConfiguration); err != nil {
			t.Fatal(err)
		}
		after, err := i.holder(t.Context(), "late")
		if err != nil {
			t.Fatal(err)
		}
		if len(after.Webhooks) != len(before.Webhooks) || len(after.OwnerReferences) != 1 {
			t.Errorf("%s: %d entries of %d, owners %v", way, len(after.Webhooks), len(before.Webhooks), after.OwnerReferences)
		}
	}
}

// An attacker who controls a process of the operator has the operator's rights.
func TestTheOperatorCanMakeNoWebhookOfItsOwn(t *testing.T) {
	operator.NeedReplicas(t)
	config := rest.CopyConfig(cluster.Config())
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + deploy.Namespace + ":" + deploy.ServiceAccount,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + deploy.Namespace, "system:authenticated"},
	}
	taken, err := client.New(config, client.Options{Scheme: api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	evil := admissionregistrationv1.MutatingWebhook{
		Name:         "evil.example.com",
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://evil.example.com/")},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{"*"},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}},
		}},
		NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "no-such-namespace"}},
		FailurePolicy:           new(admissionregistrationv1.Ignore),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
	for _, name := range []string{"aaa-evil", "sidecarset-pods-16"} {
		object := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{evil}}
		if err := taken.Create(t.Context(), object); !apierrors.IsForbidden(err) {
			t.Errorf("making %s: %v, want a refusal", name, err)
		}
		validating := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := taken.Create(t.Context(), validating); !apierrors.IsForbidden(err) {
			t.Errorf("making the validating %s: %v, want a refusal", name, err)
		}
	}
	// The leader repairs what the attacker may write, and counts it.
	before := foreign(t)
	for _, i := range []int{3, entryplan.Provisional} {
		name := entryplan.ConfigurationName(i)
		await.Eventually(t, "a write", func(ctx context.Context) error {
			object := &admissionregistrationv1.MutatingWebhookConfiguration{}
			if err := taken.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
				return err
			}
			object.Webhooks = append(object.Webhooks, evil)
			return taken.Update(ctx, object)
		})
		await.Eventually(t, "its end", func(ctx context.Context) error {
			object := &admissionregistrationv1.MutatingWebhookConfiguration{}
			if err := api.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
				return err
			}
			for _, w := range object.Webhooks {
				if w.Name == evil.Name {
					return fmt.Errorf("%s holds it", name)
				}
			}
			return nil
		})
	}
	for _, name := range []string{"mutatingwebhookconfiguration/" + deploy.MutatingConfiguration, "validatingwebhookconfiguration/" + deploy.ValidatingConfiguration} {
		patch := `[{"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["sidecarsets", "secrets"]}, {"op": "replace", "path": "/webhooks/0/rules/0/apiGroups", "value": ["apps.kruise.io", ""]}]`
		if _, err := cluster.Kubectl(t.Context(), "", "patch", name, "--type=json", "-p", patch, "--as="+config.Impersonate.UserName); err != nil {
			// kubectl reads the object first; a process of the operator need not do this.
			if _, err := cluster.Kubectl(t.Context(), "", "patch", name, "--type=json", "-p", patch); err != nil {
				t.Fatal(err)
			}
		}
		await.Eventually(t, "its end", func(ctx context.Context) error {
			about, err := cluster.Kubectl(ctx, "", "get", name, "-o", "jsonpath={.webhooks[*].rules[*].resources[*]}")
			if err == nil && about != "sidecarsets" {
				err = fmt.Errorf("%s is about %s", name, about)
			}
			return err
		})
	}
	await.Eventually(t, "four more on the metric", func(context.Context) error {
		if now := foreign(t); now != before+4 {
			return fmt.Errorf("%d after %d", now, before)
		}
		return nil
	})
}

// foreign is how often a leader has logged that it removed or repaired webhook entries.
func foreign(t *testing.T) (count int) {
	t.Helper()
	for _, replica := range replicas {
		count += strings.Count(replica.Log(), "Removed or repaired webhook entries")
	}
	return count
}
