// Package scale reports what many Pods cost: how many are admitted and updated in a second, how
// often a status is written, and how much memory and processor time the operator needs. A watch of
// its own recounts everything. Each phase prints its figures in a line that begins with FIGURES;
// docs/performance.md quotes them. It is no test, and runs by hand.
//
// PODS and SETS are the numbers of Pods and SidecarSets. The leader has no limit of requests for
// rollouts, so that the API server is the limit.
package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
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
	// creators is how many Pods, or SidecarSets, are created or written at the same time.
	creators = 32
)

var (
	cluster *stand.Cluster
	pods    = number("PODS", 10000)
	sets    = number("SETS", 100)
)

func TestMain(m *testing.M) {
	options := stand.Options{Full: true, Namespace: true, Nodes: (pods + podsPerNode - 1) / podsPerNode}
	if os.Getenv(stand.GarbageVariable) == "" {
		_ = os.Setenv(stand.GarbageVariable, "100") // as in a user's cluster: these figures are costs
	}
	os.Exit(stand.Main(m, options, func(_ context.Context, c *stand.Cluster) error {
		cluster = c
		return nil
	}))
}

func number(variable string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// run is the one scenario of this package.
type run struct {
	api       client.WithWatch
	clients   kubernetes.Interface
	namespace string
	names     []string // of SidecarSets
	per       int      // Pods of each SidecarSet
	watching  *observer
	replicas  [2]*deploy.Replica // controller and webhook
	refused   atomic.Int64       // creations that failed because an API server or a replica was overloaded
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
	r := &run{api: api, clients: clients, namespace: testkit.Namespace(t, api, nil), per: pods / sets}
	// The leader starts first, since it makes the certificate. With these times, it keeps its Lease even on a
	// machine that is overloaded.
	for i, process := range [2]struct {
		number int
		args   []string
	}{
		{11, []string{"--role=controller", "--rollout-qps=0", "--leader-elect-lease-duration=120s", "--leader-elect-renew-deadline=90s", "--leader-elect-retry-period=5s"}},
		{1, []string{"--role=webhook"}},
	} {
		replica, err := operator.StartReplicaUnready(t.Context(), process.number, process.args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(replica.Process.Stop)
		if err := replica.AwaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.replicas[i] = replica
	}
	if err := operator.AddEndpoint(t.Context(), r.replicas[1]); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitCalled(t, api)
	r.watching = observe(t, clients, r.namespace)

	r.apply(t)
	r.admit(t)
	r.roll(t)
}

// phase runs one part, and prints its own figures and what it cost.
func (r *run) phase(t *testing.T, name string, do func(ctx context.Context) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(pods)*200*time.Millisecond)
	defer cancel()
	before, began := r.statusWrites(ctx, t), time.Now()
	var spent [2]time.Duration
	for i, replica := range r.replicas {
		replica.ForgetPeak(t)
		spent[i] = cpu(t, replica)
	}
	figures := do(ctx)
	r.await(ctx, t, "a status that agrees with a recount", func() error { return r.agree(ctx) })
	figures += fmt.Sprintf("; took=%s; writes of a status=%.0f", time.Since(began).Round(100*time.Millisecond), r.statusWrites(ctx, t)-before)
	for i, replica := range r.replicas {
		figures += fmt.Sprintf("; %s cpu=%s peak=%d MiB", []string{"controller", "webhook"}[i], (cpu(t, replica) - spent[i]).Round(10*time.Millisecond), replica.Memory(t, "VmHWM")>>20)
	}
	testkit.Report(t, "%s pods=%d sets=%d: %s", name, pods, sets, figures)
}

// statusWrites is how many writes of a SidecarSet's status the API server has answered.
func (r *run) statusWrites(ctx context.Context, t *testing.T) (writes float64) {
	t.Helper()
	text, err := r.clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `resource="sidecarsets"`) && strings.Contains(line, `subresource="status"`) && strings.Contains(line, `verb="PATCH"`) {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				t.Fatal(err)
			}
			writes += n
		}
	}
	return writes
}

// agree returns nil if each status has the numbers of the recount.
func (r *run) agree(ctx context.Context) error {
	for _, name := range r.names {
		set, err := testkit.Get(ctx, r.api, name)
		if err != nil {
			return err
		}
		says := counters{set.Status.MatchedPods, set.Status.UpdatedPods, set.Status.ReadyPods}
		if counted := r.watching.of(name); says != counted {
			return fmt.Errorf("the status of SidecarSet %s says %+v, a recount %+v", name, says, counted)
		}
	}
	return nil
}

