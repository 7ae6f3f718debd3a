package sidecarsets

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/defaults"
	"github.com/sidecarset/operator/internal/revision"
)

// NewDefaulter returns the webhook that defaults SidecarSets of either
// version and writes their hashes. It answers with operations for exactly what
// it filled in and never re-serialises the object, so that members which this
// build does not know survive. It has no side effects.
func NewDefaulter() *ctrladmission.Webhook {
	return &ctrladmission.Webhook{Handler: ctrladmission.HandlerFunc(defaultSidecarSet)}
}

func defaultSidecarSet(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
	if !writesSidecarSet(req) {
		return ctrladmission.Allowed("")
	}
	object, err := readSidecarSet(req.Object.Raw)
	if err != nil {
		return ctrladmission.Errored(http.StatusBadRequest, err)
	}
	if onlyFinalizes(object, req) {
		return ctrladmission.Allowed("")
	}
	if _, err := toHub(object); err != nil {
		return ctrladmission.Errored(http.StatusBadRequest, err)
	}
	if err := ctx.Err(); err != nil {
		return goneAway(err)
	}
	ops := defaults.Apply(object)
	if len(ops) > defaults.MaxOperations {
		return ctrladmission.Denied(fmt.Sprintf("%s: spec: more than %d members are missing that have defaults; write them down, or make lists of containers, ports and volumes shorter",
			describeSidecarSet(object), defaults.MaxOperations))
	}
	spec, _ := object["spec"].(map[string]any)
	withImage, withoutImage, err := revision.Hashes(spec)
	if err != nil {
		return ctrladmission.Errored(http.StatusBadRequest, fmt.Errorf("hashing %s: %w", describeSidecarSet(object), err))
	}
	return ctrladmission.Patched("", append(ops, annotate(object,
		annotation{appsv1beta1.AnnotationHash, withImage},
		annotation{appsv1beta1.AnnotationHashWithoutImage, withoutImage},
	)...)...)
}

// goneAway answers an API server that does not wait any more.
func goneAway(cause error) ctrladmission.Response {
	return ctrladmission.Errored(http.StatusServiceUnavailable, fmt.Errorf("the API server has ended the request: %w", cause))
}

// writesSidecarSet leaves out deletions, connections and the status, which are
// none of our business.
func writesSidecarSet(req ctrladmission.Request) bool {
	return req.SubResource == "" && (req.Operation == admissionv1.Create || req.Operation == admissionv1.Update)
}

// onlyFinalizes reports whether the object is being deleted and keeps what
// decides about it: its spec, labels and annotations. Such an update is let
// through unseen: it removes a finalizer, and an object that some rule refuses
// could not be got rid of otherwise. Until then it is injected, so that an
// annotation that makes it a canary, for one, is looked at as ever.
func onlyFinalizes(object map[string]any, req ctrladmission.Request) bool {
	metadata, _ := object["metadata"].(map[string]any)
	if req.Operation != admissionv1.Update || metadata["deletionTimestamp"] == nil {
		return false
	}
	old, err := readSidecarSet(req.OldObject.Raw)
	return err == nil && apiequality.Semantic.DeepEqual(deciding(object), deciding(old))
}

// deciding is what of a SidecarSet may decide what becomes of Pods.
func deciding(object map[string]any) []any {
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	annotations = maps.Clone(annotations)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	return []any{object["spec"], metadata["labels"], annotations}
}

type annotation struct{ key, value string }

// annotate returns the operations that set annotations to values they do not
// have yet. An absent parent is added whole.
func annotate(object map[string]any, wanted ...annotation) []jsonpatch.Operation {
	all := make(map[string]any, len(wanted))
	for _, a := range wanted {
		all[a.key] = a.value
	}
	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata", map[string]any{"annotations": all})}
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	if annotations == nil {
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations", all)}
	}
	var ops []jsonpatch.Operation
	for _, a := range wanted {
		path := "/metadata/annotations/" + strings.ReplaceAll(a.key, "/", "~1")
		if present, exists := annotations[a.key]; !exists {
			ops = append(ops, jsonpatch.NewOperation("add", path, a.value))
		} else if present != a.value {
			ops = append(ops, jsonpatch.NewOperation("replace", path, a.value))
		}
	}
	return ops
}
