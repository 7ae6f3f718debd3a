package entries

import (
	"context"
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

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
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
	calling := func(name string, labels map[string]string) *admissionregistrationv1.MutatingWebhookConfiguration {
		c := injecting(name, "/pods")
		c.Labels = labels
		c.Webhooks = c.Webhooks[:1]
		c.Webhooks[0].ClientConfig.Service.Namespace = "ours"
		return c
	}
	planned := map[string]string{entryplan.LabelConfiguration: "true"}
	server := newWatched(calling("sidecarset-pods-1", planned))
	rivals := NewRivals(server, "ours", prometheus.NewRegistry())
	changed := make(chan struct{}, 1)
	rivals.Notify(changed)
	go func() { _ = rivals.Start(t.Context()) }()

	await := func(want bool) {
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
	await(false)
	server.Add(calling("admins", nil))
	await(true)
	told()
	server.Modify(calling("admins", planned))
	await(false)
	told()
	server.Modify(calling("admins", nil))
	await(true)
	told()
	server.Delete(calling("admins", nil))
	await(false)
	told()
}

// Before all configurations have been looked at, there may be another injector: the
// replica answers no Pods, and the leader writes no entry and judges nothing.
func TestNoEntryIsWrittenBeforeOtherInjectorsAreKnown(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		server, list := newWatched(injecting("kruise", "/mutate-pod")), make(chan struct{})
		rivals := NewRivals(lateList{server, list}, "ours", prometheus.NewRegistry())
		rivals.Notify(l.again)
		l.webhooks.options.Rivals = rivals
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer server.Shutdown()
		defer cancel()
		go func() { _ = rivals.Start(ctx) }()
		<-time.After(time.Minute)
		if next, err := l.pass(ctx); next != soon || err != nil || c.writes != 0 || rivals.Ready(nil) == nil {
			t.Errorf("ready: %v; a pass writes %d times, with %v, and comes again after %v", rivals.Ready(nil), c.writes, err, next)
		}
		program, _ := l.sets.Current().Get("log")
		if said := l.webhooks.board.Of("log", program.Set.UID, 1); said != nil {
			t.Errorf("the leader says %+v", said)
		}
		close(list)
		<-time.After(time.Second)
		select {
		case <-l.again:
		default:
			t.Error("the leader is not told")
		}
		if err := rivals.Ready(nil); err != nil {
			t.Errorf("not ready: %v", err)
		}
		if got := l.judged(t); got.Reason != appsv1beta1.ReasonAnotherInjector {
			t.Errorf("when it is known the leader says %+v", got)
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
