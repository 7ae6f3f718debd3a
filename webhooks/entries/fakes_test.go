package entries

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
)

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
		programs[i] = &inject.Program{Set: set, Selector: selector, NamespaceSelector: labels.Everything()}
	}
	s.mu.Lock()
	s.catalog = match.Build(programs, nil)
	s.mu.Unlock()
	for _, ch := range s.changed {
		signal(ch)
	}
}

// logSet is SidecarSet "log" for Pods labelled app=web.
func logSet(generation int64) *appsv1beta1.SidecarSet {
	set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{
		Name: "log", UID: "set-1", Generation: generation, ResourceVersion: fmt.Sprint(100 + generation),
	}}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Containers = []appsv1beta1.SidecarContainer{{Container: corev1.Container{Name: "log", Image: "log:1"}}}
	return set
}
