package sidecarsets

import (
	"context"
	"fmt"
	"maps"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/webhooks/server"
)

// written is a SidecarSet that a request creates or updates.
type written struct {
	request *admissionv1.AdmissionRequest
	sent    hub.Object // in the version of the request
	*hub.SidecarSet
}

// read decodes the SidecarSet of a request; nil if the webhooks need not look at it, because
// the request does not write its content. It fails if the SidecarSet has the wrong form, or
// if the API server no longer waits for the answer.
func read(ctx context.Context, req *admissionv1.AdmissionRequest) (*written, error) {
	if req.SubResource != "" || req.Operation != admissionv1.Create && req.Operation != admissionv1.Update {
		return nil, nil
	}
	w := &written{request: req}
	var err error
	if w.sent, err = hub.Read(req.Object.Raw); err != nil {
		return nil, badRequest(err)
	}
	if w.onlyFinalizes() {
		return nil, nil
	}
	if w.SidecarSet, err = w.sent.Hub(); err != nil {
		return nil, badRequest(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, &server.Refusal{Code: http.StatusServiceUnavailable, Message: fmt.Sprintf("the API server has ended the request: %v", err)}
	}
	return w, nil
}

func badRequest(err error) *server.Refusal {
	return &server.Refusal{Code: http.StatusBadRequest, Message: err.Error()}
}

// replaced returns the SidecarSet that an update replaces. It fills in the defaults, because
// the SidecarSet may have been stored without webhooks. If the SidecarSet cannot be read, no
// webhook has checked it. Then replaced returns nil, so that the rules for new objects apply
// to the update that repairs it.
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
func (w *written) old() hub.Object {
	if w.request.Operation != admissionv1.Update {
		return nil
	}
	old, _ := hub.Read(w.request.OldObject.Raw) // nil if it fails
	return old
}

// onlyFinalizes reports whether the object is being deleted and the update keeps its spec,
// labels and annotations (see deciding). Such an update removes a finalizer. It is allowed
// without a check, because otherwise an object that a rule refuses could not be deleted.
// Until it is deleted, the SidecarSet is injected. So an update of an annotation, for
// example one that makes it a canary, is checked as usual.
func (w *written) onlyFinalizes() bool {
	metadata, _ := w.sent["metadata"].(map[string]any)
	if metadata["deletionTimestamp"] == nil {
		return false
	}
	old := w.old()
	return old != nil && apiequality.Semantic.DeepEqual(deciding(w.sent), deciding(old))
}

// deciding returns the parts of a SidecarSet that may decide about Pods.
func deciding(object map[string]any) []any {
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	annotations = maps.Clone(annotations)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	return []any{object["spec"], metadata["labels"], annotations}
}
