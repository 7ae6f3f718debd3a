package entries

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/fixtures"
)

// called notes the same results of calls every callInterval, for the time lasting. It returns
// the readiness of SidecarSet log after that.
func (l *leader) called(t *testing.T, lasting time.Duration, answers map[string]bool, failed ...string) (ready bool, reason, message string) {
	t.Helper()
	for begin := time.Now(); ; <-time.After(callInterval) {
		l.calls.note(answers, failed, time.Now())
		if time.Since(begin) >= lasting {
			break
		}
	}
	got := l.judged(t)
	if !got.Ready && got.Unsure {
		t.Errorf("it is unsure: %+v", got)
	}
	return got.Ready, got.Reason, got.Message
}

// The endpoints of replicas that hang or cannot be reached stay, so only calls show that no
// replica answers.
func TestNoSidecarSetIsReadyWhileCallsAreUnanswered(t *testing.T) {
	answered, silent := map[string]bool{"a": true, "b": true}, map[string]bool{"a": false, "b": false}
	leading(t, func(t *testing.T, l *leader, _ *cluster) {
		l.judged(t)
		if got := l.barrierToAsk(); !strings.HasPrefix(got, "sidecarset-pods-") {
			t.Fatalf("API servers are asked about %q", got)
		}
		steps := []struct {
			what    string
			lasting time.Duration
			answers map[string]bool
			reason  string
		}{
			{"answered", 0, answered, appsv1beta1.ReasonReady},
			{"not answered for a moment", 30 * time.Second, silent, appsv1beta1.ReasonReady},
			{"answered again", 0, answered, appsv1beta1.ReasonReady},
			{"not answered for almost a minute", 50 * time.Second, silent, appsv1beta1.ReasonReady},
			{"not answered for more than a minute", 10 * time.Second, silent, appsv1beta1.ReasonNoReplica},
			{"still not", time.Hour, silent, appsv1beta1.ReasonNoReplica},
			{"answered at last", 0, answered, appsv1beta1.ReasonReady},
			{"one API server is not", 2 * time.Minute, map[string]bool{"a": true, "b": false}, appsv1beta1.ReasonNotInForce},
			{"it is not asked any more", 0, map[string]bool{"a": true}, appsv1beta1.ReasonReady},
		}
		for _, step := range steps {
			if _, reason, message := l.called(t, step.lasting, step.answers); reason != step.reason {
				t.Errorf("%s: it says %s: %s", step.what, reason, message)
			}
		}
		l.called(t, 2*time.Minute, map[string]bool{"a": true, "b": false})
		_, _, message := l.called(t, time.Minute, map[string]bool{"a": true}, "b", "c") // b and c cannot be asked
		if !strings.Contains(message, "API server b ") {
			t.Errorf("which one is not answered is not said: %s", message)
		}
	})
}

// If an API server accepts requests and does not answer, the leader still changes Ready.
func TestTheLeaderJudgesWhileRequestsHang(t *testing.T) {
	write := func(l *leader, _ *cluster) {
		other := fixtures.LogSet(1)
		other.Name, other.Spec.Selector.MatchLabels = "other", map[string]string{"app": "db"}
		l.sets.(*fixtures.Snapshots).Swap(fixtures.LogSet(1), other)
	}
	tests := map[string]struct {
		hangs func(what any) bool
		begin func(*leader, *cluster)
	}{
		"writes": {func(what any) bool { _, ok := what.(*client.UpdateOptions); return ok }, write},
		"the read after a conflict": {
			func(what any) bool { _, ok := what.(*admissionregistrationv1.MutatingWebhookConfiguration); return ok },
			func(l *leader, c *cluster) {
				write(l, c)
				for name, object := range c.configurations {
					object = object.DeepCopy()
					object.ResourceVersion += "0"
					c.configurations[name] = object
				}
			},
		},
		"dry runs of what is refused": {
			func(what any) bool { o, ok := what.(*client.UpdateOptions); return ok && len(o.DryRun) > 0 },
			func(l *leader, c *cluster) {
				write(l, c)
				c.err = apierrors.NewInvalid(schema.GroupKind{Kind: "MutatingWebhookConfiguration"}, "sidecarset-pods-0", nil)
			},
		},
		"the read of the CustomResourceDefinition": {
			func(what any) bool {
				o, ok := what.(*metav1.PartialObjectMetadata)
				return ok && o.Kind == "CustomResourceDefinition"
			},
			func(*leader, *cluster) {},
		},
		"the list of endpoints": {func(what any) bool { _, ok := what.(*discoveryv1.EndpointSliceList); return ok }, func(*leader, *cluster) {}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			leading(t, func(t *testing.T, l *leader, c *cluster) {
				if got := l.judged(t); !got.Ready {
					t.Fatalf("before, it says %+v", got)
				}
				tc.begin(l, c)
				asked := false
				c.hangs = func(what any) bool { hangs := tc.hangs(what); asked = asked || hangs; return hangs }
				if _, reason, message := l.called(t, 2*time.Minute, map[string]bool{"a": false}); reason != appsv1beta1.ReasonNoReplica || !asked {
					t.Errorf("it says %s: %s", reason, message)
				}
			})
		})
	}
}

