package certs_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sidecarset/operator/certs"
)

// startAll starts a leader and a follower on the manifests and lets them settle.
func startAll(t *testing.T, server client.WithWatch, targets ...certs.Target) (leader, follower *replica) {
	return startPair(t, server, options(), options(), targets...)
}

// startPair is startAll with options of the leader and of the follower.
func startPair(t *testing.T, server client.WithWatch, leads, follows certs.Options, targets ...certs.Target) (leader, follower *replica) {
	leader, follower = newReplica(t, server, leads, targets...), newReplica(t, server, follows, targets...)
	leader.start(t)
	follower.start(t)
	leader.lead(t)
	pass(2 * time.Second)
	return leader, follower
}

func TestBundleIsPublishedEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, manifests()...)
		leader, follower := startAll(t, server, targets()...)

		want := string(leader.source.Bundle())
		bundles := publishedBundles(t, server)
		if len(bundles) != 4 {
			t.Errorf("%d places, want 4", len(bundles))
		}
		for place, got := range bundles {
			if got != want {
				t.Errorf("%s holds %q, want the bundle", place, got)
			}
		}
		checkError(t, leader.readiness.Ready(t.Context()), "")
		checkError(t, follower.readiness.Ready(t.Context()), "")
	})
}

// The operator writes no field but caBundle, even if another field looks wrong.
func TestPublishingChangesOnlyCABundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		byURL := mutatingWebhooks("defaulting", "default.sidecarset.io", "url.sidecarset.io")
		byURL.Webhooks[1].ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: new("https://" + host + ":9443/x")}
		server := newAPIServer(t, byURL, validatingWebhooks("checking"), customResource(webhookConversion()))
		startAll(t, server, targets()...)

		mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
		crd := customResource(nil)
		for name, o := range map[string]client.Object{"defaulting": mutating, crdName: crd} {
			if err := server.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
				t.Fatal(err)
			}
		}
		for i := range mutating.Webhooks {
			if len(mutating.Webhooks[i].ClientConfig.CABundle) == 0 {
				t.Errorf("no caBundle in %s", mutating.Webhooks[i].Name)
			}
			mutating.Webhooks[i].ClientConfig.CABundle = nil
		}
		if diff := cmp.Diff(byURL.Webhooks, mutating.Webhooks); diff != "" {
			t.Errorf("webhooks (-applied +now):\n%s", diff)
		}
		unstructured.RemoveNestedField(crd.Object, "spec", "conversion", "webhook", "clientConfig", "caBundle")
		if diff := cmp.Diff(customResource(webhookConversion()).Object["spec"], crd.Object["spec"]); diff != "" {
			t.Errorf("CRD (-applied +now):\n%s", diff)
		}
	})
}

func TestResetBundleIsRepaired(t *testing.T) {
	tests := map[string]func(t *testing.T, server client.Client){
		"applied again": func(t *testing.T, server client.Client) {
			for _, o := range manifests() {
				current := o.DeepCopyObject().(client.Object)
				if err := server.Get(t.Context(), client.ObjectKeyFromObject(o), current); err != nil {
					t.Fatal(err)
				}
				o.SetResourceVersion(current.GetResourceVersion())
				if err := server.Update(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
		},
		"deleted and created": func(t *testing.T, server client.Client) {
			for _, o := range manifests() {
				if err := errors.Join(server.Delete(t.Context(), o), server.Create(t.Context(), o)); err != nil {
					t.Fatal(err)
				}
			}
		},
	}
	for name, reset := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newAPIServer(t, manifests()...)
				leader, follower := startAll(t, server, targets()...)
				leader.resign()
				reset(t, server)
				synctest.Wait()
				checkError(t, follower.readiness.Ready(t.Context()), "its caBundle is empty until the leader writes it")

				leader.lead(t)
				pass(time.Second)
				for place, got := range publishedBundles(t, server) {
					if got != string(leader.source.Bundle()) {
						t.Errorf("%s was not repaired within a second", place)
					}
				}
				checkError(t, follower.readiness.Ready(t.Context()), "")
			})
		})
	}
}

