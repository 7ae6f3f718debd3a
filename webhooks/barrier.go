package webhooks

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/propagation"
	"github.com/sidecarset/operator/webhooks/server"
)

// barrierReview is what decides about a barrier probe.
type barrierReview struct {
	Request struct {
		UID       types.UID
		Operation admissionv1.Operation
		Resource  metav1.GroupVersionResource
		DryRun    bool
		Object    struct {
			Metadata struct{ Labels, Annotations map[string]string }
		}
	}
}

// answerBarrier tells the creator of a barrier probe by which serial of a
// configuration the API server called: it is in the path, and goes into an
// annotation. Anything else is allowed as it is. See package propagation.
func answerBarrier(w http.ResponseWriter, r *http.Request) {
	// API servers have connections for each path, and this one changes with every
	// SidecarSet: kept open for their 90 s, they would crowd out those for Pods.
	w.Header().Set("Connection", "close")
	configuration, serial, ok := propagation.ParseBarrierPath(r.URL.Path)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, server.MaxBarrierBytes))
	if err != nil {
		server.WriteRefusal(w, server.Refusal{Code: http.StatusBadRequest, Message: "reading the request body: " + err.Error()})
		return
	}
	var review barrierReview
	if err := json.Unmarshal(body, &review); err != nil || review.Request.UID == "" {
		server.WriteRefusal(w, server.Refusal{Code: http.StatusBadRequest, Message: "the body is no AdmissionReview with a request"})
		return
	}
	request := &review.Request
	if !ok || !request.DryRun || request.Operation != admissionv1.Create || request.Resource.Resource != "configmaps" ||
		request.Object.Metadata.Labels[propagation.LabelBarrier] != configuration {
		server.WriteAllowed(w, string(request.UID))
		return
	}
	writeReview(w, request.UID, barrierPatch(request.Object.Metadata.Annotations, serial))
}

// barrierPatch adds the annotation to those that there are.
func barrierPatch(annotations map[string]string, serial int64) []jsonpatch.Operation {
	value := strconv.FormatInt(serial, 10)
	if annotations == nil {
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations", map[string]string{propagation.AnnotationBarrier: value})}
	}
	key := strings.ReplaceAll(propagation.AnnotationBarrier, "/", "~1")
	return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations/"+key, value)}
}

// writeReview allows with a patch.
func writeReview(w http.ResponseWriter, uid types.UID, operations []jsonpatch.Operation) {
	patch, err := json.Marshal(operations)
	if err != nil {
		server.WriteRefusal(w, server.Refusal{Code: http.StatusInternalServerError, Message: "encoding the answer: " + err.Error()})
		return
	}
	answer, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: &admissionv1.AdmissionResponse{UID: uid, Allowed: true, Patch: patch, PatchType: new(admissionv1.PatchTypeJSONPatch)},
	})
	if err != nil {
		server.WriteRefusal(w, server.Refusal{Code: http.StatusInternalServerError, Message: "encoding the answer: " + err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // the API server is gone if this fails
}
