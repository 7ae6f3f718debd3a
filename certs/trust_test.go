package certs_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/conformance"
)

// putCA writes a pair into the Secret as a person does.
func putCA(t *testing.T, server client.Client, ca certs.KeyPair) {
	t.Helper()
	secret := getSecret(t, server)
	fresh := secretOf(t, certs.Authority{Signing: ca})
	secret.Data = map[string][]byte{"tls.crt": fresh.Data["tls.crt"], "tls.key": fresh.Data["tls.key"]}
	if err := server.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

func TestReplacedCAThatCannotSignForTheHostIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, told := newAPIServer(t, manifests()...), &reasons{}
		opts := hourly()
		opts.Events = told
		leader, follower := startPair(t, server, opts, hourly(), targets()...)
		before := getAuthority(t, server, time.Now())

		putCA(t, server, conformance.ConstrainedCA(t, time.Now()))
		checkError(t, follower.source.Refresh(t.Context()), "tls.crt cannot sign for "+host+": x509: a root or intermediate certificate is not authorized to sign for this name")
		pass(40 * time.Minute) // longer than a leaf is valid
		fresh := newReplica(t, server, hourly(), targets()...)
		fresh.start(t)
		pass(5 * time.Minute)
		for name, r := range map[string]*replica{"leader": leader, "follower": follower, "new replica": fresh} {
			if err := r.readiness.Ready(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if now := getAuthority(t, server, time.Now()); !now.Signing.Certificate.Equal(before.Signing.Certificate) || len(now.Old) != 0 {
			t.Error("the CA from before does not sign, or the other one is trusted")
		}
		if told.count(certs.ReasonCAReplaced) != 1 || told.count(certs.ReasonForeignCA) != 0 {
			t.Errorf("events are %q", told.seen)
		}
	})
}

// If the leader remembers no other CA, it does not change the Secret: it may belong to another program.
func TestFirstCAThatCannotSignForTheHostIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, told := newAPIServer(t, append(manifests(), secretOf(t, certs.Authority{Signing: conformance.ConstrainedCA(t, time.Now())}))...), &reasons{}
		before := getSecret(t, server)
		opts := hourly()
		opts.Events = told
		r := newReplica(t, server, opts, targets()...)
		r.start(t)
		r.lead(t)
		pass(10 * time.Minute)
		checkError(t, r.readiness.Ready(t.Context()), "the leader writes the previous CA again if a replica remembers one; if none does, delete the Secret")
		if getSecret(t, server).ResourceVersion != before.ResourceVersion || told.count(certs.ReasonCAUnusable) != 1 {
			t.Errorf("the Secret was written, or the events are %q", told.seen)
		}
	})
}

// In a format of a later version, the content may have another meaning.
func TestSecretOfALaterFormatIsLeftAlone(t *testing.T) {
	for _, format := range []string{"2", "1.1", "", "-1"} {
		t.Run(format, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, told := newAPIServer(t, manifests()...), &reasons{}
				opts := hourly()
				opts.Events = told
				_, follower := startPair(t, server, opts, hourly(), targets()...)
				bundles := publishedBundles(t, server)

				secret := getSecret(t, server)
				later := secretOf(t, certs.Authority{Signing: issueCA(t, time.Now(), day)})
				secret.Data = map[string][]byte{"ca": later.Data["tls.crt"], "tls.crt": later.Data["tls.crt"], "tls.key": []byte("elsewhere")}
				secret.Annotations[certs.FormatAnnotation], secret.Annotations[certs.RotateAnnotation] = format, "now"
				if err := server.Update(t.Context(), secret); err != nil {
					t.Fatal(err)
				}
				written := getSecret(t, server)
				pass(20 * time.Minute)
				if got := getSecret(t, server); got.ResourceVersion != written.ResourceVersion {
					t.Error("the Secret was written")
				}
				if diff := cmp.Diff(bundles, publishedBundles(t, server)); diff != "" {
					t.Errorf("bundles (-before +now):\n%s", diff)
				}
				checkError(t, follower.source.Refresh(t.Context()), "this version of the operator knows formats up to 1: run a version that knows it")
				checkError(t, follower.readiness.Ready(t.Context()), "") // it continues to serve
				if told.count(certs.ReasonCAUnusable) != 1 || told.count(certs.ReasonCAReplaced)+told.count(certs.ReasonForeignCA) != 0 {
					t.Errorf("events are %q", told.seen)
				}
			})
		})
	}
}

// Each former CA is dropped at its own time, or all at once if an administrator asks for it.
func TestFormerCAsRetireOneByOne(t *testing.T) {
	at := func(days int) certs.Former {
		return certs.Former{Certificate: issueCA(t, start, 365*day).Certificate, RetireAfter: start.Add(time.Duration(days) * day)}
	}
	secret := secretOf(t, certs.Authority{Signing: issueCA(t, start, 365*day), Old: []certs.Former{at(10), at(20), at(30)}})
	a, err := certs.DecodeAuthority(secret, start)
	for _, want := range []int{2, 1, 0} {
		if err != nil {
			t.Fatal(err)
		}
		now := start.Add(time.Duration(30-10*want)*day + time.Second)
		var step certs.Step
		if a, step, err = a.Advance(now, policy, false); step != certs.StepRetire || len(a.Old) != want {
			t.Errorf("step %q leaves %d former CAs, want %d", step, len(a.Old), want)
		}
	}
	secret.Annotations[certs.RetireAfterAnnotation] = "2000-01-01T00:00:00Z"
	if a, err = certs.DecodeAuthority(secret, start); err != nil {
		t.Fatal(err)
	}
	if a, step, _ := a.Advance(start, policy, false); step != certs.StepRetire || len(a.Old) != 0 {
		t.Errorf("step %q leaves %d former CAs, want none", step, len(a.Old))
	}
}

