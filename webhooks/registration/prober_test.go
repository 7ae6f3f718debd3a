package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/podwebhook"
)

// versionsOf returns successive versions of the shard that the selectors of a SidecarSet for Pods
// with the label app belong in.
func versionsOf(t *testing.T, app string, count int) (versions []*podwebhook.Shard) {
	t.Helper()
	set := fixtures.LogSet(1)
	set.Spec.Selector.MatchLabels["app"] = app
	e, err := podwebhook.Of(set)
	if err != nil {
		t.Fatal(err)
	}
	next := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: podwebhook.ConfigurationName(e.Shard(ours))}}
	settings := &podwebhook.Settings{Namespace: "ours", Service: admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhooks"}, Bundle: []byte("bundle")}
	for i := range count + 2 {
		next.ResourceVersion = strconv.Itoa(100 + i)
		s, err := podwebhook.Parse(next)
		if err != nil {
			t.Fatal(err)
		}
		if versions = append(versions, s); i == 0 {
			next = s.Reconcile(nil, nil, false, settings).Next
			continue
		}
		next, _ = s.Review([]podwebhook.Webhook{e}, func(string, podwebhook.Dependency) bool { return true }, 0, settings)
	}
	return versions[2:]
}

// awaitFor asks for as long as the user who applies a SidecarSet waits.
func awaitFor(t *testing.T, p *prober, s *podwebhook.Shard) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	return p.await(ctx, s.Index, func() (uint64, error) { return s.Serial, nil })
}

// lookFor looks as the leader does, every ten seconds, for some time.
func lookFor(t *testing.T, p *prober, lasting time.Duration, used ...*podwebhook.Shard) {
	t.Helper()
	var shards [podwebhook.Shards]*podwebhook.Shard
	for _, s := range used {
		shards[s.Index] = s
	}
	for begin := time.Now(); ; <-time.After(10 * time.Second) {
		if err := p.look(t.Context(), shards, false); err != nil {
			t.Fatal(err)
		}
		if time.Since(begin) >= lasting {
			return
		}
	}
}

func TestAwaitPassesWhereEveryAPIServerUsesTheShard(t *testing.T) {
	t.Parallel()
	inCluster(t, []string{addressA, addressB}, func(t *testing.T, p *prober, c *proberCluster) {
		v := versionsOf(t, "web", 4)
		c.uses(v[2], addressA) // has been written again since
		c.uses(v[0], addressB)
		err := awaitFor(t, p, v[1])
		if err == nil || strings.Contains(err.Error(), addressA) || p.passed(v[1].Index, v[1].Serial) {
			t.Errorf("one is behind: %v", err)
		}
		for _, part := range []string{addressB, v[1].Object.Name, fmt.Sprint("serial ", v[1].Serial)} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %s", err, part)
			}
		}
		go func() {
			<-time.After(100 * time.Millisecond)
			c.uses(v[1], addressB)
		}()
		if err := awaitFor(t, p, v[1]); err != nil || !p.passed(v[1].Index, v[1].Serial) || p.passed(v[2].Index, v[2].Serial) {
			t.Errorf("it has caught up: %v", err)
		}
		if p.passed((v[1].Index+1)%podwebhook.Shards, v[1].Serial) {
			t.Error("another shard has passed as well")
		}
		if c.servers[configuredHost].asked != 0 {
			t.Error("the configured host was asked although API servers answer by their own addresses")
		}
		asked := c.servers[addressA].asked
		if err := awaitFor(t, p, v[0]); err != nil || c.servers[addressA].asked != asked {
			t.Errorf("what is proven is asked again: %v", err)
		}
	})
}

// The probe webhook of a shard that is written often names a serial only for a short time.
func TestAwaitAsksForWhatIsWantedNow(t *testing.T) {
	t.Parallel()
	inCluster(t, []string{addressA}, func(t *testing.T, p *prober, c *proberCluster) {
		v := versionsOf(t, "web", 20)
		c.uses(v[19])
		wanted := 0
		err := p.await(t.Context(), v[0].Index, func() (uint64, error) { wanted++; return v[min(wanted, 19)].Serial, nil })
		gone := errors.New("no serial holds the dependency any more")
		without := p.await(t.Context(), v[0].Index, func() (uint64, error) { return 0, gone })
		if err != nil || !p.passed(v[0].Index, v[0].Serial) || !errors.Is(without, gone) {
			t.Errorf("got %v and %v", err, without)
		}
	})
}