// A leader that was suspended has asked no API server meanwhile, so the time does not count as
// silence.
func TestTheLeaderDoesNotCountItsOwnSuspensionAsSilence(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, _ *cluster) {
		l.judged(t)
		l.calls.note(map[string]bool{"a": false}, nil, time.Now())
		<-time.After(time.Hour)
		if _, reason, message := l.called(t, 0, map[string]bool{"a": false}); reason != appsv1beta1.ReasonReady {
			t.Errorf("it says %s: %s", reason, message)
		}
	})
}

// When the last SidecarSet is deleted, its object has no barrier any more. An unanswered call
// about it does not count.
func TestUnansweredCallsAboutADeletedObjectDoNotCount(t *testing.T) {
	tests := map[string]func(call int) string{
		"it goes while it is asked about": func(call int) string { return [...]string{"sidecarset-pods-3", ""}[call%2] },
		"it goes after a while":           func(call int) string { return [...]string{"sidecarset-pods-3", ""}[min(call/100, 1)] },
	}
	for name, about := range tests {
		t.Run(name, func(t *testing.T) {
			inCluster(t, []string{"10.0.0.1:6443"}, func(t *testing.T, b *barrier, servers *apiServers) {
				var c callWatch
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				call := -1
				go c.run(ctx, b, func() string { call++; return about(call) }, func() {})
				<-time.After(time.Hour)
				synctest.Wait()
				if asked := servers.asked["10.0.0.1:6443"].Load(); asked == 0 {
					t.Error("nothing was asked")
				}
				if got := c.problem("ours", time.Now()); got != nil {
					t.Errorf("it says %+v", got)
				}
			})
		})
	}
}

// In the hardened layout the leader serves no webhooks. Its certificate may be broken while
// the certificates of the replicas are not.
func TestACallThatWasAnsweredOutranksTheLeadersCertificate(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, _ *cluster) {
		l.webhooks.options.Certificate = func(context.Context) error { return errors.New("unknown authority") }
		if got := l.judged(t); got.Reason != appsv1beta1.ReasonCertificateNotTrusted {
			t.Errorf("before a call was answered it says %+v", got)
		}
		if ready, reason, message := l.called(t, 0, map[string]bool{"a": true}); !ready {
			t.Errorf("after one it says %s: %s", reason, message)
		}
		if _, reason, _ := l.called(t, 2*time.Minute, map[string]bool{"a": false}); reason != appsv1beta1.ReasonCertificateNotTrusted {
			t.Errorf("when none is answered it says %s", reason)
		}
		l.webhooks.options.ServesWebhooks = true
		if _, reason, _ := l.called(t, 0, map[string]bool{"a": true}); reason != appsv1beta1.ReasonCertificateNotTrusted {
			t.Errorf("where the certificate is the one that is served it says %s", reason)
		}
	})
}

