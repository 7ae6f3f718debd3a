package entries

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/webhooks/server"
)

// AnswerBarrier is the server.Handler of barrier entries. It tells the creator of a probe
// which serial of a configuration the API server uses. The serial is in the path by which
// the API server calls, and the answer puts it into an annotation of the probe. Other
// requests are allowed without a change. See entryplan.BarrierPath.
func AnswerBarrier(ctx context.Context, w http.ResponseWriter, r server.Request) error {
	// API servers have connections for each path, and this path changes with every
	// SidecarSet. If its connections stayed open for 90 s, too many would be open, and
	// connections for Pods would be closed.
	w.Header().Set("Connection", "close")
	configuration, serial, ok := entryplan.ParseBarrierPath(r.Path)
	return server.Review(func(_ context.Context, request *admissionv1.AdmissionRequest) (answer server.Answer, err error) {
		var object metav1.PartialObjectMetadata
		if !ok || request.DryRun == nil || !*request.DryRun || request.Operation != admissionv1.Create || request.Resource.Resource != "configmaps" {
			return answer, nil
		}
		if err := json.Unmarshal(request.Object.Raw, &object); err != nil || object.Labels[entryplan.LabelBarrier] != configuration {
			return answer, nil //nolint:nilerr // an object that is not a barrier's is allowed as it is
		}
		answer.Patch, err = server.PatchOf(barrierPatch(object.Annotations, serial))
		return answer, err
	})(ctx, w, r)
}

// barrierPatch adds the annotation to those of the object.
func barrierPatch(annotations map[string]string, serial int64) []jsonpatch.Operation {
	value := strconv.FormatInt(serial, 10)
	if annotations == nil {
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations", map[string]string{entryplan.AnnotationBarrier: value})}
	}
	key := strings.ReplaceAll(entryplan.AnnotationBarrier, "/", "~1")
	return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations/"+key, value)}
}
