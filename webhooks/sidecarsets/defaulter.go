package sidecarsets

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/conversion"
	"github.com/sidecarset/operator/internal/defaults"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/validation"
	"github.com/sidecarset/operator/webhooks/server"
)

// NewDefaulter returns the webhook that defaults SidecarSets of either version and
// writes their hashes. It removes members that the conversion to the stored version and back
// drops. Its answer has operations only for these members. It never encodes the whole object,
// so members that this build does not know survive. It has no side effects.
func NewDefaulter() server.Handler { return server.Review(fillIn) }

func fillIn(ctx context.Context, req *admissionv1.AdmissionRequest) (answer server.Answer, err error) {
	w, err := read(ctx, req)
	if w == nil {
		return answer, err
	}
	ops, warnings, err := w.removeUnkept()
	if err != nil {
		return answer, badRequest(err)
	}
	answer.Warnings = warnings
	ops = append(ops, defaults.Apply(w.sent)...)
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

// removeUnkept removes members of spec that the stored SidecarSet does not give back in the
// version of the request, and returns the operations. It warns if one of them has no effect.
//
// An API server compares the object that it is sent with the stored one in the version of the
// request. Without removeUnkept, each update with such a member would be a new generation.
func (w *written) removeUnkept() (ops []jsonpatch.Operation, warnings []string, err error) {
	spec, _ := w.sent["spec"].(map[string]any)
	remove := func(name string) {
		delete(spec, name)
		ops = append(ops, jsonpatch.NewOperation("remove", "/spec/"+name, nil)) // the names of the API have nothing to escape
	}
	both := spec["namespace"] != nil && spec["namespaceSelector"] != nil
	selects, names := both && w.isWritten("namespaceSelector"), both && w.isWritten("namespace")
	if selects && !names {
		remove("namespace") // a merge with the stored SidecarSet has left it
	}

	version, _ := w.sent["apiVersion"].(string)
	kept, err := conversion.Convert(w.sent, appsv1beta1.GroupVersion.String())
	if err == nil {
		kept, err = conversion.Convert(kept, version)
	}
	if err != nil {
		return nil, nil, err
	}
	keptSpec, _ := kept["spec"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		if _, ok := keptSpec[name]; ok {
			continue
		}
		if name == "namespaceSelector" && both && (selects || !names) {
			warnings = append(warnings, validation.IgnoredSelector)
		}
		remove(name)
	}
	return ops, warnings, nil
}

// isWritten reports whether, in the record of the API server, a client has written a member
// of spec in the version of the request, and not only left it as it was.
func (w *written) isWritten(member string) bool {
	metadata, _ := w.sent["metadata"].(map[string]any)
	managers, _ := metadata["managedFields"].([]any)
	return slices.ContainsFunc(managers, func(manager any) bool {
		webhook, _ := manager.(map[string]any)
		fields, _ := webhook["fieldsV1"].(map[string]any)
		spec, _ := fields["f:spec"].(map[string]any)
		_, wrote := spec["f:"+member]
		return wrote && webhook["apiVersion"] == w.sent["apiVersion"]
	})
}
