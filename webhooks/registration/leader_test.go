package registration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/podwebhook"
)

func TestTheLeaderSetsThePolicyWhenItSeesTheSidecarSetStored(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		set := fixtures.LogSet(1)
		set.UID = "another"
		c.have()
		if err := c.review(t, l, set); err != nil {
			t.Fatal(err)
		}
		_, s := c.webhook(t, set)
		number := s.RequiredSerial
		l.judged(t)
		if w, _ := c.webhook(t, set); *w.FailurePolicy != admissionregistrationv1.Ignore {
			t.Error("it is not stored yet, and failures are not ignored")
		}
		c.have(set)
		if got := l.judged(t); !got.Ready {
			t.Errorf("it says %+v", got)
		}
		w, s := c.webhook(t, set)
		if *w.FailurePolicy != admissionregistrationv1.Fail || *w.TimeoutSeconds != 5 || s.RequiredSerial != number {
			t.Errorf("the webhook is %+v, with number %d after %d", w, s.RequiredSerial, number)
		}
		// Other annotations begin no new generation, so there is no review.
		set = set.DeepCopy()
		set.Annotations[appsv1beta1.AnnotationFailurePolicy] = "Ignore"
		c.have(set)
		if got := l.judged(t); !got.Ready {
			t.Errorf("it says %+v", got)
		}
		if w, s := c.webhook(t, set); *w.FailurePolicy != admissionregistrationv1.Ignore || s.RequiredSerial != number {
			t.Errorf("the webhook is %+v", w)
		}
		// A DELETE with a finalizer raises the generation without a review.
		set = set.DeepCopy()
		set.Generation = 2
		c.have(set)
		if got := l.judged(t); !got.Ready || !slices.Equal(c.dependencies(t, set), []int64{2}) {
			t.Errorf("it says %+v, with the dependencies %v", got, c.dependencies(t, set))
		}
		before := c.writes
		if l.judged(t); c.writes != before {
			t.Errorf("%d writes of what is right", c.writes-before)
		}
	})
}

// The UID of the operator's Namespace says in which shard a webhook is. If it has changed, and after versions
// that did not use it, webhooks move: one goes when every API server uses the other one.
func TestWebhooksMoveWithTheNamespacesUID(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		set := fixtures.LogSet(1)
		e := webhookOf(t, set)
		before := types.UID("before")
		for i := 0; e.Shard(before) == e.Shard(ours); i++ {
			before = types.UID(fmt.Sprint("before-", i))
		}
		has := func(uid types.UID) bool { return c.shards.At(e.Shard(uid)).HasDependency(e.Name, e.Dependencies[0]) }
		c.namespace = before
		if said := l.judged(t); !said.Ready || !has(before) || has(ours) {
			t.Fatalf("it says %+v", said)
		}
		c.anew = ours // the watch is behind: the next leader may have moved the webhooks
		writes := c.writes
		c.apply(e.Shard(before))
		if said := l.judged(t); said.Ready || c.writes != writes {
			t.Errorf("a leader that knows the former Namespace writes %d times, and says %+v", c.writes-writes, said)
		}
		c.anew = ""
		l.judged(t)
		c.namespace = ours
		c.lags = true
		if said := l.judged(t); said.Ready || !has(before) || !has(ours) {
			t.Errorf("no API server uses the new webhook: it says %+v; %v %v", said, has(before), has(ours))
		}
		c.api.uses(c.shards.At(e.Shard(ours)))
		c.lags = false
		l.judged(t)
		if said := l.judged(t); !said.Ready || has(before) || !has(ours) {
			t.Errorf("every API server uses the new webhook: it says %+v; %v %v", said, has(before), has(ours))
		}
	})
}

// The decision itself is tested in internal/podwebhook and in test/protocol.
func TestDependenciesGoAfterARead(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		set := reviewed("x")
		c.have()
		_ = c.review(t, l, set)
		for _, step := range []struct {
			what         string
			passes       time.Duration
			dependencies int
		}{
			{"just reviewed", 0, 1}, {"not stored yet", time.Second, 1}, {"never stored", time.Second, 0},
		} {
			<-time.After(step.passes)
			if l.judged(t); len(c.dependencies(t, set)) != step.dependencies {
				t.Errorf("%s: the dependencies are %v", step.what, c.dependencies(t, set))
			}
		}
		c.have(set)
		l.judged(t)
		c.have()
		c.reading = func(context.Context, string) error { return errors.New("etcd is away") }
		if l.judged(t); len(c.dependencies(t, set)) != 1 {
			t.Error("it is deleted, and could not be read: the dependency is gone")
		}
		c.reading = nil
		if l.judged(t); len(c.dependencies(t, set)) != 0 {
			t.Error("it is deleted, and read: the dependency stays")
		}
	})
}

