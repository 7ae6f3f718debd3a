package entries

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	sourcetesting "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/await"
)

// injecting returns a configuration like that of OpenKruise, which calls path for Pods.
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

// watched is a cache with one informer, of configurations.
type watched struct {
	*sourcetesting.FakeControllerSource
}

func newWatched(configurations ...*admissionregistrationv1.MutatingWebhookConfiguration) watched {
	w := watched{sourcetesting.NewFakeControllerSource()}
	for _, c := range configurations {
		w.Add(c)
	}
	return w
}

func (watched) IsWatchListSemanticsUnSupported() bool { return true }

func (w watched) GetInformer(ctx context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	informer := toolscache.NewSharedIndexInformer(w, object, 0, toolscache.Indexers{})
	go informer.RunWithContext(ctx)
	return informer, nil
}

func TestRivalsFollowConfigurations(t *testing.T) {
	t.Parallel()
	server := newWatched(injecting("kruise", "/mutate-pod"), injecting("another", "/elsewhere"))
	rivals := NewRivals(server, "ours", prometheus.NewRegistry())
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
			if got != configuration {
				return fmt.Errorf("it is %q", got)
			}
			return nil
		})
		select {
		case <-changed:
		case <-t.Context().Done():
		}
	}
	await("kruise")
	server.Modify(injecting("another", "/mutate-pod"))
	await("another") // its name sorts first
	server.Delete(injecting("another", "/mutate-pod"))
	await("kruise")
	server.Modify(injecting("kruise", "/off"))
	await("")
	server.Add(injecting("kruise-again", "/mutate-pod"))
	await("kruise-again")
}

// The Rivals tell the entry for Pods that an administrator keeps from the entries that the
// operator keeps.
func TestRivalsKnowTheStaticEntry(t *testing.T) {
	t.Parallel()
	calling := func(name string, labels map[string]string) *admissionregistrationv1.MutatingWebhookConfiguration {
		c := injecting(name, "/pods")
		c.Labels = labels
		c.Webhooks = c.Webhooks[:1]
		c.Webhooks[0].ClientConfig.Service.Namespace = "ours"
		return c
	}
	planned := map[string]string{entry.LabelConfiguration: "true"}
	server := newWatched(calling("sidecarset-pods-1", planned))
	rivals := NewRivals(server, "ours", prometheus.NewRegistry())
	changed := make(chan struct{}, 1)
	rivals.Notify(changed)
	go func() { _ = rivals.Start(t.Context()) }()

	present := func(want bool) {
		t.Helper()
		await.Eventually(t, "the static entry", func(context.Context) error {
			if stands, unknown := rivals.StaticEntry(), rivals.Ready(nil); stands != want || unknown != nil {
				return fmt.Errorf("it is there: %v; %w", stands, unknown)
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
	present(false)
	server.Add(calling("admins", nil))
	present(true)
	told()
	server.Modify(calling("admins", planned))
	present(false)
	told()
	server.Modify(calling("admins", nil))
	present(true)
	told()
	if rivals.HasStaticBarrier() {
		t.Error("it has a barrier that is not there")
	}
	both := calling("admins", nil)
	both.Webhooks = append(both.Webhooks, *both.Webhooks[0].DeepCopy())
	both.Webhooks[1].ClientConfig.Service.Path = new(entry.PathBarrier + entry.StaticBarrier)
	server.Modify(both)
	await.Eventually(t, "the barrier", func(context.Context) error {
		if !rivals.HasStaticBarrier() {
			return errors.New("it is not there")
		}
		return nil
	})
	server.Delete(both)
	present(false)
	told()
}

// Before all configurations have been looked at, there may be another injector.
func TestRivalsAreReadyWhenAllConfigurationsAreKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, list := newWatched(injecting("kruise", "/mutate-pod")), make(chan struct{})
		rivals := NewRivals(lateList{server, list}, "ours", prometheus.NewRegistry())
		changed := make(chan struct{}, 1)
		rivals.Notify(changed)
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer server.Shutdown()
		defer cancel()
		go func() { _ = rivals.Start(ctx) }()
		<-time.After(time.Minute)
		if rivals.Ready(nil) == nil {
			t.Error("ready before")
		}
		close(list)
		<-time.After(time.Second)
		select {
		case <-changed:
		default:
			t.Error("nobody is told")
		}
		if err := rivals.Ready(nil); err != nil || rivals.Injector() == nil {
			t.Errorf("it knows %v: %v", rivals.Injector(), err)
		}
	})
}

// lateList is a watched whose list waits until answered is closed.
type lateList struct {
	watched
	answered <-chan struct{}
}

func (w lateList) List(options metav1.ListOptions) (runtime.Object, error) {
	<-w.answered
	return w.watched.List(options)
}

func (w lateList) GetInformer(ctx context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	informer := toolscache.NewSharedIndexInformer(w, object, 0, toolscache.Indexers{})
	go informer.RunWithContext(ctx)
	return informer, nil
}
