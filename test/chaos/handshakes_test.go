package chaos

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// An API server has connections to a Service of their own for each path, and a handshake takes
// longer than the answer. So a change of a SidecarSet costs one handshake for each Pod that is
// created at the same time, and none for later Pods. What does not change what replicas
// must know costs none.
func TestOnlyChangesOfASlotCostHandshakes(t *testing.T) {
	f := startFleet(t, &fleet{args: steadyLeases}, 1, 1)
	f.awaitLeader(t)
	handshakes := countHandshakes(t, f.replicas[0])
	awaitCalls(t)
	namespace := newNamespace(t)
	neighbours := twoOfOneSlot(t, namespace)
	createSets(t, neighbours[:])
	first, second := neighbours[0].GetName(), neighbours[1].GetName()
	testkit.AwaitReady(t, api, first, second)
	entries := entriesOf(t, first, second)

	const atOnce = 5
	for _, step := range []struct {
		name     string
		do       func()
		parallel int
		most     int
	}{
		{"the first Pods", func() {}, 1, 1},
		{"a change", func() { mustChangeImage(t, first, "example.com/sidecar:v2") }, 1, 1},
		{"a change of its neighbour", func() { mustChangeImage(t, second, "example.com/sidecar:v2") }, 1, 1},
		{"another policy and timeout", func() {
			annotations := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"Ignore",%q:"7"}}}`, appsv1beta1.AnnotationFailurePolicy, appsv1beta1.AnnotationTimeoutSeconds)
			if _, err := sets[0].Patch(t.Context(), first, types.MergePatchType, annotations, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			awaitEntry(t, &entries[0], func(w *admissionregistrationv1.MutatingWebhook) bool {
				return w != nil && *w.FailurePolicy == admissionregistrationv1.Ignore && *w.TimeoutSeconds == 7
			})
		}, 1, 0},
		{"its neighbour is deleted", func() {
			if err := deleteSet(t.Context(), second); err != nil {
				t.Fatal(err)
			}
			awaitEntry(t, &entries[1], func(w *admissionregistrationv1.MutatingWebhook) bool { return w == nil })
		}, 1, 0},
		{"another program removes the entry, and the leader restores it", func() {
			removeEntry(t, &entries[0])
			awaitEntry(t, &entries[0], func(w *admissionregistrationv1.MutatingWebhook) bool { return w != nil })
			await.Eventually(t, "a Pod with the sidecar", func(ctx context.Context) error {
				return testkit.TryPod(ctx, clients[0], namespace, first, "")
			})
		}, 1, 0},
		{"a change, and Pods at once", func() { mustChangeImage(t, first, "example.com/sidecar:v3") }, atOnce, atOnce},
	} {
		before, bundle := handshakes.Load(), bundleOf(t, &entries[0])
		step.do()
		err := testkit.Each(make([]struct{}, 20), step.parallel, func(struct{}) error {
			return testkit.TryPod(t.Context(), clients[0], namespace, first, "")
		})
		if err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		made, most := int(handshakes.Load()-before), step.most
		if !bytes.Equal(bundle, bundleOf(t, &entries[0])) {
			most += step.parallel // an API server has other connections for another CA bundle
		}
		testkit.Report(t, "%s: handshakes=%d", step.name, made)
		if made > most {
			t.Errorf("%s: there were %d handshakes for Pods, want %d at most", step.name, made, most)
		}
	}
}

// countHandshakes makes a server in this process the only endpoint of the webhooks' Service. The
// server passes requests on to the replica. It counts the connections whose first request is for a
// Pod.
func countHandshakes(t *testing.T, replica *deploy.Replica) *atomic.Int64 {
	t.Helper()
	leaf, err := certs.Decode(caSecret(t)).Current.IssueLeaf(certs.Subject{DNSNames: []string{deploy.ServerName}})
	if err != nil {
		t.Fatal(err)
	}
	endpoint := &deploy.Replica{Number: 15} // no replica and no other test has its address
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", stand.Address(endpoint.Number+1)+":9443")
	if err != nil {
		t.Fatal(err)
	}
	forward := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "https", Host: deploy.ServerName}) },
		Transport: replica.Trusting(t, "").Transport,
	}
	var handshakes atomic.Int64
	type isNew struct{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(isNew{}).(*atomic.Bool).Swap(false) && strings.HasPrefix(r.URL.Path, entry.PathSlots) {
			handshakes.Add(1)
		}
		forward.ServeHTTP(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*leaf}}
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		opened := new(atomic.Bool)
		opened.Store(true)
		return context.WithValue(ctx, isNew{}, opened)
	}
	server.StartTLS()
	if err := operator.AddEndpoint(t.Context(), endpoint); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := operator.RemoveEndpoint(context.WithoutCancel(t.Context()), endpoint); err != nil {
			t.Error(err)
		}
		server.CloseClientConnections()
		server.Close()
	})
	return &handshakes
}

// twoOfOneSlot returns two SidecarSets with entries of their own in the same slot.
func twoOfOneSlot(t *testing.T, namespace string) (sets [2]*unstructured.Unstructured) {
	t.Helper()
	slotOf := func(object *unstructured.Unstructured) int {
		set := &appsv1beta1.SidecarSet{}
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set)
		e, invalid := entry.Of(set)
		if err := errors.Join(err, invalid); err != nil {
			t.Fatal(err)
		}
		return e.Slot()
	}
	sets[0] = testkit.NewPatientSet("handshake-0", namespace)
	for i := 1; sets[1] == nil; i++ {
		if next := testkit.NewPatientSet(fmt.Sprintf("handshake-%d", i), namespace); slotOf(next) == slotOf(sets[0]) {
			sets[1] = next
		}
	}
	return sets
}

// webhookOf returns the webhook of an entry; nil if there is none.
func webhookOf(ctx context.Context, e *entry.Entry) (*admissionregistrationv1.MutatingWebhook, error) {
	slots, _, err := testkit.Slots(ctx, clients[0])
	if err != nil || slots[e.Slot()] == nil {
		return nil, err
	}
	all := slots[e.Slot()].Object.Webhooks
	at := slices.IndexFunc(all, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == e.Name })
	if at < 0 {
		return nil, nil
	}
	return &all[at], nil
}

// awaitEntry waits until the webhook of an entry is as it has to be.
func awaitEntry(t *testing.T, e *entry.Entry, is func(*admissionregistrationv1.MutatingWebhook) bool) {
	t.Helper()
	await.Eventually(t, "entry "+e.Name, func(ctx context.Context) error {
		webhook, err := webhookOf(ctx, e)
		if err == nil && !is(webhook) {
			err = fmt.Errorf("it is %v", webhook)
		}
		return err
	})
}

func bundleOf(t *testing.T, e *entry.Entry) []byte {
	t.Helper()
	webhook, err := webhookOf(t.Context(), e)
	if err != nil || webhook == nil {
		t.Fatalf("there is no entry %s: %v", e.Name, err)
	}
	return webhook.ClientConfig.CABundle
}

// removeEntry removes the webhook of an entry from its object, as another program may.
func removeEntry(t *testing.T, e *entry.Entry) {
	t.Helper()
	await.Eventually(t, "removing an entry", func(ctx context.Context) error {
		configurations := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations()
		object, err := configurations.Get(ctx, entry.ConfigurationName(e.Slot()), metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.Webhooks = slices.DeleteFunc(object.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == e.Name })
		_, err = configurations.Update(ctx, object, metav1.UpdateOptions{})
		return err
	})
}
