package inject_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/revision"
)

// world is a random Pod and random SidecarSets that select it. Names come from
// a small set, so that they meet. Some SidecarSets name a recorded revision.
type world struct {
	pod     map[string]any
	sets    []*inject.Compiled
	history map[string]*inject.Compiled
	draws   map[string]float64 // by SidecarSet
}

func newWorld(t testing.TB, seed uint64) world { return buildWorld(t, seed, false) }

// enforcedWorld is a world in which most SidecarSets are enforced.
func enforcedWorld(t testing.TB, seed uint64) world { return buildWorld(t, seed, true) }

func buildWorld(t testing.TB, seed uint64, enforced bool) world {
	t.Helper()
	r := &random{Rand: rand.New(rand.NewPCG(seed, 7))}
	w := world{pod: r.pod(), history: map[string]*inject.Compiled{}, draws: map[string]float64{}}
	for i := range 1 + r.IntN(4) {
		name := fmt.Sprint("set-", i)
		object := r.sidecarSet(name, i)
		if enforced && !r.oneIn(3) {
			object["metadata"].(map[string]any)["annotations"].(map[string]any)[appsv1beta1.AnnotationEnforce] = "true"
		}
		w.draws[name] = r.Float64()
		refers := r.oneIn(3)
		if refers {
			r.refer(object["spec"].(map[string]any), name+"-old")
		}
		current := fixtures.Compiled(t, object)
		w.sets = append(w.sets, current)
		if refers {
			w.history[name] = compileRecorded(t, current, name+"-old", r.sidecarSet(name, i))
		}
	}
	return w
}

// refer makes the spec inject a recorded revision, always or by chance.
func (r *random) refer(spec map[string]any, revision string) {
	strategy, _ := spec["injectionStrategy"].(map[string]any)
	if strategy == nil {
		strategy = map[string]any{}
		spec["injectionStrategy"] = strategy
	}
	strategy["revision"] = map[string]any{"revisionName": revision, "policy": r.pick("Always", "Partial")}
	update := map[string]any{"type": "RollingUpdate", "partition": r.pick("0%", "50%", "100%")}
	if r.oneIn(3) {
		update["selector"] = map[string]any{"matchExpressions": []any{map[string]any{"key": "from", "operator": r.pick("Exists", "DoesNotExist")}}}
	}
	if r.oneIn(6) {
		update["paused"] = true
	}
	spec["updateStrategy"] = update
}

// compileRecorded compiles the revision that would have been recorded of another object.
func compileRecorded(t testing.TB, current *inject.Compiled, name string, object map[string]any) *inject.Compiled {
	t.Helper()
	data, err := revision.Data(object["spec"].(map[string]any))
	if err != nil {
		t.Fatalf("Data: %v", err)
	}
	recorded := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}, Data: runtime.RawExtension{Raw: data}}
	for key, value := range object["metadata"].(map[string]any)["annotations"].(map[string]any) {
		recorded.Annotations[key] = value.(string)
	}
	compiled, err := inject.CompileRevision(current, recorded)
	if err != nil {
		t.Fatalf("CompileRevision: %v", err)
	}
	return compiled
}

// input makes all SidecarSets candidates for a Pod.
func (w world) input(t testing.TB, pod map[string]any) inject.Input {
	in := inject.Input{Pod: fixtures.View(t, pod), Now: fixtures.Now}
	for _, p := range w.sets {
		in.Candidates = append(in.Candidates, inject.Candidate{Current: p, History: w.history[p.Name()], Draw: w.draws[p.Name()]})
	}
	return in
}

type random struct {
	*rand.Rand
}

// oneIn is true in one of n cases.
func (r *random) oneIn(n int) bool { return r.IntN(n) == 0 }

func (r *random) pick(options ...string) string { return options[r.IntN(len(options))] }