func TestInStaticModeTheAdministratorsBarrierIsAskedFor(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, _ *cluster) {
		l.webhooks.options.Static = true
		entry := func(name, path string, resource string) admissionregistrationv1.MutatingWebhook {
			return admissionregistrationv1.MutatingWebhook{
				Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "ours", Path: &path}},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
				}},
			}
		}
		configuration := &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{entry("inject.pods.sidecarset.io", "/pods", "pods")}}
		configuration.Name = "sidecarset-mutating-webhook"
		rivals := l.webhooks.options.Rivals
		for _, step := range []struct{ path, want string }{
			{"/elsewhere", ""}, // as in earlier manifests: there is no barrier to ask by
			{entryplan.BarrierPath(entryplan.StaticBarrier, 1), entryplan.StaticBarrier},
		} {
			configuration = configuration.DeepCopy()
			configuration.Webhooks = append(configuration.Webhooks[:1:1], entry("static.barrier.sidecarset.io", step.path, "configmaps"))
			rivals.note(t.Context(), configuration.Name, configuration)
			l.judged(t)
			<-time.After(trusted)
			if got := l.judged(t); !got.Ready || l.barrierToAsk() != step.want {
				t.Errorf("with %s, API servers are asked about %q, and it says %+v", step.path, l.barrierToAsk(), got)
			}
		}
		if _, reason, message := l.called(t, 2*time.Minute, map[string]bool{"a": false}); reason != appsv1beta1.ReasonNoReplica {
			t.Errorf("when none is answered it says %s: %s", reason, message)
		}
	})
}

func TestEveryAPIServerIsAskedWhetherCallsAreAnswered(t *testing.T) {
	inCluster(t, []string{"10.0.0.1:6443", "10.0.0.2:6443", "10.0.0.3:6443"}, func(t *testing.T, b *barrier, servers *apiServers) {
		servers.serials["10.0.0.1:6443"].Store(8)
		servers.refuses.Store("10.0.0.3:6443", true)
		got, failed, err := b.answers(t.Context(), "sidecarset-pods-3")
		if diff := cmp.Diff(map[string]bool{"10.0.0.1:6443": true, "10.0.0.2:6443": false}, got); err != nil || diff != "" || !slices.Equal(failed, []string{"10.0.0.3:6443"}) {
			t.Errorf("answers (-want +got):\n%s%v; failed: %v", diff, err, failed)
		}
	})
	inCluster(t, []string{"10.0.0.1:6443"}, func(t *testing.T, b *barrier, servers *apiServers) {
		servers.refuses.Store("10.0.0.1:6443", true)
		servers.serials[configuredHost].Store(1)
		if got, failed, err := b.answers(t.Context(), "sidecarset-pods-3"); err != nil || len(got) != 1 || len(failed) != 1 || !got["https://"+configuredHost] {
			t.Errorf("of the configured host: %v, %v", got, err)
		}
	})
	inCluster(t, []string{"10.0.0.1:6443"}, func(t *testing.T, b *barrier, servers *apiServers) {
		servers.refuses.Store("10.0.0.1:6443", true)
		servers.refuses.Store(configuredHost, true)
		if got, _, err := b.answers(t.Context(), "sidecarset-pods-3"); err == nil {
			t.Errorf("when none can be reached it says %v", got)
		}
	})
}

func TestTheLeaderIsToldWhenCallsAreAnsweredAgain(t *testing.T) {
	inCluster(t, []string{"10.0.0.1:6443"}, func(t *testing.T, b *barrier, servers *apiServers) {
		var c callWatch
		changes := 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		var about atomic.Value
		about.Store("")
		go func() {
			c.run(ctx, b, func() string { return about.Load().(string) }, func() { changes++ })
			close(done)
		}()
		<-time.After(time.Hour)
		if asked := servers.asked["10.0.0.1:6443"].Load(); asked != 0 {
			t.Errorf("asked %d times about nothing", asked)
		}
		problem := func(what string, want bool) {
			t.Helper()
			synctest.Wait()
			if got := c.problem("ours", time.Now()); (got != nil) != want {
				t.Errorf("%s it says %v", what, got)
			}
		}
		about.Store("sidecarset-pods-3")
		<-time.After(2 * time.Minute)
		problem("when nothing has answered for two minutes", true)
		before := changes
		servers.serials["10.0.0.1:6443"].Store(9)
		<-time.After(callInterval)
		problem("at the first answer", false)
		if changes != before+1 {
			t.Errorf("the leader was told %d times", changes-before)
		}
		cancel()
		<-done
	})
}
