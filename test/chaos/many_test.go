package chaos

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	admissionregistrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// First, what the webhooks cost an author who creates many SidecarSets at once. A second
// control plane takes turns with that of the operator. It has as many API servers (one in
// the short form, whose rates say nothing), the CustomResourceDefinition, and no operator.
//
// Then, what many webhook entries cost Pods that no SidecarSet selects. The entry objects
// are present and absent in turns. The replicas are stopped meanwhile, so that they do not
// restore the objects and use no processor time. Before that, the entry objects are deleted and
// applied again while the replicas run.
//
// This test is a report. It asserts only that everything is created, and that the leader restores
// the entries without writing again and again.
func TestManySidecarSetsBesideNone(t *testing.T) {
	f := startReplicas(t, 2, steadyLeases...)
	namespace := newNamespace(t)
	idle := f.resident(t)
	names := createManySets(t, namespace, testkit.Scaled(1, 2), testkit.Scaled(20, 500))
	testkit.Report(t, "MiB resident in each replica, idle: %v, with %d SidecarSets: %v", idle, len(names), f.resident(t))
	remakeEntries(t, namespace, names)

	f.kill()
	if err := f.withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer f.revive(t)
	with, without := newArm(nil, nil, nil), newArm(nil, nil, nil)
	for round := range testkit.Scaled(1, 40) + 1 {
		entries := removeEntries(t, namespace, names)
		without.createRound(t, namespace, 1, round)
		restoreEntries(t, namespace, names, entries)
		with.createRound(t, namespace, 1, round)
		emptyNamespace(t, namespace)
	}
	testkit.Report(t, "unselected Pods, SidecarSets=%d creations=%d %s; without entries %s; p50-ratio=%.2f p99-ratio=%.2f round-ratio=%.2f", len(names),
		len(with.times), testkit.Spread(with.times), testkit.Spread(without.times), ratio(with.times, without.times, 0.5), ratio(with.times, without.times, 0.99), roundRatio(with.medians, without.medians))
}

// resident is how many MiB are resident in each replica. Some 30 of them are pages of the
// binary.
func (f *fleet) resident(t *testing.T) (sizes []int) {
	t.Helper()
	for _, replica := range f.replicas {
		sizes = append(sizes, replica.Memory(t, "VmRSS")>>20)
	}
	return sizes
}

