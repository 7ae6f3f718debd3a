// Package scale shows what many Pods cost: how many are admitted and updated in a second, how
// old a status is, and how much memory, processor time and writes the operator needs. A watch
// of its own recounts everything. Each phase prints its figures in a line that begins with
// FIGURES; docs/performance.md quotes them.
//
// PODS and SETS are the numbers of Pods and SidecarSets, and ROUNDS says how often the operator
// and a bare client take turns. The leader has no limit of requests for rollouts, so that the
// API server is the limit.
package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

const (
	setLabel    = "scale.test/set"
	sidecarName = "log"
	// podsPerNode keeps kwok's work for one node small.
	podsPerNode = 500
	// creators create and write Pods at the same time.
	creators = 32
	// writers is how many Pods the bare client writes at the same time, as many as the operator.
	writers = 64
	// turn is how many SidecarSets the operator or the bare client updates in one turn.
	turn = 10
	// patience bounds the time of each phase, per Pod. It is not a claim about speed.
	patience = 200 * time.Millisecond
)

// byBareClient is the phase in which the operator has no part.
const byBareClient = "race/bare"

var (
	cluster *stand.Cluster
	pods    = number("PODS", 10000, 1)
	sets    = number("SETS", 100, 1)
	rounds  = number("ROUNDS", 3, 0)
)

func TestMain(m *testing.M) {
	options := stand.Options{Full: true, Namespace: true, Nodes: (pods + podsPerNode - 1) / podsPerNode}
	if os.Getenv(stand.GarbageVariable) == "" {
		_ = os.Setenv(stand.GarbageVariable, "100") // as in a user's cluster: these figures are costs
	}
	os.Exit(stand.Main(m, options, func(c *stand.Cluster) { cluster = c }))
}

func number(name string, otherwise, least int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n >= least {
		return n
	}
	return otherwise
}

// run is the one scenario of this package.
type run struct {
	api        client.WithWatch
	bare       client.Client // with the operator's credentials
	clients    kubernetes.Interface
	namespace  string
	names      []string // of SidecarSets
	each       int      // Pods of each SidecarSet
	watching   *observer
	webhook    *deploy.Replica
	controller *deploy.Replica
	churned    bool
	refused    atomic.Int64 // creations that failed because an API server or a replica was overloaded
}

func TestScale(t *testing.T) {
	api, err := testkit.NewClient(cluster)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	operator, err := deploy.Install(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	operator.NeedReplicas(t)
	r := &run{api: api, clients: clients, namespace: testkit.Namespace(t, api, nil), each: pods / sets}
	bare, err := operator.ConfigOf("controller")
	if err != nil {
		t.Fatal(err)
	}
	if r.bare, err = testkit.NewClientFor(bare); err != nil {
		t.Fatal(err)
	}
	// With these times, the leader keeps its Lease even on a machine that is overloaded.
	r.webhook = start(t, operator, 1, "--role=webhook")
	r.controller = start(t, operator, 11, "--role=controller", "--rollout-qps=0",
		"--leader-elect-lease-duration=120s", "--leader-elect-renew-deadline=90s", "--leader-elect-retry-period=5s")
	for _, replica := range []*deploy.Replica{r.webhook, r.controller} {
		if err := replica.AwaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := operator.AddEndpoint(t.Context(), r.webhook); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitCalled(t, api)
	r.watching = observe(t, api, r.namespace)

	r.apply(t)
	r.admit(t)
	r.churn(t)
	if rounds > 0 {
		r.race(t)
	}
	r.roll(t)
	r.retag(t)
}

func start(t *testing.T, operator *deploy.Operator, n int, args ...string) *deploy.Replica {
	t.Helper()
	replica, err := operator.StartReplicaUnready(t.Context(), n, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		replica.Process.Stop()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", replica.Name, replica.Tail(30))
		}
	})
	return replica
}