// await repeats a check until it returns nil or ctx ends.
func (r *run) await(ctx context.Context, t *testing.T, what string, check func() error) {
	t.Helper()
	for {
		err := check()
		if err == nil {
			return
		}
		for _, replica := range r.replicas {
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
	r.watching.want(image(1))
	testkit.AwaitReady(t, r.api, r.names...)
}

func image(version int) string { return fmt.Sprintf("example.com/log:v%d", version) }

// admit creates all Pods.
func (r *run) admit(t *testing.T) {
	t.Helper()
	r.phase(t, "admit", func(ctx context.Context) string {
		numbers := make([]int, r.per*sets)
		for i := range numbers {
			numbers[i] = i
		}
		began := time.Now()
		if err := testkit.Each(numbers, creators, func(i int) error { return r.create(ctx, i) }); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		r.await(ctx, t, "Pods that run", r.watching.complete)
		return fmt.Sprintf("admitted %.0f Pods/s, %d tried again", float64(len(numbers))/took.Seconds(), r.refused.Load())
	})
}

// roll rolls out an image to all Pods, with a budget of a tenth of each SidecarSet.
func (r *run) roll(t *testing.T) {
	t.Helper()
	r.phase(t, "roll", func(ctx context.Context) string {
		began, image := time.Now(), image(2)
		r.watching.want(image)
		r.setImage(t, image)
		r.await(ctx, t, "a rollout", r.watching.complete)
		r.watching.mu.Lock()
		most := r.watching.most
		r.watching.mu.Unlock()
		if allowed := (r.per + 9) / 10; most > allowed {
			t.Errorf("%d Pods of one SidecarSet were disturbed at once, %d are allowed", most, allowed)
		}
		return fmt.Sprintf("rolled %.0f Pods/s, at most %d of %d Pods of a SidecarSet disturbed at once", float64(r.per*sets)/time.Since(began).Seconds(), most, r.per)
	})
}

func (r *run) setImage(t *testing.T, image string) {
	t.Helper()
	for i, name := range r.names {
		list := []string{"containers", "initContainers"}[i%2]
		patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/%s/0/image", "value": %q}]`, list, image)
		set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := r.api.Patch(t.Context(), set, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
}

// create creates one Pod. For every other Pod, the kubelet never shows that a container stops
// for its new image. If the API server fails because it is overloaded, create tries again.
func (r *run) create(ctx context.Context, i int) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: fmt.Sprint("pod-", i), Labels: map[string]string{setLabel: r.names[i%sets]}},
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

// counters are the numbers in the status of a SidecarSet, or those of a recount.
type counters struct{ matched, updated, ready int32 }

// seenPod is what the observer knows about a Pod: its SidecarSet, the image of its sidecar, and
// whether the Pod is Ready and its status shows that image.
type seenPod struct {
	set, image string
	runs       bool
}

// observer counts Pods by a watch of its own, which shares no code with the operator.
type observer struct {
	mu    sync.Mutex
	image string // that Pods are to have
	pods  map[string]seenPod
	down  map[string]int // Pods that do not run, by SidecarSet
	most  int            // of one SidecarSet at once
}

// observe watches the Pods of a namespace until the test ends.
func observe(t *testing.T, clients kubernetes.Interface, namespace string) *observer {
	t.Helper()
	o := &observer{pods: map[string]seenPod{}, down: map[string]int{}}
	factory := informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithNamespace(namespace))
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(pod any) { o.see(pod.(*corev1.Pod)) },
		UpdateFunc: func(_, pod any) { o.see(pod.(*corev1.Pod)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return o
}

func (o *observer) see(pod *corev1.Pod) {
	now := seenPod{set: pod.Labels[setLabel], image: testkit.WantedImage(pod, sidecarName)}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		now.runs = now.runs || s.Name == sidecarName && s.Image == now.image
	}
	now.runs = now.runs && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if before, known := o.pods[pod.Name]; known && !before.runs {
		o.down[now.set]--
	}
	if o.pods[pod.Name] = now; !now.runs {
		o.down[now.set]++
		o.most = max(o.most, o.down[now.set])
	}
}

// want says which image the Pods are to have from now on.
func (o *observer) want(image string) {
	o.mu.Lock()
	o.image, o.most = image, 0
	o.mu.Unlock()
}

// of counts the Pods of a SidecarSet; "" is all of them.
func (o *observer) of(set string) (c counters) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.pods {
		if set != "" && p.set != set {
			continue
		}
		c.matched++
		if p.image == o.image {
			c.updated++
		}
		if p.runs {
			c.ready++
		}
	}
	return c
}

// complete returns nil if all Pods have the wanted image, and run it.
func (o *observer) complete() error {
	if n, all := o.of(""), int32(pods/sets*sets); n != (counters{all, all, all}) {
		return fmt.Errorf("there are %+v Pods, want %d of each", n, all)
	}
	return nil
}

// cpu returns the processor time that a replica has taken.
func cpu(t *testing.T, r *deploy.Replica) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
