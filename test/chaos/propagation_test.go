package chaos

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// Whether Pods directly behind their SidecarSet are injected, and how soon a SidecarSet is
// Ready, with one API server.
func TestNoPodIsMissedOnOneAPIServer(t *testing.T) {
	testPropagation(t, "one", []int{0})
}

// The same with two API servers: the SidecarSet is created through one, and its Pods through
// the other. The operator knows both from the Service kubernetes, which it reads every ten
// seconds.
func TestNoPodIsMissedOnTwoAPIServers(t *testing.T) {
	publishAPIServers(t)
	testPropagation(t, "two", []int{0, 1})
}

func testPropagation(t *testing.T, prefix string, servers []int) {
	t.Helper()
	startReplicas(t, 2, steadyLeases...)
	// When this one is ready, there is a leader.
	applySidecarSet(t, newNamespace(t), "first")
	testkit.AwaitReady(t, api, "first")
	awaitOnly(t, "first") // what an earlier test left behind takes the room of SidecarSets that are being admitted
	p := &propagating{prefix: prefix, servers: servers}
	t.Run("a Pod directly behind its SidecarSet", p.podsBehind)
	t.Run("a SidecarSet and its Deployment in one apply", p.deploymentsBehind)
	t.Run("many at once", p.manyAtOnce)
	t.Run("a second SidecarSet with the same selectors", p.sameSelectors)
}

// propagating creates each object through the next of some API servers.
type propagating struct {
	prefix  string
	servers []int
}

func (p *propagating) server(i int) int { return p.servers[i%len(p.servers)] }

func (p *propagating) sets(i int) dynamic.ResourceInterface { return sets[p.server(i)] }

func (p *propagating) client(i int) kubernetes.Interface { return clients[p.server(i)] }

func (p *propagating) podsBehind(t *testing.T) {
	namespace := newNamespace(t)
	watch := watchReady(t)
	var created []time.Duration
	pods := watchMisses(t)
	failed, count := 0, testkit.Scaled(15, 300)
	for i := range count {
		name := fmt.Sprintf("%s-pod-%d", p.prefix, i)
		deleteAfter(t, name)
		begin := time.Now()
		how, err := create(t.Context(), p.sets(i), testkit.NewPatientSet(name, namespace))
		if err != nil {
			t.Fatal(err)
		}
		created = append(created, time.Since(begin))
		pod, err := p.client(i+1).CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(name)), metav1.CreateOptions{})
		if err != nil {
			failed++
			t.Error(err)
		} else {
			pods.add(pod, how, name)
		}
		watch.begin(name, begin)
	}
	testkit.Report(t, "pairs=%d failed=%d %s; creating the SidecarSet %s; Ready after %s", count, failed, pods, testkit.Spread(created), testkit.Spread(watch.await(t, count)))
	pods.check(t)
}

// missCounter counts the Pods behind SidecarSets that were created without sidecars.
type missCounter struct {
	pods     int
	missed   []string
	foretold int     // Pods missed of which this was to be expected
	before   float64 // calls that had been ignored before the test created a Pod
}

func watchMisses(t *testing.T) *missCounter {
	t.Helper()
	return &missCounter{before: ignoredCalls(t)}
}

// ignoredCalls is how often API servers have created a Pod although a call for it
// failed: until the leader has set the policy, an entry says Ignore, and waits for a second.
func ignoredCalls(t *testing.T) (ignored float64) {
	t.Helper()
	for i := range clients {
		ignored += metric(t, metricsOf(t, i), "apiserver_admission_webhook_fail_open_count", ".pods.sidecarset.io")
	}
	return ignored
}

// add counts a Pod whose SidecarSet was created in that way.
func (m *missCounter) add(pod *corev1.Pod, how creation, sidecars ...string) {
	m.pods++
	switch {
	case testkit.Injected(pod, sidecars):
	case how.mayMiss():
		m.foretold++
	default:
		m.missed = append(m.missed, fmt.Sprintf("%s of %s", pod.Name, pod.CreationTimestamp))
	}
}

// String is in the form that figures are reported in.
func (m *missCounter) String() string {
	return fmt.Sprintf("Pods=%d missed=%d missed-as-foretold=%d", m.pods, len(m.missed), m.foretold)
}

// check fails the test if a Pod was missed and nothing accounts for it. On a busy machine,
// Pods may be missed in three cases: a warning has foretold it; the SidecarSet may have been
// stored too late; or a call took longer than the entry waits before the leader has set its
// timeout. However busy the machine is, at most half of many Pods may be missed: otherwise
// SidecarSets are not in force when they are admitted.
func (m *missCounter) check(t *testing.T) {
	t.Helper()
	if missed := m.foretold + len(m.missed); m.pods >= 10 && 2*missed > m.pods {
		t.Errorf("%d Pods of %d were missed", missed, m.pods)
	}
	if len(m.missed) == 0 {
		return
	}
	if ignored := ignoredCalls(t) - m.before; len(m.missed) > int(ignored) {
		t.Errorf("%d Pods of %d were missed without a warning, and %.0f calls were ignored: %v", len(m.missed), m.pods, ignored, m.missed)
	}
}

