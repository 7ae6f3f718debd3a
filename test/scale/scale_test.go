// Package scale reports what many Pods and many required SidecarSets cost, on a whole control plane. Each phase
// prints its figures in a line that begins with FIGURES; docs/performance.md quotes them. No suite runs these tests: they run by hand,
// one at a time.
//
// PODS and SETS are the numbers of Pods and SidecarSets. The leader has no limit of requests for
// rollouts, so that the API server is the limit.
package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
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
	// creators is how many Pods are created at the same time.
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

// run is the operator, and what one test has made.
type run struct {
	api       client.WithWatch
	operator  *deploy.Operator
	namespace string
	names     []string           // of SidecarSets
	replicas  [2]*deploy.Replica // controller and webhook
	refused   atomic.Int64       // creations that failed because an API server or a replica was overloaded
}

// begin installs the operator.
func begin(t *testing.T) *run {
	t.Helper()
	api, err := testkit.NewClient(cluster)
	if err != nil {
		t.Fatal(err)
	}
	operator, err := deploy.Install(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	operator.NeedReplicas(t)
	r := &run{api: api, operator: operator, namespace: testkit.Namespace(t, api, nil)}
	// The leader starts first, since it makes the certificate. With these times, it keeps its Lease even on a
	// machine that is overloaded.
	for i, process := range [2]struct {
		number int
		args   []string
	}{
		{11, []string{"--role=controller", "--rollout-qps=0", "--leader-elect-lease-duration=120s", "--leader-elect-renew-deadline=90s", "--leader-elect-retry-period=5s"}},
		{1, []string{"--role=webhook"}},
	} {
		r.replicas[i] = operator.StartApart(t, process.number, process.args...)
		if err := r.replicas[i].AwaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := operator.AddEndpoint(t.Context(), r.replicas[1]); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitCalled(t, api)
	return r
}

func TestScale(t *testing.T) {
	r := begin(t)
	r.apply(t)
	per := pods / sets
	r.phase(t, "admit", func(ctx context.Context) string {
		numbers := make([]int, per*sets)
		for i := range numbers {
			numbers[i] = i
		}
		began := time.Now()
		if err := testkit.Each(numbers, creators, func(i int) error { return r.create(ctx, i) }); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		r.await(ctx, t, per)
		return fmt.Sprintf("admitted %.0f Pods/s, %d tried again", float64(len(numbers))/took.Seconds(), r.refused.Load())
	})
	r.phase(t, "roll", func(ctx context.Context) string {
		disturbed, began := testkit.WatchDisturbed(t, r.api, r.namespace), time.Now()
		r.setImage(t, image(2))
		r.await(ctx, t, per)
		took := time.Since(began)
		disturbed.CatchUp(t)
		for _, pod := range disturbed.Pods() {
			if got := testkit.WantedImage(pod, sidecarName); got != image(2) || testkit.IsDisturbed(pod) {
				t.Errorf("the statuses count Pod %s as updated and ready; its image is %s, its status %+v", pod.Name, got, pod.Status)
			}
		}
		most, _ := disturbed.Count()
		if allowed := sets * ((per + 9) / 10); most > allowed {
			t.Errorf("%d Pods were disturbed at once, %d are allowed", most, allowed)
		}
		return fmt.Sprintf("rolled %.0f Pods/s, at most %d disturbed at once", float64(per*sets)/took.Seconds(), most)
	})
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
	figures += fmt.Sprintf("; took=%s; writes of a status=%.0f", time.Since(began).Round(100*time.Millisecond), r.statusWrites(ctx, t)-before)
	for i, replica := range r.replicas {
		figures += fmt.Sprintf("; %s cpu=%s peak=%d MiB", []string{"controller", "webhook"}[i], (cpu(t, replica) - spent[i]).Round(10*time.Millisecond), replica.Memory(t, "VmHWM")>>20)
	}
	testkit.Report(t, "%s pods=%d sets=%d: %s", name, pods, sets, figures)
}

// statusWrites is how many writes of a SidecarSet's status the API server has answered.
func (r *run) statusWrites(ctx context.Context, t *testing.T) float64 {
	t.Helper()
	text, err := r.operator.Clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	writes, err := testkit.SumOf(string(text), "apiserver_request_total", `resource="sidecarsets"`, `subresource="status"`, `verb="PATCH"`)
	if err != nil {
		t.Fatal(err)
	}
	return writes
}

// await waits until the status of each SidecarSet says that all of its Pods are updated and ready, as long as ctx allows.
func (r *run) await(ctx context.Context, t *testing.T, per int) {
	t.Helper()
	want := int32(per)
	for _, name := range r.names {
		for {
			set, err := testkit.Get(ctx, r.api, name)
			if err == nil && set.Generation == set.Status.ObservedGeneration && set.Status.MatchedPods == want && set.Status.UpdatedReadyPods == want {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatalf("SidecarSet %s: %+v, %v; want %d Pods that are updated and ready", name, set.Status, err, per)
			case <-time.After(100 * time.Millisecond):
			}
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
	testkit.AwaitReady(t, r.api, r.names...)
}

func image(version int) string { return fmt.Sprintf("example.com/log:v%d", version) }

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

// cpu returns the processor time that a replica has taken.
func cpu(t *testing.T, r *deploy.Replica) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	var user, system int64
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
