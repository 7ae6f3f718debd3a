// Package testkit has what all suites on a real API server need: clients, namespaces, and waits
// for what the operator says about a SidecarSet. It knows no suite and keeps no state. Only
// tests import it.
package testkit

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
)

// StartCluster starts a control plane of the test's own, which ends with the test.
func StartCluster(t testing.TB, options stand.Options) *stand.Cluster {
	t.Helper()
	c, err := stand.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("stopping the cluster: %v", err)
		}
	})
	return c
}

// NewClient returns a client of the cluster's first API server, as the administrator and
// without a limit of requests. It knows the types of Kubernetes, v1beta1 of SidecarSets, and
// the types that more adds.
func NewClient(c *stand.Cluster, more ...func(*runtime.Scheme) error) (client.WithWatch, error) {
	return NewClientFor(c.Config(), more...)
}

// NewClientFor is NewClient with this configuration.
func NewClientFor(config *rest.Config, more ...func(*runtime.Scheme) error) (client.WithWatch, error) {
	log.SetLogger(logr.Discard()) // without a logger, controller-runtime complains in the middle of a test's output
	scheme := runtime.NewScheme()
	for _, add := range append(more, clientgoscheme.AddToScheme, appsv1beta1.AddToScheme) {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

// Begin installs the operator on a cluster, starts its replicas, and returns when API servers call
// them. The replicas end with the cluster. A suite begins with it.
func Begin(ctx context.Context, c *stand.Cluster) (api client.WithWatch, o *deploy.Operator, replicas []*deploy.Replica, err error) {
	if api, err = NewClient(c); err != nil {
		return nil, nil, nil, err
	}
	if o, err = deploy.Install(ctx, c); err != nil {
		return nil, nil, nil, err
	}
	if replicas, err = o.StartReplicas(ctx); err != nil {
		return nil, nil, nil, err
	}
	return api, o, replicas, UntilCalled(ctx, api)
}

// Namespace makes a namespace of the test's own, with labels if given, and
// deletes it after the test without waiting for that.
func Namespace(t testing.TB, c client.Client, labels map[string]string) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}
	if err := c.Create(t.Context(), namespace); err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(c.Delete(context.WithoutCancel(t.Context()), namespace)); err != nil {
			t.Errorf("deleting namespace %s: %v", namespace.Name, err)
		}
	})
	return namespace.Name
}

// AwaitServiceAccount waits until Pods can be created in a new namespace of a whole control
// plane. The controller-manager creates the ServiceAccount that they need.
func AwaitServiceAccount(t testing.TB, c client.Client, namespace string) {
	t.Helper()
	await.Eventually(t, "the ServiceAccount of namespace "+namespace, func(ctx context.Context) error {
		return c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
	})
}

// Probe returns a SidecarSet that is valid, to create as a dry run: the API
// server then calls every webhook for SidecarSets.
func Probe() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": appsv1beta1.GroupVersion.String(), "kind": appsv1beta1.Kind.Kind,
		"metadata": map[string]any{"name": "probe"},
		"spec": map[string]any{
			"selector":   map[string]any{"matchLabels": map[string]any{"app": "probe"}},
			"containers": []any{map[string]any{"name": "side", "image": "example.com/side:v1"}},
		},
	}}
}

// UntilCalled waits until the API server reaches the webhooks for SidecarSets. It
// follows the EndpointSlices of the Service with a short delay.
func UntilCalled(ctx context.Context, c client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	return await.Until(ctx, func(ctx context.Context) error { return c.Create(ctx, Probe(), client.DryRunAll) })
}

// AwaitCalled is UntilCalled in a test.
func AwaitCalled(t testing.TB, c client.Client) {
	t.Helper()
	if err := UntilCalled(t.Context(), c); err != nil {
		t.Fatalf("waiting for webhooks that are reached: %v", err)
	}
}

// Observed returns an error unless the leader has observed the SidecarSet's generation.
func Observed(set *appsv1beta1.SidecarSet) error {
	if set.Status.ObservedGeneration != set.Generation {
		return fmt.Errorf("observed generation %d of %d", set.Status.ObservedGeneration, set.Generation)
	}
	return nil
}

// Ready returns an error unless the condition Ready says that the next selected Pod gets the
// current revision of the SidecarSet.
func Ready(set *appsv1beta1.SidecarSet) error {
	condition := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
	if condition == nil || condition.Status != metav1.ConditionTrue || condition.ObservedGeneration != set.Generation {
		return fmt.Errorf("condition Ready of SidecarSet %s, generation %d: %+v", set.Name, set.Generation, condition)
	}
	return nil
}

// Get returns the stored SidecarSet.
func Get(ctx context.Context, c client.Client, name string) (*appsv1beta1.SidecarSet, error) {
	set := &appsv1beta1.SidecarSet{}
	return set, c.Get(ctx, client.ObjectKey{Name: name}, set)
}

// Await waits until check returns nil for the stored SidecarSet, and returns the SidecarSet.
func Await(t testing.TB, c client.Client, name, what string, check func(*appsv1beta1.SidecarSet) error) *appsv1beta1.SidecarSet {
	t.Helper()
	var set *appsv1beta1.SidecarSet
	await.Eventually(t, what+" of SidecarSet "+name, func(ctx context.Context) (err error) {
		if set, err = Get(ctx, c, name); err != nil {
			return err
		}
		return check(set)
	})
	return set
}

// AwaitObserved waits until the leader has observed the SidecarSet's generation.
func AwaitObserved(t testing.TB, c client.Client, name string) *appsv1beta1.SidecarSet {
	t.Helper()
	return Await(t, c, name, "the status", Observed)
}

// AwaitReady waits until the SidecarSets are Ready.
func AwaitReady(t testing.TB, c client.Client, names ...string) {
	t.Helper()
	for _, name := range names {
		Await(t, c, name, "the condition Ready", Ready)
	}
}

// Counters are the numbers of Pods in a status.
type Counters struct{ Matched, Updated, Ready, UpdatedReady, Uninjected int32 }

// CountersOf returns the counters of a SidecarSet.
func CountersOf(set *appsv1beta1.SidecarSet) Counters {
	s := set.Status
	return Counters{s.MatchedPods, s.UpdatedPods, s.ReadyPods, s.UpdatedReadyPods, s.UninjectedPods}
}

// AwaitCounters waits for the counters of a SidecarSet.
func AwaitCounters(t testing.TB, c client.Client, name string, want Counters) {
	t.Helper()
	Await(t, c, name, "the counters", func(set *appsv1beta1.SidecarSet) error {
		if got := CountersOf(set); got != want {
			return fmt.Errorf("%+v, want %+v", got, want)
		}
		return nil
	})
}

// Kubectl runs kubectl as the administrator, and fails the test if it fails.
func Kubectl(t testing.TB, c *stand.Cluster, stdin string, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ContainerNames returns the names in order.
func ContainerNames(containers []corev1.Container) []string {
	names := make([]string, 0, len(containers))
	for _, c := range containers {
		names = append(names, c.Name)
	}
	return names
}
