package entries

import (
	"context"
	"errors"
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/test/await"
)

// injecting is a configuration as the reference's, that Pods are sent to path by.
func injecting(name, path string) *admissionregistrationv1.MutatingWebhookConfiguration {
	to := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "kruise-system", Name: "kruise", Path: &path}}
	}
	rule := func(group, resource string) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
		}}
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			{Name: "mpod.kb.io", ClientConfig: to(path), Rules: rule("", "pods")},
			{Name: "msidecarset.kb.io", ClientConfig: to("/mutate-apps-kruise-io-sidecarset"), Rules: rule("apps.kruise.io", "sidecarsets")},
		},
	}
}

// configurations are listed once and watched then.
type configurations struct {
	cache.ListWatch
	events *watch.FakeWatcher
}

func newConfigurations(listed ...admissionregistrationv1.MutatingWebhookConfiguration) *configurations {
	c := &configurations{events: watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 10})}
	c.ListWithContextFunc = func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		return &admissionregistrationv1.MutatingWebhookConfigurationList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: listed}, nil
	}
	c.WatchFuncWithContext = func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
		if o.SendInitialEvents != nil {
			return nil, errors.New("this server only lists")
		}
		return c.events, nil
	}
	return c
}

func TestRivalsFollowConfigurations(t *testing.T) {
	server := newConfigurations(*injecting("kruise", "/mutate-pod"), *injecting("another", "/elsewhere"))
	rivals := newRivals(server, "ours")
	changed := make(chan struct{}, 1)
	rivals.Notify(changed)
	go func() { _ = rivals.Start(t.Context()) }()

	await := func(configuration string) {
		t.Helper()
		await.Eventually(t, "the injector "+configuration, func(context.Context) error {
			got := ""
			if injector := rivals.Injector(); injector != nil {
				got = injector.Configuration
			}
			if got != configuration || (rivals.Problem() == "") != (configuration == "") {
				return fmt.Errorf("it is %q, the problem %q", got, rivals.Problem())
			}
			return nil
		})
		select {
		case <-changed:
		case <-t.Context().Done():
		}
	}
	await("kruise")
	server.events.Modify(injecting("another", "/mutate-pod"))
	await("another") // the first by name
	server.events.Delete(injecting("another", "/mutate-pod"))
	await("kruise")
	server.events.Modify(injecting("kruise", "/off"))
	await("")
	server.events.Add(injecting("kruise-again", "/mutate-pod"))
	await("kruise-again")
}

// The entry for Pods that an administrator keeps is not one of those that the
// operator does.
func TestRivalsKnowTheStaticEntry(t *testing.T) {
	calling := func(name string, labels map[string]string) *admissionregistrationv1.MutatingWebhookConfiguration {
		c := injecting(name, "/pods")
		c.Labels = labels
		c.Webhooks = c.Webhooks[:1]
		c.Webhooks[0].ClientConfig.Service.Namespace = "ours"
		return c
	}
	planned := map[string]string{entryplan.LabelConfiguration: "true"}
	server := newConfigurations(*calling("sidecarset-pods-1", planned))
	rivals := newRivals(server, "ours")
	changed := make(chan struct{}, 1)
	rivals.Notify(changed)
	if _, known := rivals.StaticEntry(); known {
		t.Error("it is known before anything was read")
	}
	go func() { _ = rivals.Start(t.Context()) }()

	await := func(want bool) {
		t.Helper()
		await.Eventually(t, "the static entry", func(context.Context) error {
			if stands, known := rivals.StaticEntry(); stands != want || !known {
				return fmt.Errorf("it stands: %v, known: %v", stands, known)
			}
			return nil
		})
	}
	told := func() {
		t.Helper()
		select {
		case <-changed:
		case <-t.Context().Done():
		}
	}
	await(false)
	server.events.Add(calling("admins", nil))
	await(true)
	told()
	server.events.Modify(calling("admins", planned))
	await(false)
	told()
	server.events.Modify(calling("admins", nil))
	await(true)
	told()
	server.events.Delete(calling("admins", nil))
	await(false)
	told()
}