// If another program insists on another bundle, the leader reverts it each time, but not as
// fast as both could write.
func TestLeaderRevertsAForeignBundleAtALimitedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes := 0
		server := interceptor.NewClient(newAPIServer(t, manifests()...), interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				err := c.Patch(ctx, o, p, opts...)
				if o.GetName() == "defaulting" && err == nil {
					writes++
					other := mutatingWebhooks("defaulting", "default.sidecarset.io")
					other.ResourceVersion = o.GetResourceVersion()
					err = c.Update(ctx, other)
				}
				return err
			},
		})
		startAll(t, server, targets()...)
		pass(10 * time.Second)
		if writes < 5 || writes > 15 {
			t.Errorf("%d writes in 12 seconds, want about one a second", writes)
		}
	})
}

func TestBundleIsPublishedToObjectsAppliedAfterTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t)
		leader, follower := startAll(t, server, append(targets(), certs.MutatingWebhooks("on-demand").Optional())...)
		for _, missing := range []string{
			"MutatingWebhookConfiguration defaulting: it does not exist, apply it",
			"ValidatingWebhookConfiguration checking: it does not exist, apply it",
			"CustomResourceDefinition " + crdName + ": it does not exist, apply it",
		} {
			checkError(t, follower.published.Missing(), missing)
		}
		if err := follower.published.Missing(); strings.Contains(err.Error(), "on-demand") {
			t.Errorf("an optional object counts as missing: %v", err)
		}
		checkError(t, follower.readiness.Ready(t.Context()), "") // a missing object says nothing about a replica
		for _, o := range manifests() {
			if err := server.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Second)
		checkError(t, follower.published.Missing(), "")
		checkError(t, leader.readiness.Ready(t.Context()), "")
		checkError(t, follower.readiness.Ready(t.Context()), "")
	})
}

func TestLabelledObjectsArePublishedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t)
		target := certs.MutatingWebhooksLabelled(labels.SelectorFromSet(labels.Set{"ours": "yes"}), nil)
		leader, _ := startAll(t, server, target)
		checkError(t, leader.readiness.Ready(t.Context()), "") // without objects, there is nothing to publish to

		ours, theirs := mutatingWebhooks("defaulting", "a"), mutatingWebhooks("theirs", "b")
		ours.Labels = map[string]string{"ours": "yes"}
		for _, o := range []client.Object{ours, theirs} {
			if err := server.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Second)
		if got := publishedBundles(t, server)["defaulting/a"]; got != string(leader.source.Bundle()) {
			t.Errorf("caBundle is %q", got)
		}
		if err := server.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
			t.Fatal(err)
		}
		if len(theirs.Webhooks[0].ClientConfig.CABundle) != 0 {
			t.Error("an object without the label was written")
		}
	})
}

// A patch that was computed from an older version would hit the entry that is at that
// position now.
func TestPatchIsRefusedWhenTheObjectHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, raced := 0, false
		server := interceptor.NewClient(newAPIServer(t, manifests()...), interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				if o.GetName() == "defaulting" && !raced {
					raced = true
					current := &admissionregistrationv1.MutatingWebhookConfiguration{}
					if err := c.Get(ctx, client.ObjectKey{Name: "defaulting"}, current); err != nil {
						return err
					}
					slices.Reverse(current.Webhooks) // every position still exists
					if err := c.Update(ctx, current); err != nil {
						return err
					}
				}
				err := c.Patch(ctx, o, p, opts...)
				if err != nil {
					refused++
				}
				return err
			},
		})
		leader, _ := startAll(t, server, targets()...)
		pass(time.Second)
		if refused == 0 {
			t.Error("a patch of an older version was not refused")
		}
		want := string(leader.source.Bundle())
		if diff := cmp.Diff(map[string]string{"defaulting/default.sidecarset.io": want, "defaulting/more.sidecarset.io": want, "checking/check.sidecarset.io": want, "crd": want},
			publishedBundles(t, server)); diff != "" {
			t.Errorf("bundles (-want +got):\n%s", diff)
		}
	})
}