// createManySets creates SidecarSets in four ways that take turns, and returns the names of
// those that the operator admitted in the last round. A way creates all its SidecarSets of
// a round at the same time:
//   - on a control plane without webhooks;
//   - there, with a mutating and a validating webhook that answer at once. API servers call
//     them as they call a Service: over HTTP/1.1, where each concurrent call needs a
//     connection of its own. This is what any pair of webhooks costs;
//   - the same over HTTP/2, which API servers use only for a URL on loopback;
//   - with the operator.
//
// A round begins when the SidecarSets of the round before are deleted and their entries are
// gone. So the rates do not include later work for a SidecarSet. The first round is not in
// the report.
func createManySets(t *testing.T, namespace string, rounds, batch int) (names []string) {
	t.Helper()
	plain, err := stand.Start(testkit.Scaled(stand.Options{}, stand.Options{Full: true, Kwok: true, APIServers: len(cluster.APIServers)}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := plain.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := plain.Kubectl(t.Context(), "", "apply", "--server-side", "-k", filepath.Join(deploy.Root(), "config/crd")); err != nil {
		t.Fatal(err)
	}
	if err := plain.Established(t.Context(), "crd/"+deploy.CRD); err != nil {
		t.Fatal(err)
	}
	untyped, err := dynamic.NewForConfig(plain.Config())
	if err != nil {
		t.Fatal(err)
	}
	others := untyped.Resource(appsv1beta1.GroupVersion.WithResource("sidecarsets"))
	await.Eventually(t, "SidecarSets that are served", func(ctx context.Context) error {
		_, err := others.List(ctx, metav1.ListOptions{})
		return err
	})
	answerForSidecarSets(t, plain.Config(), "http1", false)
	answerForSidecarSets(t, plain.Config(), "http2", true)

	ways := []string{"without", "http1", "http2", "operator"}
	rates, ratios := map[string][]float64{}, map[string][]float64{}
	var ready []time.Duration
	remove := func(ctx context.Context) error {
		return testkit.Each(names, 16, func(name string) error { return deleteSet(ctx, name) })
	}
	t.Cleanup(func() {
		if err := remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	for round := range rounds + 1 { // the first warms up
		if err := others.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitOnly(t)
		for _, way := range ways {
			names = nil
			var all []*unstructured.Unstructured
			for i := range batch {
				name := fmt.Sprintf("many-%s-%d-%d", way, round, i)
				set := testkit.NewSet(name, namespace, testkit.AppLabels(name))
				set.SetLabels(map[string]string{wayLabel: way})
				all, names = append(all, set), append(names, name)
			}
			var client dynamic.ResourceInterface = others
			if way == "operator" {
				client = sets[0]
			}
			begin := time.Now()
			rate := createRate(t, client, all)
			if way == "operator" {
				testkit.AwaitReady(t, api, names...)
			}
			if round == 0 {
				continue
			}
			rates[way] = append(rates[way], rate)
			ratios[way] = append(ratios[way], rate/rates["without"][round-1])
			if way == "operator" {
				ready = append(ready, testkit.Rounded(time.Since(begin)))
			}
		}
	}
	testkit.Report(t, "SidecarSets=%d rounds=%d all-ready-within=%v", batch, rounds, ready)
	for _, way := range ways {
		testkit.Report(t, "SidecarSets=%d %s: created/s=%.0f ratio-to-without=%.2f", batch, way, rates[way], ratios[way])
	}
	return names
}

// wayLabel is the label that says in which way a SidecarSet is created.
const wayLabel = "way"

// answerForSidecarSets makes API servers send the SidecarSets of a way to a server that
// answers at once. As with the operator, they call a mutating and a validating webhook.
func answerForSidecarSets(t *testing.T, config *rest.Config, way string, http2 bool) {
	t.Helper()
	client, err := admissionregistrationclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	name, asks := way+".webhook.test", answering(t, noPatch, http2)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{wayLabel: way}}
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{appsv1beta1.GroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"sidecarsets"}},
	}}
	if _, err := client.MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: way},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: name, ClientConfig: asks, Rules: rules, ObjectSelector: selector,
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: way},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: name, ClientConfig: asks, Rules: rules, ObjectSelector: selector,
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createRate creates SidecarSets at the same time, and returns how many were created per
// second.
func createRate(t *testing.T, client dynamic.ResourceInterface, all []*unstructured.Unstructured) float64 {
	t.Helper()
	begin := time.Now()
	err := testkit.Each(all, len(all), func(set *unstructured.Unstructured) error {
		_, err := client.Create(t.Context(), set, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return float64(len(all)) / time.Since(begin).Seconds()
}

// remakeEntries deletes the entry objects and applies their manifest, as an administrator may. The
// leader writes all entries again, and then leaves them alone. Pods that no SidecarSet selects are
// timed before and after.
func remakeEntries(t *testing.T, namespace string, sidecarSets []string) {
	t.Helper()
	// The slot is deleted and made. The leader writes the entries, at most five times more if an API
	// server does not follow, and the CA bundles.
	const mostWrites = 10
	rounds := testkit.Scaled(1, 10)
	before, after := newArm(nil, nil, nil), newArm(nil, nil, nil)
	for round := range rounds + 1 {
		before.createRound(t, namespace, 1, round)
	}
	entries := entriesOf(t, sidecarSets...)
	var written [entry.Slots]int
	watched := testkit.WatchSlots(t, clients[0], func(changed int, _ [entry.Slots]*entry.Slot) { written[changed]++ })
	testkit.Kubectl(t, cluster, "", "delete", "mutatingwebhookconfigurations", "--selector="+entry.Labelled().String())
	testkit.Kubectl(t, cluster, "", "apply", "--server-side", "-f", filepath.Join(deploy.Root(), "config/webhook/entries.yaml"))
	applied := time.Now()
	await.Eventually(t, "all entries", func(ctx context.Context) error { return heldBySlots(ctx, entries) })
	restored := time.Since(applied)
	for round := range rounds {
		after.createRound(t, namespace, 1, round+1)
	}
	watched()
	emptyNamespace(t, namespace)
	most := slices.Max(written[:])
	testkit.Report(t, "entry objects deleted and applied again, SidecarSets=%d: all entries after %s, writes of a slot=%d at most; unselected Pods before: %s, directly after: %s, p50-ratio by round=%.2f",
		len(sidecarSets), testkit.Rounded(restored), most, testkit.Spread(before.times), testkit.Spread(after.times), ratiosTo(after.medians, testkit.Quantile(before.times, 0.5)))
	if most > mostWrites {
		t.Errorf("a slot was written %d times, want %d at most", most, mostWrites)
	}
}

// ratiosTo divides each time.
func ratiosTo(times []time.Duration, by time.Duration) (ratios []float64) {
	for _, d := range times {
		ratios = append(ratios, float64(d)/float64(by))
	}
	return ratios
}

// heldBySlots returns an error unless the slots have these entries, with their needs.
func heldBySlots(ctx context.Context, entries []entry.Entry) error {
	slots, _, err := testkit.Slots(ctx, clients[0])
	if err != nil {
		return err
	}
	for i := range entries {
		e := &entries[i]
		if slot := slots[e.Slot()]; slot == nil || !slot.Holds(e.Name, e.Needs[0]) {
			return fmt.Errorf("%s does not hold SidecarSet %s", entry.ConfigurationName(e.Slot()), e.Needs[0].Name)
		}
	}
	return nil
}

// removeEntries removes the entry objects, and waits until the API server calls no webhook
// for Pods.
func removeEntries(t *testing.T, namespace string, sidecarSets []string) (removed []admissionregistrationv1.MutatingWebhookConfiguration) {
	t.Helper()
	client := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations()
	list, err := client.List(t.Context(), metav1.ListOptions{LabelSelector: entry.Labelled().String()})
	if err != nil {
		t.Fatal(err)
	}
	for _, configuration := range list.Items {
		if err := client.Delete(t.Context(), configuration.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		removed = append(removed, configuration)
	}
	awaitEntries(t, namespace, sidecarSets, false)
	return removed
}

// restoreEntries is the reverse of removeEntries.
func restoreEntries(t *testing.T, namespace string, sidecarSets []string, removed []admissionregistrationv1.MutatingWebhookConfiguration) {
	t.Helper()
	for _, configuration := range removed {
		configuration.ObjectMeta = metav1.ObjectMeta{
			Name: configuration.Name, Labels: configuration.Labels, Annotations: configuration.Annotations, OwnerReferences: configuration.OwnerReferences,
		}
		if _, err := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &configuration, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitEntries(t, namespace, sidecarSets, true)
}

// awaitEntries waits until the API server refuses selected Pods, because no replica answers,
// or accepts them, because it calls no webhook.
func awaitEntries(t *testing.T, namespace string, sidecarSets []string, refused bool) {
	t.Helper()
	await.Eventually(t, "entries that are there or not", func(ctx context.Context) error {
		for _, name := range sidecarSets {
			_, err := clients[0].CoreV1().Pods(namespace).Create(ctx, testkit.NewPod(testkit.AppLabels(name)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			switch {
			case refused && err == nil:
				return fmt.Errorf("a Pod that SidecarSet %s selects is created", name)
			case !refused && err != nil:
				return err
			}
		}
		return nil
	})
}
