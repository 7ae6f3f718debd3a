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