// An API server that does not run creates no Pods. Its address may stay published for a long time.
func TestAPIServersThatCannotBeReachedDoNotCount(t *testing.T) {
	t.Parallel()
	inCluster(t, []string{addressA, addressB}, func(t *testing.T, p *prober, c *proberCluster) {
		v := versionsOf(t, "web", 1)[0]
		c.uses(v, addressA)
		awaits := func(what string, want bool) {
			t.Helper()
			if err := awaitFor(t, p, v); (err == nil) != want || p.passed(v.Index, v.Serial) != want {
				t.Errorf("%s: %v", what, err)
			}
		}
		c.set(func(s *testAPIServer) { s.drops = true }, addressB)
		awaits("a packet may have been lost, so the other one is not left out at once", false)
		<-time.After(connectTimeout)
		synctest.Wait()
		start := time.Now()
		awaits("it drops packets", true)
		if time.Since(start) > unreachablePatience {
			t.Errorf("the user of a SidecarSet waits for %v", time.Since(start))
		}
		<-time.After(connectTimeout)
		c.set(func(s *testAPIServer) { s.drops, s.refuses = false, true }, addressB)
		awaits("it refuses connections", true)
		c.set(func(s *testAPIServer) { s.refuses = false }, addressB)
		awaits("it is back, without the shard", false)
		c.uses(v, addressB)
		awaits("it has caught up", true)
	})
}

// What answers at an address may be a proxy, a firewall that inspects TLS, or an API server that does
// not accept the operator's token there.
func TestWhatIsNoAPIServerForUsDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, instead := range map[string]http.HandlerFunc{
		"an API server that does not know the token": func(w http.ResponseWriter, _ *http.Request) {
			refusal := apierrors.NewUnauthorized("Unauthorized").Status()
			refusal.APIVersion, refusal.Kind = "v1", "Status"
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(refusal)
		},
		"a page of a proxy": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>blocked</html>", http.StatusForbidden)
		},
		"a page of a portal":       func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>log in</html>")) },
		"a connection that is cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, []string{addressA, addressB}, func(t *testing.T, p *prober, c *proberCluster) {
				versions := versionsOf(t, "web", 3)
				for i, out := range [][]string{{addressB}, {addressA, addressB}} {
					v := versions[i]
					c.uses(v)
					c.set(func(s *testAPIServer) { s.instead = instead }, out...)
					if err := awaitFor(t, p, v); err != nil || !p.passed(v.Index, v.Serial) {
						t.Fatalf("%v is no API server: %v", out, err)
					}
				}
				<-time.After(silentAfter)
				if said := p.leftOut(time.Now()); !strings.Contains(said, addressA+" (") || !strings.Contains(said, addressB+" (") {
					t.Errorf("left out are %q", said)
				}
				// A cut connection is tried again, so one that ends does not leave an API server out.
				c.set(func(s *testAPIServer) { s.instead = nil })
				newer := versions[2]
				if err := awaitFor(t, p, newer); err == nil || p.passed(newer.Index, newer.Serial) || p.leftOut(time.Now()) != "" {
					t.Errorf("API servers are back, without the shard: %v, and left out is %q", err, p.leftOut(time.Now()))
				}
			})
		})
	}
}

// The proxy of the environment is for the configured host: the addresses of API servers are in the
// cluster's network.
func TestAddressesOfAPIServersAreAskedWithoutAProxy(t *testing.T) {
	const inChild = "ENTRIES_TEST_PROXY"
	if os.Getenv(inChild) == "" {
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		command.Env = append(os.Environ(), inChild+"=1", "HTTPS_PROXY=http://10.9.9.9:3128", "https_proxy=", "NO_PROXY=", "no_proxy=")
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		return
	}
	inCluster(t, []string{addressA}, func(t *testing.T, p *prober, c *proberCluster) {
		c.servers["10.9.9.9:3128"] = &testAPIServer{refuses: true}
		v := versionsOf(t, "web", 1)[0]
		c.uses(v, addressA)
		if err := awaitFor(t, p, v); err != nil || c.count(addressA) == 0 {
			t.Errorf("the address was asked %d times: %v", c.count(addressA), err)
		}
	})
}

