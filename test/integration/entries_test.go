package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// onlyHere is a spec that selects app=<app> in the test's namespace.
func onlyHere(app string) string {
	return fmt.Sprintf("selector: {matchLabels: {app: %s}}\n%scontainers: [{name: side-%s, image: \"example.com/side:v1\"}]\n", app, inNamespace, app)
}

// podEntries returns the stored entries for Pods of a namespace, by the app label that they
// select.
func podEntries(ctx context.Context, c client.Client, namespace string) (map[string]admissionregistrationv1.MutatingWebhook, error) {
	var list admissionregistrationv1.MutatingWebhookConfigurationList
	if err := c.List(ctx, &list, client.MatchingLabelsSelector{Selector: entry.Labelled()}); err != nil {
		return nil, err
	}
	found := map[string]admissionregistrationv1.MutatingWebhook{}
	for i := range list.Items {
		for _, w := range list.Items[i].Webhooks {
			if w.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] != namespace || w.Rules[0].Resources[0] != "pods" {
				continue
			}
			app := w.ObjectSelector.MatchLabels["app"]
			if _, twice := found[app]; twice {
				return nil, fmt.Errorf("there are two entries for app=%s", app)
			}
			found[app] = w
		}
	}
	return found, nil
}

func mustEntries(t *testing.T, namespace string) map[string]admissionregistrationv1.MutatingWebhook {
	t.Helper()
	found, err := podEntries(t.Context(), api, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A SidecarSet is admitted only when every API server calls the operator for the Pods that it
// selects. So a user need not wait before creating a Pod.
func TestAPodDirectlyBehindItsSidecarSetIsInjected(t *testing.T) {
	namespace, pods := testkit.Namespace(t, api, nil), newBehind(t)
	for i := range 10 {
		app := fmt.Sprintf("behind-%d", i)
		pods.create(t, newSidecarSet(t, namespace, onlyHere(app)), pod(namespace, app, "app="+app), "side-"+app, "app")
	}
	pods.check(t)
}

// figures prints how long something took, in one line that is easy to find. It depends on
// the machine, so no test asserts it.
func figures(t *testing.T, what string, begin time.Time) {
	t.Helper()
	t.Logf("FIGURES %s: %s after %s", t.Name(), what, time.Since(begin).Round(time.Millisecond))
}

// If another client removes or edits an entry, the leader restores it.
func TestEntriesAreRestored(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, onlyHere("web"))
	before := mustEntries(t, namespace)["web"]
	holder := func(ctx context.Context) (*admissionregistrationv1.MutatingWebhookConfiguration, int, error) {
		var list admissionregistrationv1.MutatingWebhookConfigurationList
		err := api.List(ctx, &list, client.MatchingLabelsSelector{Selector: entry.Labelled()})
		for i := range list.Items {
			for k, w := range list.Items[i].Webhooks {
				if w.Name == before.Name {
					return &list.Items[i], k, nil
				}
			}
		}
		return nil, 0, errors.Join(err, errors.New("no object holds the entry"))
	}
	restored := func(ctx context.Context) error {
		now, at, err := holder(ctx)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(before.FailurePolicy, now.Webhooks[at].FailurePolicy); diff != "" {
			return errors.New(diff)
		}
		if diff := cmp.Diff(before.Rules, now.Webhooks[at].Rules); diff != "" {
			return errors.New(diff)
		}
		return nil
	}
	for name, damage := range map[string]func(c *admissionregistrationv1.MutatingWebhookConfiguration, at int) error{
		"for Secrets as well": func(c *admissionregistrationv1.MutatingWebhookConfiguration, at int) error {
			c.Webhooks[at].Rules[0].Resources = []string{"pods", "secrets"}
			return api.Update(t.Context(), c)
		},
		"edited": func(c *admissionregistrationv1.MutatingWebhookConfiguration, at int) error {
			c.Webhooks[at].FailurePolicy = new(admissionregistrationv1.Ignore)
			return api.Update(t.Context(), c)
		},
		"emptied": func(c *admissionregistrationv1.MutatingWebhookConfiguration, _ int) error {
			c.Webhooks = nil
			return api.Update(t.Context(), c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, at, err := holder(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			for err = damage(c, at); apierrors.IsConflict(err); err = damage(c, at) {
				if c, at, err = holder(t.Context()); err != nil {
					t.Fatal(err)
				}
				begin = time.Now()
			}
			if err != nil {
				t.Fatal(err)
			}
			await.Eventually(t, "the entry", restored)
			figures(t, "the entry is restored", begin)
		})
	}
	testkit.AwaitReady(t, api, set.GetName())
	create(t, pod(namespace, "after", "app=web"))
}

func TestTheEntryGoesAfterItsLastSidecarSet(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	first, second := createSidecarSet(t, namespace, onlyHere("web")), createSidecarSet(t, namespace, strings.Replace(onlyHere("web"), "side-web", "side-2", 1))
	deleteSidecarSet(t, first)
	create(t, pod(namespace, "between", "app=web"))
	if got := len(mustEntries(t, namespace)); got != 1 {
		t.Errorf("%d entries while one of two SidecarSets is left", got)
	}
	deleteSidecarSet(t, second)
	await.Eventually(t, "no entry", func(ctx context.Context) error {
		found, err := podEntries(ctx, api, namespace)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("entries are %v", found)
		}
		return err
	})
}

func TestAnnotationsSetAnEntrysFailurePolicyAndTimeout(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := newSidecarSet(t, namespace, onlyHere("web"))
	set.SetAnnotations(map[string]string{appsv1beta1.AnnotationFailurePolicy: "Ignore", appsv1beta1.AnnotationTimeoutSeconds: "7"})
	create(t, set)
	t.Cleanup(func() { deleteSidecarSet(t, set) })
	testkit.AwaitReady(t, api, set.GetName())
	if w := mustEntries(t, namespace)["web"]; *w.FailurePolicy != admissionregistrationv1.Ignore || *w.TimeoutSeconds != 7 {
		t.Errorf("policy %s, %d s", *w.FailurePolicy, *w.TimeoutSeconds)
	}
	for key, value := range map[string]string{appsv1beta1.AnnotationFailurePolicy: "Sometimes", appsv1beta1.AnnotationTimeoutSeconds: "31"} {
		wrong := newSidecarSet(t, namespace, onlyHere("wrong"))
		wrong.SetAnnotations(map[string]string{key: value})
		if err := api.Create(t.Context(), wrong); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s=%s: %v, want a refusal that names the annotation", key, value, err)
		}
	}
}