// A client that may write the Secret can add trusted CAs, for some time, and the leader reports it.
func TestCertificatesPutIntoTheBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, told := newAPIServer(t, manifests()...), &reasons{}
		opts := hourly()
		opts.Events = told
		leader := newReplica(t, server, opts, targets()...)
		leader.start(t)
		leader.lead(t)
		pass(2 * time.Second)

		secret := getSecret(t, server)
		for range 20 {
			secret.Data["ca.crt"] = append(secret.Data["ca.crt"], bundleOf(issueCA(t, time.Now(), 365*day))...)
		}
		leaf := issueLeaf(t, issueCA(t, time.Now(), 365*day), time.Now(), day)
		secret.Data["ca.crt"] = append(secret.Data["ca.crt"], certs.EncodeBundle([]*x509.Certificate{leaf.Leaf})...)
		if err := server.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Minute)
		if a := getAuthority(t, server, time.Now()); len(a.Old) != 8 || len(a.Bundle()) != 9 {
			t.Errorf("%d certificates are published, want the CA and 8", len(a.Bundle()))
		}
		if got := told.count(certs.ReasonTrustAdded); got != 1 {
			t.Errorf("events are %q, want %s once", told.seen, certs.ReasonTrustAdded)
		}

		// The certificates do not keep the CA from being rotated, but they count like former
		// CAs.
		annotateSecret(t, server, certs.RotateAnnotation, "now")
		pass(5 * time.Minute)
		if a := getAuthority(t, server, time.Now()); a.Next != nil || !a.RotationRequested || told.count(certs.ReasonRotationPostponed) != 1 {
			t.Errorf("the rotation has begun, or the events are %q", told.seen)
		}
		pass(75 * time.Minute)
		if a := getAuthority(t, server, time.Now()); a.RotationRequested || len(a.Old) != 1 {
			t.Errorf("it has not begun when there was room, with %d former CAs", len(a.Old))
		}
		checkError(t, leader.readiness.Ready(t.Context()), "")
	})
}

// No CA is introduced that would make objects too large to be written.
func TestBundleThatIsTooLargeIsNotMadeLarger(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{NotBefore: start, NotAfter: start.Add(day), IsCA: true, BasicConstraintsValid: true}
	template.Subject.CommonName = strings.Repeat("large ", 10_000)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	large, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := certs.Authority{Signing: certs.KeyPair{Certificate: large, Key: key}, RotationRequested: true}
	if _, step, err := a.Advance(start, policy, false); step != certs.StepNone || err != nil {
		t.Errorf("step %q, error %v", step, err)
	}
	checkError(t, a.Postponed(start), "take certificates out of ca.crt until it has 65536")

	secret := secretOf(t, certs.Authority{Signing: issueCA(t, start, 365*day)})
	secret.Data["ca.crt"] = append(secret.Data["ca.crt"], certs.EncodeBundle([]*x509.Certificate{large})...)
	if a, err = certs.DecodeAuthority(secret, start); err != nil || len(a.Old) != 0 {
		t.Errorf("error %v, %d former CAs: what is too large is not published", err, len(a.Old))
	}
}

// If rotations are requested more often than leaves expire, the reason is a cron job, or a
// mistake.
func TestRotatingOftenKeepsTheBundleSmall(t *testing.T) {
	for name, every := range map[string]time.Duration{"weekly": 7 * day, "daily": day, "every four hours": 4 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			a, err := certs.NewAuthority(start, policy)
			if err != nil {
				t.Fatal(err)
			}
			biggest := 0
			for now := start; now.Before(start.Add(365 * day)); now = now.Add(every) {
				a.RotationRequested = true
				for step := certs.Step("first"); step != certs.StepNone; {
					if a, step, err = a.Advance(now, policy, true); err != nil {
						t.Fatal(err)
					}
				}
				biggest = max(biggest, len(a.Bundle()))
			}
			if biggest > 10 {
				t.Errorf("the bundle holds up to %d CAs, want 10 at most", biggest)
			}
		})
	}
}