func TestReadinessErrorNamesItsCause(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, crdName, errors.New("no role"))
	foreign := mutatingWebhooks("defaulting", "default.sidecarset.io")
	foreign.Webhooks[0].ClientConfig.Service.Name = "other"
	stale := mutatingWebhooks("defaulting", "default.sidecarset.io")
	stale.Webhooks[0].ClientConfig.CABundle = bundleOf(issueCA(t, start, 3650*day))

	tests := map[string]struct {
		objects []client.Object
		lead    bool
		want    string
	}{
		"a bundle of another CA": {
			[]client.Object{stale}, false,
			"checking the serving certificate as MutatingWebhookConfiguration defaulting, webhook default.sidecarset.io does: x509"},
		"an entry that calls another Service": {
			[]client.Object{foreign}, true, "it calls other.sidecarset-system.svc, and this operator is webhook.sidecarset-system.svc"},
		"an entry without a bundle": {
			[]client.Object{validatingWebhooks("checking")}, false,
			"checking ValidatingWebhookConfiguration checking, webhook check.sidecarset.io: its caBundle is empty"},
		"a permission": {nil, true, "no role"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := interceptor.NewClient(newAPIServer(t, tc.objects...), interceptor.Funcs{
					List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
						if name == "a permission" && l.GetObjectKind().GroupVersionKind().Kind == "CustomResourceDefinitionList" {
							return forbidden
						}
						return c.List(ctx, l, opts...)
					},
				})
				r := newReplica(t, server, options(), targets()...)
				checkError(t, r.readiness.Ready(t.Context()), "has not been read yet")
				r.start(t)
				if tc.lead {
					r.lead(t)
				}
				pass(2 * time.Second)
				checkError(t, r.readiness.Ready(t.Context()), tc.want)
			})
		})
	}
}

func TestCRDWithoutAConversionWebhookIsReportedMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, customResource(map[string]any{"strategy": "None"}))
		_, follower := startAll(t, server, certs.ConversionWebhook(crdName))
		checkError(t, follower.published.Missing(), "CustomResourceDefinition "+crdName+": it has no conversion webhook, apply it again")
		checkError(t, follower.readiness.Ready(t.Context()), "")
	})
}

// Two programs may claim the CRD's conversion. API servers call the server that the CRD names,
// with the bundle that is next to it.
func TestCRDThatCallsAnotherServiceGetsNoBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conversion := webhookConversion()
		theirs := map[string]any{"name": "kruise-webhook-service", "namespace": "kruise-system"}
		if err := unstructured.SetNestedMap(conversion, theirs, "webhook", "clientConfig", "service"); err != nil {
			t.Fatal(err)
		}
		server := newAPIServer(t, customResource(conversion), mutatingWebhooks("defaulting", "a"))
		leader, follower := startAll(t, server, certs.ConversionWebhook(crdName), certs.MutatingWebhooks("defaulting"))
		bundles := publishedBundles(t, server)
		if bundles["crd"] != "" || bundles["defaulting/a"] != string(leader.source.Bundle()) {
			t.Errorf("bundles are %q", bundles)
		}
		checkError(t, follower.readiness.Ready(t.Context()), "")
		checkError(t, follower.published.Missing(), "conversion webhook calls kruise-webhook-service.kruise-system.svc, which is not this operator; apply it again if it should be")
	})
}

func TestReadyNeedsTheServerName(t *testing.T) {
	r := newReplica(t, newAPIServer(t), options())
	checkError(t, r.source.Refresh(t.Context()), "")
	readiness := certs.NewReadiness(r.source, r.published, "other.sidecarset-system.svc", certs.NewServerClock(nil))
	checkError(t, readiness.Ready(t.Context()), "not other.sidecarset-system.svc")
}