// A dry run writes no entry.
func TestADryRunWritesNoEntry(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := newSidecarSet(t, namespace, onlyHere("dry"))
	if err := api.Create(t.Context(), set, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if got := mustEntries(t, namespace); len(got) != 0 {
		t.Errorf("entries are %v", got)
	}
}

// If an administrator keeps one entry for all Pods, the operator writes no entry, and
// SidecarSets become Ready all the same.
func TestStaticModeWritesNoEntries(t *testing.T) {
	i := installApart(t, deploy.Static)
	i.start(t, 20)
	defer expectNoRefusal(t, i) // the layout takes rights away
	testkit.AwaitCalled(t, i.api)
	set := newSidecarSet(t, "default", onlyHere("web"))
	set.SetGenerateName("")
	set.SetName("web")
	if err := i.api.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	if _, err := i.cluster.Kubectl(t.Context(), "", "wait", "--for=condition=Ready", "sidecarset/web", "--timeout="+await.Patience.String()); err != nil {
		t.Fatal(err)
	}
	p := pod("default", "p", "app=web")
	if err := i.api.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"side-web", "app"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	found, err := podEntries(t.Context(), i.api, "default")
	if err != nil || len(found) != 0 {
		t.Errorf("entries are %v, %v", found, err)
	}
}
