package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/manifests"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// applyObjects applies the manifests of the entry objects, to create the missing ones.
func applyObjects(t *testing.T, c *stand.Cluster) {
	t.Helper()
	if _, err := c.Kubectl(context.WithoutCancel(t.Context()), "", "apply", "--server-side", "-f", installFile(t), "-l", podwebhook.LabelConfiguration); err != nil {
		t.Fatal(err)
	}
}

// installFile returns the path of an install.yaml, as a release has it.
func installFile(t *testing.T) string {
	t.Helper()
	text, err := manifests.Build(filepath.Join(deploy.Root(), "config/default"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "install.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// holder returns the entry object with the entry for app=<app> in namespace default.
func (i *installation) holder(ctx context.Context, app string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	var list admissionregistrationv1.MutatingWebhookConfigurationList
	if err := i.api.List(ctx, &list, client.MatchingLabelsSelector{Selector: podwebhook.Labelled()}); err != nil {
		return nil, err
	}
	for k := range list.Items {
		for _, w := range list.Items[k].Webhooks {
			if w.ObjectSelector.MatchLabels["app"] == app {
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

// The operator has no right to create shards. If a user deletes one, the SidecarSets whose entries
// it held are not Ready, and the others are. If a user deletes all of them, no SidecarSet is.
// The condition Ready and an Event of each name the command that restores the shards.
func TestDeletedObjectsForWebhooks(t *testing.T) {
	i := installApart(t, deploy.Default)
	i.start(t, 31)
	testkit.AwaitCalled(t, i.api)
	i.applySet(t, "web")
	i.applySet(t, "db")

	object, err := i.holder(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if err := i.api.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "a condition that names the object", func(ctx context.Context) error {
		condition, err := i.ready(ctx, "web")
		if err == nil && (condition.Status != metav1.ConditionFalse || condition.Reason != appsv1beta1.ReasonWebhookConfigurationMissing || !strings.Contains(condition.Message, object.Name)) {
			err = fmt.Errorf("the condition is %v", condition)
		}
		return err
	})
	if err := i.isReady(t.Context(), "db"); err != nil {
		t.Error(err)
	}
	applyObjects(t, i.cluster)
	await.Eventually(t, "the condition Ready", func(ctx context.Context) error { return i.isReady(ctx, "web") })
	i.mustInject(t, "web")

	if _, err := i.cluster.Kubectl(t.Context(), "", "delete", "mutatingwebhookconfigurations", "-l", podwebhook.LabelConfiguration); err != nil {
		t.Fatal(err)
	}
	var command string
	for _, name := range []string{"web", "db"} {
		await.Eventually(t, "a condition of "+name+" that says what to do", func(ctx context.Context) error {
			condition, err := i.ready(ctx, name)
			if err != nil {
				return err
			}
			if command = regexp.MustCompile(`kubectl apply .*`).FindString(condition.Message); condition.Status != metav1.ConditionFalse || condition.Reason != appsv1beta1.ReasonWebhookConfigurationMissing || command == "" {
				return fmt.Errorf("the condition is %v", condition)
			}
			return nil
		})
		await.Eventually(t, "an event about "+name+" that says what to do", func(ctx context.Context) error {
			text, err := i.cluster.Kubectl(ctx, "", "get", "events", "-n", "default", "--field-selector", "involvedObject.name="+name+",reason="+appsv1beta1.ReasonWebhookConfigurationMissing, "-o", "jsonpath={.items[*].message}")
			if err == nil && !strings.Contains(text, command) {
				err = fmt.Errorf("the events say %q", text)
			}
			return err
		})
	}
	// The command of the message, run in a directory with the file.
	args := strings.Fields(strings.TrimPrefix(command, "kubectl "))
	for k := range args {
		if args[k] == "install.yaml" {
			args[k] = installFile(t)
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
		if _, err := i.cluster.Kubectl(t.Context(), "", "apply", way, "--force-conflicts="+strings.TrimPrefix(way, "--server-side="), "-f", installFile(t), "-l", podwebhook.LabelConfiguration); err != nil {
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
	for _, shard := range []int{3, 12} {
		name := podwebhook.ConfigurationName(shard)
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
	await.Eventually(t, "two more in the log", func(context.Context) error {
		if now := foreign(t); now != before+2 {
			return fmt.Errorf("%d after %d", now, before)
		}
		return nil
	})
}

// foreign is how often a leader has logged that it removed Pod webhooks of another program.
func foreign(t *testing.T) (count int) {
	t.Helper()
	for _, replica := range replicas {
		count += strings.Count(replica.Log(), "Removed Pod webhooks that another program had written")
	}
	return count
}
