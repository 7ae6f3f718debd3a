package sidecarsets

import (
	"context"
	"fmt"
	"maps"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/sidecarset/operator/internal/hub"
)

// written is a SidecarSet that a request creates or updates. Each of its objects is
// decoded once.
type written struct {
	request *admissionv1.AdmissionRequest
	sent    *hub.Object // in the version of the request
	*hub.SidecarSet
}

// read decodes the SidecarSet of a request, or returns the answer if there is none
// to look at: the request is not about its content, or has the wrong form, or the
// API server does not wait for the answer any more.
func read(ctx context.Context, req ctrladmission.Request) (*written, *ctrladmission.Response) {
	if req.SubResource != "" || req.Operation != admissionv1.Create && req.Operation != admissionv1.Update {
		return nil, new(ctrladmission.Allowed(""))
	}
	w := &written{request: &req.AdmissionRequest}
	var err error
	if w.sent, err = hub.Read(req.Object.Raw); err != nil {
		return nil, new(ctrladmission.Errored(http.StatusBadRequest, err))
	}
	if w.onlyFinalizes() {
		return nil, new(ctrladmission.Allowed(""))
	}
	if w.SidecarSet, err = w.sent.Hub(); err != nil {
		return nil, new(ctrladmission.Errored(http.StatusBadRequest, err))
	}
	if err := ctx.Err(); err != nil {
		return nil, new(ctrladmission.Errored(http.StatusServiceUnavailable, fmt.Errorf("the API server has ended the request: %w", err)))
	}
	return w, nil
}

// replaced returns the SidecarSet that an update replaces, defaulted, because it may
// have been stored without webhooks. If it cannot be read, no webhook has checked
// it; the update that repairs it is held to the rules for new objects, hence nil.
func (w *written) replaced() *hub.SidecarSet {
	old := w.old()
	if old == nil {
		return nil
	}
	old.Default()
	set, err := old.Hub()
	if err != nil {
		return nil
	}
	return set
}

// old is the object that an update replaces; nil if there is none, or it cannot be
// read.
func (w *written) old() *hub.Object {
	if w.request.Operation != admissionv1.Update {
		return nil
	}
	old, err := hub.Read(w.request.OldObject.Raw)
	if err != nil {
		return nil
	}
	return old
}

// onlyFinalizes reports whether the object is being deleted and the update keeps
// what decides about it: its spec, labels and annotations. Such an update removes a
// finalizer. It is allowed unseen, because an object that a rule refuses could not
// be deleted otherwise. Until it is gone, the SidecarSet is injected. So an update
// of an annotation, for example one that makes it a canary, is checked as usual.
func (w *written) onlyFinalizes() bool {
	metadata, _ := w.sent.Members["metadata"].(map[string]any)
	if metadata["deletionTimestamp"] == nil {
		return false
	}
	old := w.old()
	return old != nil && apiequality.Semantic.DeepEqual(deciding(w.sent.Members), deciding(old.Members))
}

// deciding is what of a SidecarSet may decide about Pods.
func deciding(object map[string]any) []any {
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	annotations = maps.Clone(annotations)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	return []any{object["spec"], metadata["labels"], annotations}
}
