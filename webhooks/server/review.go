package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Request is what a Handler gets: a POST of JSON whose body has been read as a whole and is not
// empty.
type Request struct {
	Path string
	// Body is valid until the Handler returns.
	Body []byte
}

// Handler answers a request on w, or returns an error instead: a Refusal, or a
// failure of the operator, which is answered with status 500. ctx ends a little
// before the API server stops waiting, and when the client goes away.
type Handler func(ctx context.Context, w http.ResponseWriter, r Request) error

// Answer answers one request. It returns the Refusal that was the answer; nil if h
// answered.
func (h Handler) Answer(ctx context.Context, w http.ResponseWriter, r Request) *Refusal {
	err := h(ctx, w, r)
	if err == nil {
		return nil
	}
	refusal := refusalOf(err)
	refusal.answer(ctx, w, r.Path)
	return refusal
}

// ServeHTTP implements http.Handler, so that a Handler can be used without a Server. Each
// request is bounded. All requests together are not.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	newLimiter(defaultLimits()[GroupPods], defaultBodyTimeout, defaultWriteTimeout).admit(h).ServeHTTP(w, r)
}

// Review returns a Handler that decodes the whole AdmissionReview. decide returns an
// Answer without a UID, or an error, which denies the request.
func Review(decide func(ctx context.Context, request *admissionv1.AdmissionRequest) (Answer, error)) Handler {
	return func(ctx context.Context, w http.ResponseWriter, r Request) error {
		request, err := readReview(r.Body)
		if err != nil {
			return Malformed("AdmissionReview", "", err)
		}
		answer, err := decide(ctx, request)
		if err != nil {
			denial := *refusalOf(err)
			denial.UID = string(request.UID)
			return &denial
		}
		answer.UID = string(request.UID)
		answer.Write(w)
		return nil
	}
}

func readReview(document []byte) (*admissionv1.AdmissionRequest, error) {
	var review admissionv1.AdmissionReview
	if err := utiljson.Unmarshal(document, &review); err != nil {
		return nil, err
	}
	switch {
	case review.Kind != "AdmissionReview" || review.APIVersion != admissionv1.SchemeGroupVersion.String():
		return nil, fmt.Errorf("expected kind AdmissionReview of %s, not kind %q of %q", admissionv1.SchemeGroupVersion, review.Kind, review.APIVersion)
	case review.Request == nil:
		return nil, errors.New("request is missing")
	case review.Request.UID == "":
		return nil, errors.New("request.uid is missing")
	}
	return review.Request, nil
}

// PatchOf returns the Patch of an Answer; nil if there are no operations.
func PatchOf[T any](operations []T) (func([]byte) []byte, error) {
	if len(operations) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(operations)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	return func(dst []byte) []byte { return append(dst, text...) }, nil
}