// phase runs one part, and prints its own figures and what it cost.
func (r *run) phase(t *testing.T, name string, do func(ctx context.Context) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(pods)*patience)
	defer cancel()
	before, err := writesSoFar(ctx, r.clients)
	if err != nil {
		t.Fatal(err)
	}
	replicas := []*deploy.Replica{r.webhook, r.controller}
	var spent [2]time.Duration
	for i, replica := range replicas {
		replica.ForgetPeak(t)
		spent[i] = cpu(t, replica)
	}
	r.watching.lagging()
	began := time.Now()
	says := do(ctx)
	r.await(ctx, t, "a status that agrees with a recount", func() error { return r.watching.agree(ctx, r.api, r.names) })
	took := time.Since(began)
	after, err := writesSoFar(ctx, r.clients)
	if err != nil {
		t.Fatal(err)
	}
	figures := fmt.Sprintf("%s; took=%s", says, took.Round(100*time.Millisecond))
	if lags := r.watching.lagging(); len(lags) > 0 && name != byBareClient { // the operator does not know the bare client's images
		figures += fmt.Sprintf("; status writes=%d age p50=%s p99=%s", len(lags),
			lags[len(lags)/2].Round(time.Millisecond), lags[len(lags)*99/100].Round(time.Millisecond))
	}
	for i, replica := range replicas {
		figures += fmt.Sprintf("; %s cpu=%s peak=%d MiB", []string{"webhook", "controller"}[i],
			(cpu(t, replica) - spent[i]).Round(10*time.Millisecond), replica.Memory(t, "VmHWM")>>20)
	}
	t.Logf("FIGURES %s pods=%d sets=%d: %s; writes: %s", name, pods, sets, figures, after.since(before))
}

// await repeats a check until it returns nil or ctx ends.
func (r *run) await(ctx context.Context, t *testing.T, what string, check func() error) {
	t.Helper()
	for {
		err := check()
		if err == nil {
			return
		}
		for _, replica := range []*deploy.Replica{r.webhook, r.controller} {
			if !replica.Running() {
				t.Fatalf("%s has ended; %s: %v", replica.Name, what, err)
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// apply makes the SidecarSets. Every other one has a native sidecar.
func (r *run) apply(t *testing.T) {
	t.Helper()
	for i := range sets {
		name := fmt.Sprintf("scale-%d", i)
		list, container := "containers", map[string]any{"name": sidecarName, "image": image(1)}
		if i%2 == 1 {
			list, container["restartPolicy"] = "initContainers", "Always"
		}
		set := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": appsv1beta1.GroupVersion.String(), "kind": appsv1beta1.Kind.Kind,
			"metadata": map[string]any{"name": name, "annotations": map[string]any{appsv1beta1.AnnotationMinReadySeconds: "0"}},
			"spec": map[string]any{
				"selector":          map[string]any{"matchLabels": map[string]any{setLabel: name}},
				"namespaceSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelMetadataName: r.namespace}},
				"updateStrategy":    map[string]any{"type": "RollingUpdate", "maxUnavailable": "10%"},
				list:                []any{container},
			},
		}}
		if err := r.api.Create(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		r.names = append(r.names, name)
	}
	r.watching.want(image(1), r.names...)
	testkit.AwaitReady(t, r.api, r.names...)
}

func image(version int) string { return fmt.Sprintf("example.com/log:v%d", version) }

// admit creates all Pods.
func (r *run) admit(t *testing.T) {
	t.Helper()
	r.phase(t, "admit", func(ctx context.Context) string {
		began := time.Now()
		r.each32(t, r.each*sets, func(i int) error { return r.create(ctx, i) })
		took := time.Since(began)
		r.await(ctx, t, "Pods that run", func() error { return r.watching.complete(r.names, int32(r.each)) })
		return fmt.Sprintf("admitted %.0f Pods/s, %d tried again", float64(r.each*sets)/took.Seconds(), r.refused.Load())
	})
}

// churn replaces a tenth of the Pods by Pods with other names, as controllers do.
func (r *run) churn(t *testing.T) {
	t.Helper()
	r.phase(t, "churn", func(ctx context.Context) string {
		n := r.each * sets / 10
		r.churned = true
		r.each32(t, n, func(i int) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: podName(i * 10)}}
			if err := r.api.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
				return err
			}
			return r.create(ctx, i*10)
		})
		r.await(ctx, t, "Pods that run", func() error { return r.watching.complete(r.names, int32(r.each)) })
		return fmt.Sprintf("%d Pods replaced", n)
	})
}

// rollBy calls begin, which begins a rollout, waits for its end, and returns its pace.
func (r *run) rollBy(ctx context.Context, t *testing.T, names []string, image string, begin func()) pace {
	t.Helper()
	r.watching.want(image, names...)
	begin()
	r.await(ctx, t, "a rollout", func() error { return r.watching.complete(names, int32(r.each)) })
	n, first, last := r.watching.rolled()
	return pace{written: float64(n) / last.Sub(first).Seconds(), running: float64(n) / time.Since(first).Seconds()}
}