// together is a SidecarSet and a Deployment whose Pods it selects.
const together = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
  updateStrategy: {type: NotUpdate}
  containers:
  - {name: NAME, image: "example.com/sidecar:v1", podInjectPolicy: AfterAppContainer}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: NS}
spec:
  replicas: 2
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      schedulerName: none
      containers: [{name: app, image: "example.com/app:v1"}]
`

func (p *propagating) deploymentsBehind(t *testing.T) {
	namespace := newNamespace(t)
	watch := watchReady(t)
	seen := watchMisses(t)
	count := testkit.Scaled(10, 200)
	created := map[string]creation{}
	for i := range count {
		name := fmt.Sprintf("%s-deployment-%d", p.prefix, i)
		deleteAfter(t, name)
		manifest := strings.NewReplacer("NAME", name, "NS", namespace).Replace(together)
		begin := time.Now()
		_, err := cluster.Kubectl(t.Context(), manifest, "--server="+cluster.APIServers[p.server(i)], "apply", "--warnings-as-errors", "-f", "-")
		warned := err != nil && strings.Contains(err.Error(), notInForce)
		if err != nil && !warned {
			t.Fatal(err)
		}
		created[name] = creation{warned, time.Since(begin)}
		watch.begin(name, begin)
	}
	await.Eventually(t, "the Pods of the Deployments", func(ctx context.Context) error {
		pods, err := clients[0].CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) != 2*count {
			return fmt.Errorf("there are %d Pods, want %d", len(pods.Items), 2*count)
		}
		*seen = missCounter{before: seen.before}
		for i := range pods.Items {
			name := pods.Items[i].Labels["app"]
			seen.add(&pods.Items[i], created[name], name)
		}
		return nil
	})
	testkit.Report(t, "applies=%d %s; Ready after %s", count, seen, testkit.Spread(watch.await(t, count)))
	seen.check(t)
}

func (p *propagating) manyAtOnce(t *testing.T) {
	namespace := newNamespace(t)
	watch := watchReady(t)
	var all []*unstructured.Unstructured
	count, begin := testkit.Scaled(20, 500), time.Now()
	for i := range count {
		name := fmt.Sprintf("%s-many-%d", p.prefix, i)
		all = append(all, testkit.NewPatientSet(name, namespace))
		watch.begin(name, begin)
	}
	createSets(t, all)
	created := time.Since(begin)
	times := watch.await(t, count)
	missed := 0
	for i, set := range all {
		if err := testkit.TryPod(t.Context(), p.client(i), namespace, set.GetName(), ""); err != nil {
			missed++
			t.Error(err)
		}
	}
	testkit.Report(t, "SidecarSets=%d created-within=%s all-ready-within=%s missed=%d; Ready after %s", count, testkit.Rounded(created), testkit.Rounded(testkit.Quantile(times, 1)), missed, testkit.Spread(times))
}

func (p *propagating) sameSelectors(t *testing.T) {
	namespace := newNamespace(t)
	pods := watchMisses(t)
	count := testkit.Scaled(2, 50)
	for i := range count {
		first, second := fmt.Sprintf("%s-same-%d-a", p.prefix, i), fmt.Sprintf("%s-same-%d-b", p.prefix, i)
		labels := testkit.AppLabels(fmt.Sprintf("same-%d", i))
		deleteAfter(t, first)
		deleteAfter(t, second)
		if _, err := p.sets(0).Create(t.Context(), testkit.NewSet(first, namespace, labels), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		testkit.AwaitReady(t, api, first)
		how, err := create(t.Context(), p.sets(i), testkit.NewSet(second, namespace, labels))
		if err != nil {
			t.Fatal(err)
		}
		pod, err := p.client(i+1).CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(labels), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pods.add(pod, how, first, second)
	}
	testkit.Report(t, "pairs=%d %s", count, pods)
	pods.check(t)
}

// readyWatch notes when SidecarSets become ready.
type readyWatch struct {
	mu     sync.Mutex
	begun  map[string]time.Time
	became map[string]time.Time
}

// watchReady watches until the end of the test.
func watchReady(t *testing.T) *readyWatch {
	t.Helper()
	w := &readyWatch{begun: map[string]time.Time{}, became: map[string]time.Time{}}
	watch, err := sets[0].Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Stop)
	go func() {
		for event := range watch.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			set := &appsv1beta1.SidecarSet{}
			if !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set) != nil || testkit.Ready(set) != nil {
				continue
			}
			w.mu.Lock()
			if _, known := w.became[set.Name]; !known {
				w.became[set.Name] = time.Now()
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// begin notes when a SidecarSet was applied.
func (w *readyWatch) begin(name string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun[name] = at
}

// await waits until count SidecarSets are ready, and returns how long each took.
func (w *readyWatch) await(t *testing.T, count int) []time.Duration {
	t.Helper()
	var times []time.Duration
	await.Within(t, 2*await.Patience, "SidecarSets that are ready", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		times = nil
		for name, begun := range w.begun {
			if became, ok := w.became[name]; ok {
				times = append(times, became.Sub(begun))
			}
		}
		if len(times) != count {
			return fmt.Errorf("%d of %d", len(times), count)
		}
		return nil
	})
	return times
}

// deleteAfter deletes a SidecarSet after the test.
func deleteAfter(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		if err := deleteSet(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
}
