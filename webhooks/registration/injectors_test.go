package registration

import (
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// calling returns a configuration that has new Pods sent to a Service, by each of the paths, as
// webhooks of the operator or as OpenKruise's.
func calling(name, namespace string, paths ...string) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, path := range paths {
		c.Webhooks = append(c.Webhooks, admissionregistrationv1.MutatingWebhook{
			Name:         "mpod.kb.io",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: "webhook", Path: &path}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"pods"}},
			}},
		})
	}
	return c
}

func kruise(name, path string) *admissionregistrationv1.MutatingWebhookConfiguration {
	return calling(name, "kruise-system", path, "/mutate-apps-kruise-io-sidecarset")
}

// withInjectors runs a test with Injectors that have not listed any configuration yet.
func withInjectors(t *testing.T, test func(injectors *Injectors, listed func(), happens func(watch.EventType, *admissionregistrationv1.MutatingWebhookConfiguration))) {
	t.Helper()
	withReplica(t, func(t *testing.T, r *replica) {
		told := make(chan struct{}, 1)
		r.shards = &lateWatch{}
		r.shards.unlisted.Store(true)
		injectors := NewInjectors(r, "ours", prometheus.NewRegistry())
		injectors.Notify(told)
		go func() { _ = injectors.Start(t.Context()) }()
		synctest.Wait()
		listed := func() { r.shards.unlisted.Store(false); <-told }
		test(injectors, listed, func(event watch.EventType, c *admissionregistrationv1.MutatingWebhookConfiguration) {
			t.Helper()
			if r.shards.deliver(event, c); len(told) == 0 {
				t.Errorf("the leader is not told when %s is %s", c.Name, event)
				return
			}
			<-told
		})
	})
}

func TestInjectorsFollowConfigurations(t *testing.T) {
	withInjectors(t, func(injectors *Injectors, listed func(), happens func(watch.EventType, *admissionregistrationv1.MutatingWebhookConfiguration)) {
		if injectors.Ready(nil) == nil {
			t.Error("ready before all configurations are known: there may be another injector")
		}
		listed()
		if err := injectors.Ready(nil); err != nil {
			t.Error(err)
		}
		for _, step := range []struct {
			event watch.EventType
			c     *admissionregistrationv1.MutatingWebhookConfiguration
			want  string
		}{
			{watch.Added, kruise("kruise", "/mutate-pod"), "kruise"},
			{watch.Added, kruise("another", "/mutate-pod"), "another"}, // its name sorts first
			{watch.Deleted, kruise("another", "/mutate-pod"), "kruise"},
			{watch.Modified, kruise("kruise", "/off"), ""},
		} {
			happens(step.event, step.c)
			got := ""
			if injector := injectors.Injector(); injector != nil {
				got = injector.Configuration
			}
			if got != step.want {
				t.Errorf("the injector is %q, want %q", got, step.want)
			}
		}
	})
}

// The Injectors tell the webhook for Pods that an administrator keeps from the webhooks that the
// operator keeps.
func TestInjectorsKnowTheStaticWebhook(t *testing.T) {
	withInjectors(t, func(injectors *Injectors, listed func(), happens func(watch.EventType, *admissionregistrationv1.MutatingWebhookConfiguration)) {
		listed()
		stands := func(event watch.EventType, c *admissionregistrationv1.MutatingWebhookConfiguration, webhook, probe bool) {
			t.Helper()
			if happens(event, c); injectors.StaticWebhook() != webhook || injectors.HasStaticProbe() != probe {
				t.Errorf("it is there: %v, with a probe: %v", injectors.StaticWebhook(), injectors.HasStaticProbe())
			}
		}
		both := calling("admins", "ours", "/pods", podwebhook.PathProbe+podwebhook.StaticProbe)
		stands(watch.Added, calling("admins", "ours", "/pods"), true, false)
		labelled := both.DeepCopy()
		labelled.Labels = map[string]string{podwebhook.LabelConfiguration: "true"}
		stands(watch.Modified, labelled, false, false)
		stands(watch.Modified, both, true, true)
		stands(watch.Deleted, both, false, false)
	})
}
