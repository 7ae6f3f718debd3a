package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tally"
)

// rig is the SidecarSet controller, with its queue and the tally, in a bubble of
// testing/synctest. What surrounds it is the test's: the cache, the API server, the
// snapshot, the Pod watch, and what is known of readiness.
type rig struct {
	*SidecarSetReconciler

	sets    *sidecarSets
	store   *store
	api     *revisionAPI
	judged  *judgements
	objects *announcer // the cache, of SidecarSets and their revisions
	counts  *announcer // the tally

	mu   sync.Mutex
	told []string // Events, as "<SidecarSet> <type> <reason>"
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

// announcer passes announcements on, unless it is dead.
type announcer struct {
	dead atomic.Bool
	lost atomic.Int32 // announcements while it was dead
}

func (a *announcer) announce(to func(string), sidecarSet string) {
	if a.dead.Load() {
		a.lost.Add(1)
		return
	}
	to(sidecarSet)
}

// control runs a test against the controller, with SidecarSet "log" of this
// generation in the snapshot and the cache.
func control(t *testing.T, generation int64, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			sets:    &sidecarSets{problems: map[string]error{}},
			api:     newRevisionAPI(),
			judged:  &judgements{known: map[judged]status.Readiness{}},
			objects: &announcer{}, counts: &announcer{},
		}
		r.store = newStore(t, logSet(generation), func(name string) { r.objects.announce(r.readinessChanged, name) })
		pods := newPodTally(r.sets, nil, tally.Options{}, newCollectors(prometheus.NewRegistry()))
		r.sets.swap(logSet(generation))
		r.SidecarSetReconciler = &SidecarSetReconciler{
			reader: r.store, status: r.store, sets: r.sets, pods: pods, readiness: r.judged, revisions: r.api.keeper(),
			pace: newPace(writeInterval), progress: newProgress(), wake: &waker{}, m: pods.m,
			tell: r.hear,
		}
		pods.changed = func(name string) { r.counts.announce(r.countsChanged, name) }
		r.judged.announcer = &announcer{}
		r.judged.Notify(r.readinessChanged)
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
	r.store.announce() // a controller begins with all objects
	synctest.Wait()
}

// pass lets time pass, and waits until everything has been done.
func (r *rig) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// feed makes Pods known, as a watch would after its first list.
func (r *rig) feed(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	err := r.pods.do(t.Context(), func(tl *tally.Tally) {
		for _, pod := range pods {
			tl.Set(podstate.FromPod(pod))
		}
		r.pods.synced = true
	})
	if err != nil {
		t.Fatalf("feeding Pods: %v", err)
	}
	synctest.Wait()
}

// edit changes the SidecarSet in the cache.
func (r *rig) edit(t *testing.T, change func(*unstructured.Unstructured) error) {
	t.Helper()
	if err := r.store.edit(change); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// compiled makes SidecarSets those of the snapshot.
func (r *rig) compiled(sets ...*appsv1beta1.SidecarSet) {
	r.sets.swap(sets...)
	synctest.Wait()
}

// status is what is written, and has to follow the rules for conditions.
func (r *rig) written(t *testing.T) appsv1beta1.SidecarSetStatus {
	t.Helper()
	s, err := statusOf(r.store.object())
	if err != nil {
		t.Fatalf("reading the status: %v", err)
	}
	return s
}

// wantWrites compares the number of writes since the beginning.
func (r *rig) wantWrites(t *testing.T, want int) {
	t.Helper()
	if got := r.store.writes(); got != want {
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
	*announcer

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

// judge makes something known of a generation of SidecarSet "log".
func (r *rig) judge(uid types.UID, generation int64, known status.Readiness) {
	r.judged.mu.Lock()
	r.judged.known[judged{"log", uid, generation}] = known
	r.judged.mu.Unlock()
	r.judged.announce(r.judged.changed, "log")
	synctest.Wait()
}

var (
	inForce   = status.Readiness{Ready: true, Reason: appsv1beta1.ReasonReady, Message: "The next Pod is injected."}
	notYet    = status.Readiness{Reason: appsv1beta1.ReasonEntryMissing, Message: "The entry is not written yet."}
	noReplica = status.Readiness{Reason: appsv1beta1.ReasonNoReplica, Message: "No replica answers."}
)

// store is the part of an API server and its cache that the reconciler meets: one
// SidecarSet, reads from a cache, and status patches. Each patch has to follow the
// rules for conditions.
type store struct {
	client.SubResourceWriter

	t       *testing.T
	changed func(sidecarSet string)

	mu      sync.Mutex
	cached  *unstructured.Unstructured // what Get returns; nil: NotFound
	history fixtures.ConditionHistory
	patches []map[string]any
	err     error // of the next patches
}

func newStore(t *testing.T, set *appsv1beta1.SidecarSet, changed func(sidecarSet string)) *store {
	t.Helper()
	return &store{t: t, cached: untyped(t, set), changed: changed}
}

func untyped(t *testing.T, set *appsv1beta1.SidecarSet) *unstructured.Unstructured {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		t.Fatalf("encoding a SidecarSet: %v", err)
	}
	return &unstructured.Unstructured{Object: object}
}

func (s *store) announce() { s.changed("log") }

func (s *store) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cached == nil {
		return apierrors.NewNotFound(appsv1beta1.Resource.GroupResource(), key.Name)
	}
	s.cached.DeepCopyInto(into.(*unstructured.Unstructured))
	return nil
}

func (s *store) List(context.Context, client.ObjectList, ...client.ListOption) error {
	panic("the reconciler lists nothing")
}

func (s *store) object() *unstructured.Unstructured {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cached.DeepCopy()
}

// edit changes the object and announces that; remove and replace do the same.
func (s *store) edit(change func(*unstructured.Unstructured) error) error {
	s.mu.Lock()
	err := change(s.cached)
	s.mu.Unlock()
	s.announce()
	return err
}

func (s *store) replace(object *unstructured.Unstructured) {
	s.mu.Lock()
	s.cached, s.history = object, fixtures.ConditionHistory{}
	s.mu.Unlock()
	s.announce()
}

// Patch records the patch and merges its status into the cached object.
func (s *store) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	s.mu.Lock()
	defer s.announce()
	defer s.mu.Unlock()
	data, err := patch.Data(object)
	if err != nil {
		return err
	}
	if patch.Type() != types.MergePatchType {
		return fmt.Errorf("patch of type %s", patch.Type())
	}
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		return err
	}
	s.patches = append(s.patches, body)
	if s.err != nil {
		return s.err
	}
	if err := s.merge(body["status"]); err != nil {
		return err
	}
	now, err := statusOf(s.cached)
	if err != nil {
		return err
	}
	for _, problem := range s.history.Add(s.cached.GetGeneration(), now, time.Now()) {
		s.t.Error(problem)
	}
	return nil
}

func (s *store) merge(patch any) error {
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Patch", "status": patch})
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{} // reads whole numbers as the cache does
	if err := u.UnmarshalJSON(text); err != nil {
		return err
	}
	members, _, err := unstructured.NestedMap(u.Object, "status")
	if err != nil {
		return err
	}
	for key, value := range members {
		if err := unstructured.SetNestedField(s.cached.Object, value, "status", key); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.patches)
}

func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}