// What a read showed is old when a review has written since.
func TestALeaderRemovesNothingThatAReviewHasWrittenMeanwhile(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		set := reviewed("x")
		c.have()
		if err := c.review(t, l, set); err != nil {
			t.Fatal(err)
		}
		l.judged(t)
		<-time.After(podwebhook.StoredSoon)
		c.reading = func(context.Context, string) error {
			c.reading = nil
			if err := c.review(t, l, set); err != nil {
				t.Error(err)
			}
			return nil
		}
		if l.judged(t); len(c.dependencies(t, set)) != 1 {
			t.Error("the dependency is gone")
		}
	})
}

// An API server may go back to an older copy of a shard after it was known to use a newer one. It
// stays there until the shard is written.
func TestAShardIsWrittenAgainWhenAnAPIServerWentBack(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		set := fixtures.LogSet(1)
		if err := c.review(t, l, set); err != nil {
			t.Fatal(err)
		}
		_, older := c.webhook(t, set)
		end := l.begin(t)
		ready := func() bool { said := l.board.Of("log", set.UID, 1); return said != nil && said.Ready }
		<-time.After(time.Second)
		if !ready() {
			t.Fatal("it is not ready to begin with")
		}
		_, newest := c.webhook(t, set)
		if newest.Serial == older.Serial {
			t.Fatal("the leader has written nothing")
		}
		c.api.uses(older, addressB)
		<-time.After(lookInterval + 2*time.Second)
		if _, now := c.webhook(t, set); now.Serial == newest.Serial || now.RequiredSerial != newest.RequiredSerial || !ready() {
			t.Errorf("it is at serial %d after %d, with number %d after %d, ready: %t", now.Serial, newest.Serial, now.RequiredSerial, newest.RequiredSerial, ready())
		}
		// An API server that uses nothing new is told of, and the shard is written more and more seldom.
		lag := func(lags bool) (writes int) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lags = lags
			return c.writes
		}
		before := lag(true)
		c.api.uses(older, addressB)
		<-time.After(10 * time.Minute)
		said, writes := l.board.Of("log", set.UID, 1), lag(false)-before
		if writes < 10 || writes > 20 || said.Ready || said.Reason != appsv1beta1.ReasonPending || !strings.Contains(said.Message, newest.Object.Name) || !strings.Contains(said.Message, addressB) {
			t.Errorf("after %d writes it says %+v", writes, said)
		}
		_, now := c.webhook(t, set)
		c.api.uses(now)
		<-time.After(lookInterval + time.Second)
		if !ready() {
			t.Error("every API server uses it, and it is not ready")
		}
		end()
	})
}

// While no replica answers, and calls fail at once, the leader asks less and less often.
func TestTheLeaderAsksSeldomWhileNoCallIsAnswered(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		var sets []*appsv1beta1.SidecarSet
		used := map[int]bool{}
		for i := 0; len(used) < podwebhook.Shards; i++ {
			set := reviewed(fmt.Sprint("set-", i))
			if e := webhookOf(t, set); !used[e.Shard(ours)] {
				used[e.Shard(ours)] = true
				sets = append(sets, set)
			}
		}
		c.have(sets...)
		c.api.set(func(s *testAPIServer) { s.unanswered = -1 })
		end := l.begin(t)
		asked := func() int { return c.api.count(addressA) + c.api.count(addressB) }
		<-time.After(time.Minute)
		first := asked()
		<-time.After(10 * time.Minute)
		// Three questions each ten seconds. In the first minute, a dozen more while the pauses are short.
		if later := asked() - first; first > 300 || later > 2*3*61 {
			t.Errorf("API servers are asked %d times in the first minute, and %d times in the next ten", first, later)
		}
		c.api.set(func(s *testAPIServer) { s.unanswered = 0 })
		<-time.After(lookInterval + time.Second)
		for _, set := range sets {
			if said := l.board.Of(set.Name, set.UID, set.Generation); said == nil || !said.Ready {
				t.Errorf("calls are answered again, and of %s it says %+v", set.Name, said)
			}
		}
		end()
	})
}

// A quota or a policy that refuses the question says nothing about API servers.
func TestARefusedQuestionIsNamedAndNothingIsWrittenAgain(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.api.set(func(s *testAPIServer) { s.forbids = "exceeded quota: tight" })
		end := l.begin(t)
		<-time.After(time.Second)
		c.mu.Lock()
		before := c.writes
		c.mu.Unlock()
		<-time.After(10 * time.Minute)
		set := fixtures.LogSet(1)
		said := l.board.Of("log", set.UID, 1)
		if said == nil || said.Ready || !said.Unsure || said.Reason != appsv1beta1.ReasonWebhookUnverified || !strings.Contains(said.Message, "exceeded quota: tight") || strings.Contains(said.Message, "Restart") {
			t.Errorf("it says %+v", said)
		}
		c.mu.Lock()
		writes := c.writes - before
		c.mu.Unlock()
		if writes > 0 || before == 0 {
			t.Errorf("shards were written %d times, and then %d times again", before, writes)
		}
		c.api.set(func(s *testAPIServer) { s.forbids = "" })
		<-time.After(lookInterval + time.Second)
		if said := l.board.Of("log", set.UID, 1); !said.Ready {
			t.Errorf("the quota is gone, and it says %+v", said)
		}
		end()
	})
}

