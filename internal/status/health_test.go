package status_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// asObject returns the stored object with a status.
func asObject(t *testing.T, s appsv1beta1.SidecarSetStatus, injectionPaused bool) *unstructured.Unstructured {
	t.Helper()
	set := &appsv1beta1.SidecarSet{Status: s}
	set.Name, set.Generation = "log", s.ObservedGeneration
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.Spec.InjectionStrategy.Paused = injectionPaused
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: object}
}

// read returns what a tool reads in an object.
func read(t *testing.T, object *unstructured.Unstructured, by func(*unstructured.Unstructured) (string, error)) string {
	t.Helper()
	health, err := by(object)
	if err != nil {
		t.Fatal(err)
	}
	return health
}