// roll rolls out an image to all Pods, with a budget of a tenth of each SidecarSet.
func (r *run) roll(t *testing.T) {
	t.Helper()
	r.setBudget(t, "10%", r.names)
	r.phase(t, "roll", func(ctx context.Context) string {
		rate := r.rollBy(ctx, t, r.names, image(100), func() { r.setImage(t, image(100), r.names) })
		allowed := (r.each + 9) / 10
		most := r.watching.mostDisturbed(r.names)
		if most > allowed {
			t.Errorf("%d Pods of one SidecarSet were disturbed at once, %d are allowed", most, allowed)
		}
		return fmt.Sprintf("rolled %.0f Pods/s, at most %d of %d Pods of a SidecarSet disturbed at once, %d allowed", rate.written, most, r.each, allowed)
	})
}

// retag rolls out another tag of the same image to the Pods of two SidecarSets, one of which has
// a native sidecar. The digest does not show that a Pod is back, so the operator waits for 40 s.
func (r *run) retag(t *testing.T) {
	t.Helper()
	names := r.names[:min(2, len(r.names))]
	r.setBudget(t, "50%", names)
	for _, tag := range []string{"same-1", "same-2"} {
		r.phase(t, "retag", func(ctx context.Context) string {
			image := "example.com/log:" + tag
			rate := r.rollBy(ctx, t, names, image, func() { r.setImage(t, image, names) })
			allowed := (r.each + 1) / 2
			most := r.watching.mostDisturbed(names)
			if most > allowed {
				t.Errorf("%d Pods of one SidecarSet were disturbed at once, %d are allowed", most, allowed)
			}
			return fmt.Sprintf("%s: rolled %.0f Pods/s, at most %d of %d Pods of a SidecarSet disturbed at once, %d allowed", tag, rate.written, most, r.each, allowed)
		})
	}
}

func (r *run) setImage(t *testing.T, image string, names []string) {
	t.Helper()
	r.each32(t, len(names), func(i int) error {
		n, err := strconv.Atoi(strings.TrimPrefix(names[i], "scale-"))
		if err != nil {
			return err
		}
		list := "containers"
		if n%2 == 1 {
			list = "initContainers"
		}
		return r.patchSet(t.Context(), names[i], fmt.Sprintf(`[{"op": "replace", "path": "/spec/%s/0/image", "value": %q}]`, list, image))
	})
}

func (r *run) setBudget(t *testing.T, maxUnavailable string, names []string) {
	t.Helper()
	for _, name := range names {
		if err := r.patchSet(t.Context(), name, fmt.Sprintf(`[{"op": "add", "path": "/spec/updateStrategy/maxUnavailable", "value": %q}]`, maxUnavailable)); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *run) patchSet(ctx context.Context, name, patch string) error {
	set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return r.api.Patch(ctx, set, client.RawPatch(types.JSONPatchType, []byte(patch)))
}

func podName(i int) string { return fmt.Sprintf("pod-%d", i) }

// nameNow is the present name of the i-th Pod, or of the Pod that replaced it.
func (r *run) nameNow(i int) string {
	if r.churned && i%10 == 0 && i < r.each*sets/10*10 {
		return podName(i) + "-new"
	}
	return podName(i)
}

func (r *run) setOf(pod int) string { return r.names[pod%sets] }

// create creates one Pod. For every other Pod, the kubelet never shows that a container stops
// for its new image. If the API server fails because it is overloaded, create tries again.
func (r *run) create(ctx context.Context, i int) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: r.nameNow(i), Labels: map[string]string{setLabel: r.setOf(i)}},
		Spec: corev1.PodSpec{
			NodeName:   fmt.Sprintf("node-%d", i%((pods+podsPerNode-1)/podsPerNode)),
			Containers: []corev1.Container{{Name: "app", Image: "example.com/app:v1"}},
		},
	}
	if i/sets%2 == 1 {
		pod.Annotations = map[string]string{"stand.test/restart": "quiet"}
	}
	for again := false; ; again = true {
		err := r.api.Create(ctx, pod.DeepCopy())
		var status apierrors.APIStatus
		switch {
		case again && apierrors.IsAlreadyExists(err):
			return nil // the Pod was created before, and the answer was lost
		case !errors.As(err, &status) || status.Status().Code < 500 || ctx.Err() != nil:
			return err
		}
		r.refused.Add(1)
		<-time.After(100 * time.Millisecond)
	}
}

func (r *run) each32(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	parallel(t, creators, n, do)
}

// parallel calls do for 0 to n-1, with this many workers.
func parallel(t *testing.T, workers, n int, do func(i int) error) {
	t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[w] = do(i)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