func TestTheLeaderLeavesANewerFormatAlone(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.judged(t)
		_, s := c.webhook(t, fixtures.LogSet(1))
		newer := c.configurations[s.Object.Name].DeepCopy()
		newer.Annotations[podwebhook.AnnotationFormat] = "99"
		c.change(newer)
		before := c.writes
		if got := l.judged(t); got.Ready || c.writes != before || !strings.Contains(got.Message, "kubectl annotate mutatingwebhookconfigurations "+s.Object.Name) {
			t.Errorf("a newer version has written it, and after %d writes it says %+v", c.writes-before, got)
		}
	})
}

// If the webhook were added, API servers would refuse Pods, because no replica could answer.
func TestNoWebhookIsAddedWhileThereIsNoReplica(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.replicas = 0
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonNoReplica || c.writes != 0 {
			t.Errorf("it says %+v after %d writes", got, c.writes)
		}
		c.replicas = 1
		if got := l.judged(t); !got.Ready {
			t.Errorf("when there is one it says %+v", got)
		}
		c.replicas = 0
		<-time.After(replicasKept)
		if got := l.judged(t); got.Reason != appsv1beta1.ReasonNoReplica || len(c.dependencies(t, fixtures.LogSet(1))) != 1 {
			t.Errorf("when it has gone it says %+v", got)
		}
		c.slicesErr = errors.New("forbidden") // under the manifests of an older version
		if got := l.judged(t); !got.Ready {
			t.Errorf("where it cannot be told it says %+v", got)
		}
	})
}

// The readiness of every SidecarSet in the shard has the API server's answer.
func TestAWriteThatIsRefusedIsSaid(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.writing = func(written *admissionregistrationv1.MutatingWebhookConfiguration) error {
			return apierrors.NewInvalid(admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration").GroupKind(), written.Name,
				field.ErrorList{field.Invalid(field.NewPath("caBundle"), "", "unable to load root certificates")})
		}
		if got := l.judged(t); got.Ready || got.Reason != appsv1beta1.ReasonPending || !strings.Contains(got.Message, "unable to load root certificates") {
			t.Errorf("it says %+v", got)
		}
		c.writing = nil
		if got := l.judged(t); !got.Ready {
			t.Errorf("nothing is wrong any more, and the leader says %+v", got)
		}
	})
}

// A change of the CA bundle raises the serial of every shard, also of one without webhooks, so that the
// probe proves it; it costs no API server a handshake for Pods that the bundle does not cause.
func TestAChangedBundleIsPropagated(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		bundle, stored := "a CA", "a CA"
		l.options.Bundle = func() []byte { return []byte(bundle) }
		l.options.FreshBundle = func(context.Context) ([]byte, error) { return []byte(stored), nil }
		l.judged(t)
		before := c.shards.All()
		holds := func(want string, again bool) {
			t.Helper()
			for i, s := range c.shards.All() {
				for _, w := range s.Object.Webhooks {
					if string(w.ClientConfig.CABundle) != want {
						t.Fatalf("%s has the bundle %q, want %q", w.Name, w.ClientConfig.CABundle, want)
					}
				}
				if (s.Serial > before[i].Serial) != again || s.RequiredSerial != before[i].RequiredSerial {
					t.Errorf("%s is at serial %d after %d, with number %d after %d", s.Object.Name, s.Serial, before[i].Serial, s.RequiredSerial, before[i].RequiredSerial)
				}
			}
		}
		bundle = "what the leader remembers"
		l.judged(t)
		holds("a CA", false)
		bundle, stored = "two CAs", "two CAs"
		if got := l.judged(t); !got.Ready {
			t.Errorf("it says %+v", got)
		}
		holds("two CAs", true)
		set := fixtures.LogSet(1)
		if _, s := c.webhook(t, set); !l.prober.passed(s.Index, s.Serial) {
			t.Error("the new bundle is not proven")
		}
		if err := c.review(t, l, reviewed("new")); err != nil {
			t.Fatal(err)
		}
		if w, _ := c.webhook(t, reviewed("new")); string(w.ClientConfig.CABundle) != "two CAs" {
			t.Errorf("a first webhook has the bundle %q", w.ClientConfig.CABundle)
		}
	})
}
