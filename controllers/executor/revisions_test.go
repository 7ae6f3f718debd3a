package executor

import (
	"context"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

func TestTheRevisionThatAPodRecordsIsFound(t *testing.T) {
	current := fixtures.Compiled(t, fixtures.SidecarSet("mesh").Container("log", "log:2").Map())
	current.Set.UID = "set"
	yes := true
	stored := map[string]*appsv1.ControllerRevision{}
	for name, data := range map[string]string{
		"mesh-1": `{"spec":{"$patch":"replace","containers":[{"name":"log","image":"log:1"}]}}`, "mesh-broken": `{`, "other-1": `{"spec":{"containers":[]}}`,
	} {
		r := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(data)}}
		r.Name, r.UID = name, types.UID(name)
		r.OwnerReferences = []metav1.OwnerReference{{Kind: "SidecarSet", Name: "mesh", UID: "set", Controller: &yes}}
		stored[name] = r
	}
	stored["other-1"].OwnerReferences[0].UID = "another"
	r := newRevisions(func(_ context.Context, name string) (*appsv1.ControllerRevision, error) {
		if name == "mesh-unread" {
			return nil, errors.New("no connection")
		}
		if found, ok := stored[name]; ok {
			return found, nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "controllerrevisions"}, name)
	})
	first, err := inject.CompileRevision(current, stored["mesh-1"])
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, hash, want string }{
		{"mesh-1", first.Hash, "log:1"}, {"mesh-1", current.Hash, ""}, {"mesh-1", "", ""},
		{"mesh-broken", first.Hash, ""}, {"other-1", first.Hash, ""}, {"mesh-gone", first.Hash, ""}, {"", first.Hash, ""},
	} {
		for range 2 { // the second time it is remembered
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				appsv1beta1.AnnotationHash: `{"mesh":{"hash":"` + tc.hash + `","controllerRevision":"` + tc.name + `"},"other":{"controllerRevision":"mesh-1"}}`,
			}}}
			compiled, err := r.previous(t.Context(), current, pod)
			image := ""
			if compiled != nil {
				image = compiled.Set.Spec.Containers[0].Image
			}
			if err != nil || image != tc.want {
				t.Errorf("%+v: image %q, %v", tc, image, err)
			}
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{appsv1beta1.AnnotationHash: `{"mesh":{"hash":"h","controllerRevision":"mesh-unread"}}`}}}
	if _, err := r.previous(t.Context(), current, pod); err == nil {
		t.Error("a revision that could not be read counts as one that does not exist")
	}
}