func TestTheConfiguredHostIsAskedIfNoOtherAnswers(t *testing.T) {
	t.Parallel()
	for _, published := range [][]string{nil, {addressA, addressB}} {
		inCluster(t, published, func(t *testing.T, p *prober, c *proberCluster) {
			v := versionsOf(t, "web", 2)
			c.set(func(s *testAPIServer) { s.refuses = true }, addressA, addressB)
			c.uses(v[0], configuredHost)
			if err := awaitFor(t, p, v[1]); err == nil || p.passed(v[1].Index, v[1].Serial) {
				t.Fatalf("passed by an older serial: %v", err)
			}
			c.uses(v[1], configuredHost)
			if err := awaitFor(t, p, v[1]); err != nil || !p.passed(v[1].Index, v[1].Serial) || !p.answered(time.Now()) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// An API server can use an older version of a shard again, after a later one was propagated.
func TestLookRevokesWhatAnAPIServerWentBackOn(t *testing.T) {
	t.Parallel()
	inCluster(t, []string{addressA, addressB}, func(t *testing.T, p *prober, c *proberCluster) {
		v, other := versionsOf(t, "web", 2), versionsOf(t, "db", 2)[1]
		c.uses(v[1])
		c.uses(other)
		looks := func(what string, want bool) {
			t.Helper()
			if lookFor(t, p, 0, v[1], other); p.passed(v[1].Index, v[1].Serial) != want || !p.passed(other.Index, other.Serial) {
				t.Errorf("%s: passed is not %v, or the other shard has not passed", what, want)
			}
		}
		looks("after the first look", true)
		if c.servers[addressA].asked != 1 {
			t.Errorf("the first look creates %d ConfigMaps", c.servers[addressA].asked)
		}
		c.set(func(s *testAPIServer) { s.unanswered = 1 }, addressB)
		looks("when one call was lost", true)
		c.uses(v[0], addressB)
		looks("when B has gone back", false)
		if err := awaitFor(t, p, v[1]); err == nil || !strings.Contains(err.Error(), addressB) {
			t.Errorf("it is awaited with %v", err)
		}
		c.uses(v[1])
		looks("when the shard was written again", true)
	})
}

func TestSilenceOfAMinuteIsAProblemAndRevokesNothing(t *testing.T) {
	t.Parallel()
	inCluster(t, []string{addressA, addressB}, func(t *testing.T, p *prober, c *proberCluster) {
		web, db := versionsOf(t, "web", 2)[1], versionsOf(t, "db", 2)[1]
		c.uses(web)
		c.uses(db)
		silent := func(calls int) func(*testAPIServer) { return func(s *testAPIServer) { s.unanswered = calls } }
		steps := []struct {
			what    string
			change  func(*testAPIServer)
			of      string // "" is all
			lasting time.Duration
			reason  string
		}{
			{"answered", silent(0), "", 0, ""},
			{"not answered for a moment", silent(-1), "", 30 * time.Second, ""},
			{"not answered for a minute", silent(-1), "", 40 * time.Second, appsv1beta1.ReasonNoReplica},
			{"still not", silent(-1), "", time.Hour, appsv1beta1.ReasonNoReplica},
			{"answered at last", silent(0), "", 0, ""},
			{"one API server is not", silent(-1), addressB, 2 * time.Minute, appsv1beta1.ReasonWebhookUnreachable},
		}
		for _, step := range steps {
			c.set(step.change, strings.Fields(step.of)...)
			lookFor(t, p, step.lasting, web, db)
			got := p.problem("ours", time.Now())
			if got == nil && step.reason != "" || got != nil && (got.Reason != step.reason || got.Ready || got.Unsure) {
				t.Errorf("%s: it says %+v", step.what, got)
			}
			if step.of != "" && got != nil && !strings.Contains(got.Message, "API server "+addressB+" ") {
				t.Errorf("%s: which one is not said: %s", step.what, got.Message)
			}
			if !p.passed(web.Index, web.Serial) || !p.passed(db.Index, db.Serial) {
				t.Errorf("%s: the proof is revoked", step.what)
			}
			if answered, want := p.answered(time.Now()), step.reason != appsv1beta1.ReasonNoReplica; answered != want {
				t.Errorf("%s: answered is %v", step.what, answered)
			}
		}
	})
}
