package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tracker"
)

// rig is the SidecarSet controller, with its queue and the tracker, in a bubble of
// testing/synctest. The test provides the rest: the cache, the API server, the snapshot, the
// Pod watch, and readiness.
type rig struct {
	*SidecarSetReconciler

	sets    *fixtures.Snapshots
	api     *api
	judged  *judgements
	objects *announcer // the cache, of SidecarSets and their revisions
	counts  *announcer // the tracker, and readiness

	mu    sync.Mutex
	told  []string           // Events, as "<SidecarSet> <type> <reason>"
	begun []tracker.WorkItem // writes of Pods
}

func (r *rig) hear(e events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprint(e.About.Name, " ", e.Type, " ", e.Reason))
}

func (r *rig) heard() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.told)
}

func (r *rig) begin(items ...tracker.WorkItem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = append(r.begun, items...)
}

// announcer passes announcements on, unless it is dead.
type announcer struct{ dead atomic.Bool }

func (a *announcer) announce(to func()) {
	if !a.dead.Load() {
		to()
	}
}

// control runs a test against the controller, with SidecarSet "log" of this
// generation in the snapshot and the cache.
func control(t *testing.T, generation int64, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			sets:    &fixtures.Snapshots{},
			api:     newAPI(t, untyped(t, fixtures.LogSet(generation))),
			judged:  &judgements{known: map[judged]status.Readiness{}},
			objects: &announcer{}, counts: &announcer{},
		}
		r.api.changed = func(name string) { r.objects.announce(func() { r.wake.after(name, 0) }) }
		pods := newPodTracker(r.sets, nil, nil, newCollectors(prometheus.NewRegistry()))
		r.sets.SwapSnapshot(match.Build([]*inject.Compiled{compiledOf(t, fixtures.LogSet(generation))}, nil))
		r.SidecarSetReconciler = &SidecarSetReconciler{
			reader: r.api, status: r.api.Status(), sets: r.sets, pods: pods, readiness: r.judged, revisions: r.api.keeper(),
			debounce: newDebounce(), wake: &waker{}, m: pods.m,
			event: r.hear, write: r.begin,
		}
		pods.changed = func(name string, edited bool) {
			r.counts.announce(func() { r.changed(name, edited) })
		}
		r.judged.Notify(func(name string) { r.counts.announce(func() { r.changed(name, true) }) })
		r.start(t)
		test(t, r)
	})
}

func (r *rig) start(t *testing.T) {
	t.Helper()
	options := controllerOptions()
	options.Reconciler, options.SkipNameValidation = r, new(true)
	c, err := controller.NewUnmanaged("sidecarset", options)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Watch(r.wake); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = c.Start(ctx) })
	running.Go(func() { r.pods.own(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	synctest.Wait()
	r.api.announce() // a controller begins with all objects
	synctest.Wait()
}

// pass lets time pass, and waits until all work is done.
func (r *rig) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// feed makes Pods known, as a watch would after its first list.
func (r *rig) feed(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	err := r.pods.do(t.Context(), func(tl *tracker.Tracker) {
		for _, pod := range pods {
			tl.Set(podstate.FromPod(pod))
		}
		r.pods.synced.Store(true)
	})
	if err != nil {
		t.Fatalf("feeding Pods: %v", err)
	}
	synctest.Wait()
}

// edit changes the SidecarSet in the cache.
func (r *rig) edit(t *testing.T, change func(*unstructured.Unstructured) error) {
	t.Helper()
	if err := r.api.edit(change); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// compiled puts SidecarSets into the snapshot.
func (r *rig) compiled(t *testing.T, sets ...*appsv1beta1.SidecarSet) {
	t.Helper()
	var sidecarSets []*inject.Compiled
	for _, set := range sets {
		sidecarSets = append(sidecarSets, compiledOf(t, set))
	}
	r.sets.SwapSnapshot(match.Build(sidecarSets, nil))
	synctest.Wait()
}

// compiledOf compiles a SidecarSet. Its hash is that of the annotation, and it has none without images,
// as the Pods of the tests.
func compiledOf(t *testing.T, set *appsv1beta1.SidecarSet) *inject.Compiled {
	t.Helper()
	compiled, err := inject.Compile(untyped(t, set).Object)
	if err != nil {
		t.Fatal(err)
	}
	compiled.Hash, compiled.HashWithoutImage = set.Annotations[appsv1beta1.AnnotationHash], ""
	return compiled
}

// written returns the status that was written, which has to follow the rules for conditions.
func (r *rig) written(t *testing.T) appsv1beta1.SidecarSetStatus {
	t.Helper()
	s, err := statusOf(r.api.object())
	if err != nil {
		t.Fatalf("reading the status: %v", err)
	}
	return s
}

// wantWrites compares the number of writes since the beginning.
func (r *rig) wantWrites(t *testing.T, want int) {
	t.Helper()
	if got := r.api.writes(); got != want {
		t.Errorf("%d writes, want %d", got, want)
	}
}

func (r *rig) wantEvents(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.heard()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// judgements is a Readiness that a test fills.
type judgements struct {
	mu      sync.Mutex
	known   map[judged]status.Readiness
	changed func(string)
}

// judged is a generation of an object.
type judged struct {
	name       string
	uid        types.UID
	generation int64
}

func (j *judgements) Of(name string, uid types.UID, generation int64) *status.Readiness {
	j.mu.Lock()
	defer j.mu.Unlock()
	if known, ok := j.known[judged{name, uid, generation}]; ok {
		return &known
	}
	return nil
}

func (j *judgements) Notify(changed func(string)) { j.changed = changed }

// judge sets the readiness of a generation of SidecarSet "log".
func (r *rig) judge(uid types.UID, generation int64, known status.Readiness) {
	r.judged.mu.Lock()
	r.judged.known[judged{"log", uid, generation}] = known
	r.judged.mu.Unlock()
	r.judged.changed("log")
	synctest.Wait()
}

var (
	inForce   = status.Readiness{Ready: true, Reason: appsv1beta1.ReasonInjecting, Message: "The next Pod is injected."}
	notYet    = status.Readiness{Reason: appsv1beta1.ReasonPending, Message: "The entry is not written yet."}
	noReplica = status.Readiness{Reason: appsv1beta1.ReasonNoReplica, Message: "No replica answers."}
)

// api is an API server with one SidecarSet and its revisions, which are read as from a cache. Each status
// patch has to follow the rules for conditions.
type api struct {
	client.Client

	t       *testing.T
	changed func(sidecarSet string)
	behind  bool // the cache has not seen any revision

	mu      sync.Mutex
	history fixtures.ConditionHistory
	patches []map[string]any
	err     error // of the next patches of a status
	refuses error // of writes of revisions
}

func newAPI(t *testing.T, objects ...client.Object) *api {
	t.Helper()
	a := &api{t: t}
	a.Client = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithObjects(objects...).WithStatusSubresource(newSidecarSet()).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: a.patch,
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
				object.SetCreationTimestamp(metav1.Now())
				return a.unlessRefused(object, func() error { return c.Create(ctx, object, opts...) })
			},
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
				return a.unlessRefused(object, func() error { return c.Patch(ctx, object, patch, opts...) })
			},
			Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
				return a.unlessRefused(object, func() error { return c.Delete(ctx, object, opts...) })
			},
		}).Build()
	return a
}

