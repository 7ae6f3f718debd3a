package registration

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/server"
)

// AnswerProbe is the server.Handler of probe webhooks. It shows the creator of a probe that the
// API server calls: the answer repeats the label that the webhook selects the probe by as an
// annotation. Other requests are allowed without a change.
func AnswerProbe(ctx context.Context, w http.ResponseWriter, r server.Request) error {
	label, ok := podwebhook.ParseProbePath(r.Path)
	return server.Review(func(_ context.Context, request *admissionv1.AdmissionRequest) (answer server.Answer, err error) {
		var object metav1.PartialObjectMetadata
		if !ok || request.DryRun == nil || !*request.DryRun || request.Operation != admissionv1.Create || request.Resource.Resource != "configmaps" {
			return answer, nil
		}
		if err := json.Unmarshal(request.Object.Raw, &object); err != nil || object.Labels[label] == "" {
			return answer, nil //nolint:nilerr // an object that is not a probe is allowed as it is
		}
		answer.Patch, err = server.PatchOf(annotate(object.Annotations, label, object.Labels[label]))
		return answer, err
	})(ctx, w, r)
}

// annotate adds an annotation to those of the object.
func annotate(annotations map[string]string, key, value string) []jsonpatch.Operation {
	if annotations == nil {
		return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations", map[string]string{key: value})}
	}
	return []jsonpatch.Operation{jsonpatch.NewOperation("add", "/metadata/annotations/"+strings.ReplaceAll(key, "/", "~1"), value)}
}
