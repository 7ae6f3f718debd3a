package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
	"github.com/sidecarset/operator/test/stand"
)

// deadline is how long a test waits for something that should take milliseconds.
const deadline = stand.Patience

// eventually polls until ok, and fails with the last complaint otherwise.
func eventually(t *testing.T, ok func() error) {
	t.Helper()
	timeout, tick := time.After(deadline), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for err := ok(); err != nil; err = ok() {
		select {
		case <-timeout:
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

// sidecarSets is a snapshot that a test swaps.
type sidecarSets struct {
	mu       sync.Mutex
	catalog  *match.Snapshot
	problems map[string]error
	changed  []chan<- struct{}
}

func (s *sidecarSets) Current() *match.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalog
}

func (s *sidecarSets) Problem(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problems[name]
}

func (s *sidecarSets) Notify(ch chan<- struct{}) { s.changed = append(s.changed, ch) }

func (s *sidecarSets) swap(sets ...*appsv1beta1.SidecarSet) {
	programs := make([]*inject.Program, len(sets))
	for i, set := range sets {
		selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
		if err != nil {
			panic(err)
		}
		programs[i] = &inject.Program{
			Set: set, Selector: selector, NamespaceSelector: labels.Everything(),
			Hash: set.Annotations[appsv1beta1.AnnotationHash],
		}
	}
	s.mu.Lock()
	s.catalog = match.Build(programs, nil)
	s.mu.Unlock()
	for _, ch := range s.changed {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// logSet is SidecarSet "log" for Pods labelled app=web.
func logSet(generation int64) *appsv1beta1.SidecarSet {
	set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{
		Name: "log", UID: "set-1", Generation: generation, ResourceVersion: fmt.Sprint(100 + generation),
		Annotations: map[string]string{appsv1beta1.AnnotationHash: "h1"},
	}}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Containers = []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: "log", Image: "log:1"}}}
	return set
}

// webPod carries SidecarSet "log" and is ready.
func webPod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("pod-", i)), Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{appsv1beta1.AnnotationInjectedList: "log", appsv1beta1.AnnotationHash: `{"log":{"hash":"h1"}}`},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Image: "log:1"}}},
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

func testCollectors(t *testing.T) *collectors {
	t.Helper()
	m, err := newCollectors(prometheus.NewRegistry())
	if err != nil {
		t.Fatalf("metrics: %v", err)
	}
	return m
}

// ownedTally is a tally that runs without a Pod watch.
func ownedTally(t *testing.T, sets SidecarSets) *podTally {
	t.Helper()
	p := newPodTally(sets, nil, tally.Options{}, testCollectors(t))
	var done sync.WaitGroup
	done.Go(func() { p.own(t.Context()) })
	t.Cleanup(done.Wait)
	return p
}

// feed makes Pods known, as a watch would after its first list.
func (p *podTally) feed(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		record := podstate.FromPod(pod)
		if err := p.do(t.Context(), func(tl *tally.Tally) { tl.Set(record); p.synced = true }); err != nil {
			t.Fatalf("feeding Pods: %v", err)
		}
	}
}

// announcements is how many SidecarSets the owner wants to send on dirty, all
// that was fed considered.
func (p *podTally) announcements(t *testing.T) int {
	t.Helper()
	n := make(chan int, 1)
	if err := p.do(t.Context(), func(*tally.Tally) { n <- len(p.pending) }); err != nil {
		t.Fatal(err)
	}
	return <-n
}

// store is the part of an API server and its cache that the reconciler meets:
// one SidecarSet, reads from a cache that can lag, and status patches.
type store struct {
	client.SubResourceWriter

	mu      sync.Mutex
	cached  *unstructured.Unstructured // what Get returns; nil: NotFound
	patches []map[string]any
	err     error // of the next patches
}

func newStore(t *testing.T, set *appsv1beta1.SidecarSet) *store {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		t.Fatalf("encoding a SidecarSet: %v", err)
	}
	return &store{cached: &unstructured.Unstructured{Object: object}}
}

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

// Patch records the patch and merges its status into the cached object.
func (s *store) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	s.mu.Lock()
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
	return s.merge(body["status"])
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