func (a *api) unlessRefused(object client.Object, write func() error) error {
	a.mu.Lock()
	refuses := a.refuses
	a.mu.Unlock()
	if _, isRevision := object.(*appsv1.ControllerRevision); isRevision && refuses != nil {
		return refuses
	}
	return write()
}

// failWith makes writes of revisions fail from now on; nil makes them succeed.
func (a *api) failWith(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuses = err
}

func untyped(t *testing.T, set *appsv1beta1.SidecarSet) *unstructured.Unstructured {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		t.Fatalf("encoding a SidecarSet: %v", err)
	}
	return &unstructured.Unstructured{Object: object}
}

func (a *api) announce() { a.changed("log") }

func (a *api) object() *unstructured.Unstructured {
	a.t.Helper()
	object := newSidecarSet()
	if err := a.Get(a.t.Context(), client.ObjectKey{Name: "log"}, object); err != nil {
		a.t.Fatalf("reading the SidecarSet: %v", err)
	}
	return object
}

// edit changes the object and announces that; replace does the same.
func (a *api) edit(change func(*unstructured.Unstructured) error) error {
	object := a.object()
	if err := change(object); err != nil {
		return err
	}
	withStatus := object.DeepCopy()
	if err := a.Update(a.t.Context(), object); err != nil {
		return err
	}
	withStatus.SetResourceVersion(object.GetResourceVersion())
	err := a.Status().Update(a.t.Context(), withStatus)
	a.announce()
	return err
}

// replace deletes the object, and creates another one unless that is nil.
func (a *api) replace(object *unstructured.Unstructured) {
	a.t.Helper()
	err := a.Delete(a.t.Context(), a.object())
	if object != nil {
		err = errors.Join(err, a.Create(a.t.Context(), object))
	}
	if err != nil {
		a.t.Fatalf("replacing the SidecarSet: %v", err)
	}
	a.mu.Lock()
	a.history = fixtures.ConditionHistory{}
	a.mu.Unlock()
	a.announce()
}

// patch records a patch before it is carried out, and fails as the test says.
func (a *api) patch(ctx context.Context, c client.Client, of string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	defer a.announce()
	a.mu.Lock()
	defer a.mu.Unlock()
	data, err := patch.Data(object)
	if err != nil {
		return err
	}
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		return err
	}
	a.patches = append(a.patches, body)
	if a.err != nil {
		return a.err
	}
	if err := c.SubResource(of).Patch(ctx, object, patch, opts...); err != nil {
		return err
	}
	now, err := statusOf(object.(*unstructured.Unstructured))
	if err != nil {
		return err
	}
	for _, problem := range a.history.Add(object.GetGeneration(), now, time.Now()) {
		a.t.Error(problem)
	}
	return nil
}

func (a *api) writes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.patches)
}

func (a *api) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// webPod has SidecarSet "log" and is ready.
func webPod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("pod-", i)), Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{appsv1beta1.AnnotationInjectedList: "log", appsv1beta1.AnnotationHash: `{"log":{"hash":"h1"}}`},
		},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "log", Image: "log:1"}}},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "log", Image: "log:1", ImageID: "log@sha256:a"}},
		},
	}
}

func notReady(pod *corev1.Pod) *corev1.Pod {
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	return pod
}