// A user copies an object of the operator, labels included. The operator may not write the copy, so its content must not matter.
func TestCopiesOfOperatorObjectsAreIgnored(t *testing.T) {
	for _, service := range []string{"webhook", "another"} {
		t.Run("and it calls "+service, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newAPIServer(t, manifests()...)
				label := labels.Set{"ours": "yes"}
				all := append(targets(), certs.MutatingWebhooksLabelled(labels.SelectorFromSet(label), func(name string) bool { return name == "ours" }).Optional())
				copied := mutatingWebhooks("copy-of-ours", "pods.sidecarset.io")
				copied.Labels = label
				copied.Webhooks[0].ClientConfig.Service.Name = service
				copied.Webhooks[0].ClientConfig.CABundle = bundleOf(issueCA(t, time.Now(), 365*day))
				if err := server.Create(t.Context(), copied); err != nil {
					t.Fatal(err)
				}
				leader, follower := startAll(t, server, all...)
				before := getAuthority(t, server, time.Now())
				annotateSecret(t, server, certs.RotateAnnotation, "now")
				pass(15 * time.Minute)
				if now := getAuthority(t, server, time.Now()); now.Next != nil || now.Signing.Certificate.Equal(before.Signing.Certificate) {
					t.Error("the CA was not rotated")
				}
				checkError(t, leader.readiness.Ready(t.Context()), "")
				checkError(t, follower.readiness.Ready(t.Context()), "")
			})
		})
	}
}

// An entry in an object of the operator that calls another server gets no bundle, and does not concern replicas.
func TestForeignEntriesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mixed := mutatingWebhooks("defaulting", "default.sidecarset.io", "evil.example.com", "evil.example.org")
		mixed.Webhooks[1].ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: new("https://evil.example.com/x")}
		mixed.Webhooks[2].ClientConfig.Service.Namespace = "evil"
		server := newAPIServer(t, mixed, validatingWebhooks("checking"), customResource(webhookConversion()))
		leader, follower := startAll(t, server, targets()...)
		checkError(t, leader.readiness.Ready(t.Context()), "")
		checkError(t, follower.readiness.Ready(t.Context()), "")
		checkError(t, follower.published.Missing(), "webhook evil.example.com calls evil.example.com, which is not this operator")
		if bundles := publishedBundles(t, server); bundles["defaulting/evil.example.com"]+bundles["defaulting/evil.example.org"] != "" || bundles["defaulting/default.sidecarset.io"] == "" {
			t.Errorf("bundles are %q", bundles)
		}
		if got := gauge(t, "sidecarset_ca_bundle_foreign_entries"); got != 2 {
			t.Errorf("%v foreign entries are counted, want 2", got)
		}
	})
}

// A leaf that waits for API servers to trust it is not an error. If it waits for long, it is.
func TestLeafHeldBackForLongIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, opts := newAPIServer(t, manifests()...), options()
		opts.Poll = time.Minute
		r := newReplica(t, server, opts, targets()...)
		var reports atomic.Int32
		ctx, cancel := context.WithCancel(log.IntoContext(t.Context(), funcr.New(func(_, args string) {
			if strings.Contains(args, "The new serving certificate has been held back for long") {
				reports.Add(1)
			}
		}, funcr.Options{})))
		var done sync.WaitGroup
		for _, part := range []manager.Runnable{r.published, r.source} {
			done.Go(func() { _ = part.Start(ctx) })
		}
		defer done.Wait()
		defer cancel()
		r.lead(t)
		pass(2 * time.Second)
		r.resign() // no leader publishes any more
		putCA(t, server, issueCA(t, time.Now(), 365*day))

		pass(time.Hour)
		if got := gauge(t, "sidecarset_certificate_pending_seconds"); got < 3500 || reports.Load() != 0 {
			t.Errorf("held back for %v seconds, want an hour; or it is reported too early", got)
		}
		pass(15 * time.Minute)
		if n := reports.Load(); n != 1 {
			t.Errorf("%d reports, want one", n)
		}
		r.lead(t)
		pass(11 * time.Minute)
		if got := gauge(t, "sidecarset_certificate_pending_seconds"); got != 0 {
			t.Errorf("held back for %v seconds when it is served", got)
		}
	})
}

// gauge reads a metric without labels.
func gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// A user has broken one object, and there is no leader to repair it.
func TestOneSpoiledObjectTakesNoReplicaOut(t *testing.T) {
	other := bundleOf(issueCA(t, start, 3650*day))
	for name, bundle := range map[string][]byte{"emptied": nil, "foreign": other} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newAPIServer(t, manifests()...)
				leader, follower := startAll(t, server, targets()...)
				for _, r := range []*replica{leader, follower} {
					checkError(t, r.readiness.Ready(t.Context()), "")
				}
				leader.resign()
				spoiled := validatingWebhooks("checking")
				spoiled.Webhooks[0].ClientConfig.CABundle = bundle
				spoiled.ResourceVersion = "" // whatever it is
				if err := server.Delete(t.Context(), validatingWebhooks("checking")); err != nil {
					t.Fatal(err)
				}
				if err := server.Create(t.Context(), spoiled); err != nil {
					t.Fatal(err)
				}
				pass(time.Minute)
				checkError(t, leader.readiness.Ready(t.Context()), "")
				checkError(t, follower.readiness.Ready(t.Context()), "")
				want := "checking the serving certificate as ValidatingWebhookConfiguration checking"
				if bundle == nil {
					want = ""
				}
				checkError(t, follower.readiness.Trusted(t.Context()), want)
			})
		})
	}
}