func (r *random) pod() map[string]any {
	b := fixtures.Pod("web").Container("app", r.pick("app:v1", "app:v2")).With("invented", map[string]any{"by": "the user", "n": r.IntN(9)})
	r.podParts(b)
	if r.oneIn(3) {
		b.InitContainer("migrate", "app:v1").With("invented", []any{r.IntN(9), nil, 1.5})
	}
	if r.oneIn(2) {
		b.Container("second", "app:v1").Env("A", r.pick("1", "<&>", "\u2028", `"\`))
		r.podParts(b)
	}
	for i := range r.IntN(3) {
		if r.oneIn(3) {
			b.Container(fmt.Sprint("c-0-", i, r.pick("", "-1", "-2")), r.pick("x:1", "empty:1")).Injected()
		}
	}
	for i := range r.IntN(3) {
		b.Volume(fmt.Sprint("v-", i))
	}
	if r.oneIn(3) {
		b.PullSecret("s-0").PullSecret("s-0")
	}
	if r.oneIn(2) {
		b.Annotation("k/a~b", r.pick("", "1", `{"a":{"b":1}}`, `{"c":"<&>"}`))
	}
	if r.oneIn(3) {
		b.Annotation("kruise.io/sidecarset-hash", r.pick("garbage", `{"set-0":"old"}`, `{"zoo":{"hash":"h","x":[1, 2]}}`, `{"set-1":{"hash":"old"}}`))
	}
	if r.oneIn(3) {
		b.Annotation("kruise.io/sidecarset-working-hotupgrade-container", r.pick("garbage", `{"zoo":"zoo-2"}`, `{"c-0-0":"c-0-0-2"}`))
	}
	if r.oneIn(3) {
		b.Annotation("kruise.io/sidecarset-injected-list", r.pick("zoo", ",,", "set-0,zoo"))
	}
	if r.oneIn(2) {
		b.Label("from", r.pick("app", "second", "c-0-0"))
	}
	if r.oneIn(3) {
		b.Annotation("k/from", r.pick("app", "second", ""))
	}
	return b.Obj()
}

// podParts gives a container of the Pod what sidecars may take from it.
func (r *random) podParts(b *fixtures.PodBuilder) {
	for range r.IntN(4) {
		b.Env(r.pick("A", "B", "C"), r.pick("1", "<&>", "\u2028"))
	}
	var mounts, devices []any
	for range r.IntN(4) {
		mounts = append(mounts, map[string]any{
			"name": fmt.Sprint("v-", r.IntN(3)), "mountPath": r.pick("/m", "/n", "/dev/x"), "subPathExpr": r.pick("", "$(A)/$(B)", "$(C"), "invented": r.IntN(9),
		})
		devices = append(devices, map[string]any{"name": fmt.Sprint("d-", r.IntN(3)), "devicePath": r.pick("/dev/x", "/dev/y", "/n")})
	}
	if r.oneIn(3) {
		b.With("resources", map[string]any{"limits": map[string]any{"cpu": r.pick("1", "100m"), "memory": r.pick("1Gi", "101")}})
	}
	if mounts != nil {
		b.With("volumeMounts", mounts).With("volumeDevices", devices)
	}
}

func (r *random) sidecarSet(name string, n int) map[string]any {
	b := fixtures.SidecarSet(name)
	for i := range r.IntN(3) {
		r.container(b.Container(fmt.Sprintf("c-%d-%d", n, i), r.pick("x:1", "x:2")))
	}
	for i := range r.IntN(3) {
		r.container(b.InitContainer(fmt.Sprintf("%s-%d-%d", r.pick("a", "z"), n, i), "x:1"))
	}
	if r.oneIn(12) {
		b.Container(r.pick("app", "c-0-0", "migrate"), "x:1")
	}
	for i := range 4 {
		b.VolumeOf(fmt.Sprint("d-", i), "persistentVolumeClaim", map[string]any{"claimName": "d"})
		b.VolumeOf(fmt.Sprint("v-", i), r.pick("emptyDir", "inventedSource"), map[string]any{"medium": r.pick("", "Memory")})
	}
	for i := range r.IntN(3) {
		b.PullSecret(fmt.Sprint("s-", i))
	}
	for range r.IntN(3) {
		b.PatchAnnotation(r.pick("Retain", "Overwrite", "MergePatchJson"), r.pick("k/a~b", "other"), r.pick(`{"a":{"b":null}}`, `{"n":1.0}`, `{}`))
	}
	if r.oneIn(4) {
		b.PatchAnnotation(r.pick("Retain", "Overwrite"), "k/from", r.pick("app", "second"))
	}
	if r.oneIn(8) {
		b.Paused()
	}
	if r.oneIn(8) {
		b.CanaryOf(fmt.Sprint("set-", r.IntN(4)))
	}
	if r.oneIn(2) {
		b.LatestRevision(name + "-abc")
	}
	return b.Map()
}

func (r *random) container(b *fixtures.SidecarSetBuilder) {
	if r.oneIn(2) {
		b.AfterApp()
	}
	if r.oneIn(2) {
		b.BeforeApp()
	}
	if r.oneIn(3) {
		b.Env(r.pick("A", "IS_INJECTED"), r.pick("no", "<&>\x01"))
	}
	if r.oneIn(3) {
		b.With("invented", map[string]any{"deep": []any{r.IntN(5), nil, "x"}})
	}
	for range r.IntN(3) {
		b.Mount(fmt.Sprint("v-", r.IntN(4)), "/m")
	}
	if r.oneIn(4) {
		b.Device(fmt.Sprint("d-", r.IntN(4)), "/dev/x")
	}
	if r.oneIn(4) {
		b.With("shareVolumePolicy", enabled)
	}
	if r.oneIn(4) {
		b.With("shareVolumeDevicePolicy", enabled)
	}
	if r.oneIn(4) {
		b.With("transferEnv", transferOf(r.pick("app", "second", "nobody", "c-0-0"), "B", r.pick("A", "IS_INJECTED"), "A"))
	}
	if r.oneIn(4) {
		field := r.pick("metadata.labels['from']", "metadata.annotations['k/from']", "metadata.name")
		b.With("transferEnv", []any{
			transferOf("second", "A")[0],
			map[string]any{"sourceContainerName": "app", "sourceContainerNameFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": field}}, "envNames": []any{"C", "A", "C"}},
		})
	}
	if r.oneIn(4) {
		b.With("upgradeStrategy", hot)
	}
	if r.oneIn(4) {
		b.With("resourcesPolicy", map[string]any{
			"targetContainersMode": r.pick("sum", "max"), "targetContainersNameRegex": r.pick("", "app", "c-", "."),
			"resourcesExpr": map[string]any{
				"limits":   map[string]any{"cpu": r.pick("cpu/3", "CPU-500m"), "memory": "max(memory*10%, 16Mi)"},
				"requests": map[string]any{"memory": "memory*10%"},
			},
		})
	}
	if r.oneIn(4) {
		b.With("restartPolicy", "Always") // the operator ignores it on a container
	}
}
