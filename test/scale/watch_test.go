package scale

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// sink is a store that keeps only keys, and passes on events.
type sink struct {
	event func(object any, gone bool)
	known map[string]any // by key, the result of keep
}

// keep returns the part of an object that the sink keeps: enough to report its deletion.
func keep(object any) any {
	switch o := object.(type) {
	case *corev1.Pod:
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	case *appsv1beta1.SidecarSet:
		return &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
	}
	return object
}

func (s *sink) Add(object any) error    { return s.set(object) }
func (s *sink) Update(object any) error { return s.set(object) }

func (s *sink) set(object any) error {
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	if s.known == nil {
		s.known = map[string]any{}
	}
	s.known[key] = keep(object)
	s.event(object, false)
	return nil
}

func (s *sink) Delete(object any) error {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	if last, ok := s.known[key]; ok {
		delete(s.known, key)
		s.event(last, true)
	}
	return nil
}

func (s *sink) Replace(objects []any, _ string) error {
	gone := s.known
	s.known = map[string]any{}
	for _, object := range objects {
		if err := s.set(object); err != nil {
			return err
		}
		key, _ := cache.MetaNamespaceKeyFunc(object)
		delete(gone, key)
	}
	for _, object := range gone {
		s.event(object, true)
	}
	return nil
}

func (s *sink) Resync() error { return nil }

// listWatch lists and watches objects of one kind.
func listWatch(api client.WithWatch, list client.ObjectList, options ...client.ListOption) cache.ListerWatcher {
	raw := func(o metav1.ListOptions) []client.ListOption {
		return append([]client.ListOption{&client.ListOptions{Raw: &o}}, options...)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			into := list.DeepCopyObject().(client.ObjectList)
			return into, api.List(ctx, into, raw(o)...)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.Watch(ctx, list.DeepCopyObject().(client.ObjectList), raw(o)...)
		},
	}
}
