package sidecarsets

import (
	"context"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/defaults"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/webhooks/server"
)

// NewDefaulter returns the webhook that defaults SidecarSets of either version and
// writes their hashes. Its answer has operations only for the members that it filled in. It
// never encodes the whole object, so members that this build does not know survive. It has
// no side effects.
func NewDefaulter() server.Handler { return server.Review(fillIn) }

func fillIn(ctx context.Context, req *admissionv1.AdmissionRequest) (answer server.Answer, err error) {
	w, err := read(ctx, req)
	if w == nil {
		return answer, err
	}
	ops := defaults.Apply(w.sent)
	if len(ops) > defaults.MaxOperations {
		return answer, &server.Refusal{Code: http.StatusForbidden, Message: fmt.Sprintf("%s: spec: more than %d members with defaults are missing; set them in the manifest, or shorten the lists of containers, ports and volumes",
			w.sent.Describe(), defaults.MaxOperations)}
	}
	spec, _ := w.sent["spec"].(map[string]any)
	withImage, withoutImage, err := revision.Hashes(spec)
	if err != nil {
		return answer, badRequest(fmt.Errorf("hashing %s: %w", w.sent.Describe(), err))
	}
	answer.Patch, err = server.PatchOf(append(ops, defaults.Annotate(w.sent, map[string]string{
		appsv1beta1.AnnotationHash: withImage, appsv1beta1.AnnotationHashWithoutImage: withoutImage,
	})...))
	return answer, err
}
