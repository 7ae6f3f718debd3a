package chaos

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// What many SidecarSets cost those who create them. A second control plane takes turns
// with that of the operator. It has as many API servers, the CustomResourceDefinition, and
// no webhook.
//
// What they cost those who create Pods that none of them selects. The objects with the
// entries are there and not there in turns. The replicas are stopped meanwhile, so that
// they do not put the objects back, and cost nothing else.
//
// This is a report. That everything is created is all it asserts.
func TestManySidecarSetsBesideNone(t *testing.T) {
	f := startReplicas(t, 2, steadyLeases...)
	namespace := newNamespace(t)
	idle := f.resident(t)
	names := createManySets(t, namespace, scaled(1, 4), scaled(20, 100))
	awaitSettled(t)
	report(t, "MiB resident in each replica, idle: %v, with %d SidecarSets: %v", idle, len(names), f.resident(t))

	f.kill()
	if err := f.withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer f.revive(t)
	with, without := newArm(nil, nil, nil), newArm(nil, nil, nil)
	for round := range scaled(1, 40) + 1 {
		entries := removeEntries(t, namespace, names)
		without.createRound(t, namespace, 1, round)
		restoreEntries(t, namespace, names, entries)
		with.createRound(t, namespace, 1, round)
		emptyNamespace(t, namespace)
	}
	report(t, "unselected Pods, SidecarSets=%d creations=%d %s; without entries %s; p50-ratio=%.2f p99-ratio=%.2f round-ratio=%.2f", len(names),
		len(with.times), spread(with.times), spread(without.times), ratio(with.times, without.times, 0.5), ratio(with.times, without.times, 0.99), roundRatio(with.medians, without.medians))
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

// createManySets creates SidecarSets, on both control planes in turns. Those of a batch
// are created at the same time.
func createManySets(t *testing.T, namespace string, batches, batch int) (names []string) {
	t.Helper()
	plain, err := stand.Start(stand.Options{Full: true, Kwok: true, APIServers: len(cluster.APIServers)})
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
	if _, err := plain.Kubectl(t.Context(), "", "wait", "--for=condition=Established", "--timeout="+await.Patience.String(), "crd/"+deploy.CRD); err != nil {
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

	var begin time.Time
	var ours, theirs, ratios []float64
	for i := range batches + 1 { // the first warms up
		var all []*unstructured.Unstructured
		for j := range batch {
			name := fmt.Sprintf("many-%d", i*batch+j)
			names = append(names, name)
			all = append(all, newSet(name, namespace, podLabels(name)))
		}
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			if err := each(all, 16, func(set *unstructured.Unstructured) error { return deleteSet(ctx, set.GetName()) }); err != nil {
				t.Error(err)
			}
		})
		without := createRate(t, others, all)
		with := createRate(t, sets[0], all)
		if i == 0 {
			begin = time.Now()
			continue
		}
		ours, theirs, ratios = append(ours, with), append(theirs, without), append(ratios, with/without)
	}
	testkit.AwaitReady(t, api, names...)
	report(t, "SidecarSets=%d all-ready-within=%s created/s=%.0f without-webhooks=%.0f ratio=%.2f", batches*batch, rounded(time.Since(begin)),
		middle(ours), middle(theirs), middle(ratios))
	return names
}

// createRate creates SidecarSets at the same time, and returns how many in a second.
func createRate(t *testing.T, client dynamic.ResourceInterface, all []*unstructured.Unstructured) float64 {
	t.Helper()
	begin := time.Now()
	err := each(all, len(all), func(set *unstructured.Unstructured) error {
		_, err := client.Create(t.Context(), set, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return float64(len(all)) / time.Since(begin).Seconds()
}

// removeEntries removes the objects with the entries, and waits until the API server
// calls for no Pod.
func removeEntries(t *testing.T, namespace string, sidecarSets []string) (removed []admissionregistrationv1.MutatingWebhookConfiguration) {
	t.Helper()
	client := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations()
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, configuration := range list.Items {
		if !strings.HasPrefix(configuration.Name, "sidecarset-pods-") {
			continue
		}
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

// awaitEntries waits until the API server refuses selected Pods, since nothing answers,
// or accepts them, since it does not call.
func awaitEntries(t *testing.T, namespace string, sidecarSets []string, refused bool) {
	t.Helper()
	await.Eventually(t, "entries that are there or not", func(ctx context.Context) error {
		for _, name := range sidecarSets {
			_, err := clients[0].CoreV1().Pods(namespace).Create(ctx, NewPod(podLabels(name)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
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

// middle is the median.
func middle(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
