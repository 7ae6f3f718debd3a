package controllers

import (
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
)

// deadline is how long a test waits for something that takes milliseconds.
const deadline = 2 * time.Minute

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

func (s *sidecarSets) problem(name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems[name] = err
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
