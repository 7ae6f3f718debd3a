package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/webhooks/server"
)

func refuse(refusal error) server.Handler {
	return func(context.Context, http.ResponseWriter, server.Request) error { return refusal }
}

// answered returns the answer of a handler that has no Server.
func answered(t *testing.T, handler server.Handler) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	handler.Answer(t.Context(), w, server.Request{Path: "/x", Body: []byte("{}")})
	if got := w.Header().Get("Content-Length"); got != fmt.Sprint(w.Body.Len()) {
		t.Errorf("Content-Length %s of %d bytes", got, w.Body.Len())
	}
	return w
}

func TestErrorsOfHandlersBecomeAStatus(t *testing.T) {
	tests := map[string]struct {
		err    error
		want   metav1.Status
		closes bool
	}{
		"a request that is not understood": {
			server.Malformed("AdmissionReview", "", errors.New("no <JSON>")),
			metav1.Status{Message: "sidecarset: malformed AdmissionReview: no <JSON>", Reason: metav1.StatusReasonBadRequest, Code: 400}, true,
		},
		"a replica that cannot answer yet, wrapped": {
			fmt.Errorf("wrapped: %w", server.Unavailable("not yet")),
			metav1.Status{Message: "sidecarset: not yet", Reason: metav1.StatusReasonServiceUnavailable, Code: 503, Details: &metav1.StatusDetails{RetryAfterSeconds: 1}}, false,
		},
		"a busy replica": {
			server.Busy(server.ReasonBusy, "it is busy"),
			metav1.Status{Message: "sidecarset: this replica of the operator cannot take the request, it is busy; try again in a moment", Reason: metav1.StatusReasonTooManyRequests, Code: 429, Details: &metav1.StatusDetails{RetryAfterSeconds: 1}}, false,
		},
		"a full memory": {
			server.Busy(server.ReasonMemory, "it is full"),
			metav1.Status{Message: "sidecarset: this replica of the operator cannot take the request, it is full; try again in a moment", Reason: metav1.StatusReasonTooManyRequests, Code: 429, Details: &metav1.StatusDetails{RetryAfterSeconds: 1}}, true,
		},
		"an error of another kind": {
			errors.New("out of luck"),
			metav1.Status{Message: "sidecarset: out of luck", Reason: metav1.StatusReasonInternalError, Code: 500}, false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := answered(t, refuse(tc.err))
			var got metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatalf("%v: %s", err, w.Body)
			}
			tc.want.TypeMeta, tc.want.Status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, metav1.StatusFailure
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			retry := ""
			if tc.want.Details != nil {
				retry = "1"
			}
			if w.Code != int(tc.want.Code) || w.Header().Get("Retry-After") != retry || (w.Header().Get("Connection") == "close") != tc.closes {
				t.Errorf("answered %d with header %v", w.Code, w.Header())
			}
		})
	}
}

func TestMessagesAboutMalformedRequestsAreShort(t *testing.T) {
	if got := len(server.Malformed("AdmissionReview", "", errors.New(strings.Repeat("x", 1<<20))).Error()); got > 600 {
		t.Errorf("%d bytes", got)
	}
}

// The server writes reviews as text. API servers decode each to the review that was meant.
func TestAnswersDecodeToTheIntendedReview(t *testing.T) {
	const patch = `[{"op":"add","path":"/a","value":"<b>"}]`
	causes := []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueRequired, Message: "say which", Field: "spec.x"}}
	tests := map[string]struct {
		handler server.Handler
		want    admissionv1.AdmissionResponse
	}{
		"allowed": {
			func(_ context.Context, w http.ResponseWriter, _ server.Request) error {
				server.Answer{UID: "u-1"}.Write(w)
				return nil
			},
			admissionv1.AdmissionResponse{UID: "u-1", Allowed: true},
		},
		"changed, with warnings and a note for the audit log": {
			func(_ context.Context, w http.ResponseWriter, _ server.Request) error {
				server.Answer{
					UID: `u-"2"`, Patch: func(b []byte) []byte { return append(b, patch...) },
					AuditKey: "injected", AuditValue: "a,b", Warnings: []string{"first", `the "second"`},
				}.Write(w)
				return nil
			},
			admissionv1.AdmissionResponse{UID: `u-"2"`, Allowed: true, Patch: []byte(patch), PatchType: new(admissionv1.PatchTypeJSONPatch),
				AuditAnnotations: map[string]string{"injected": "a,b"}, Warnings: []string{"first", `the "second"`}},
		},
		"denied, with causes and a warning": {
			refuse(&server.Refusal{UID: "u-3", Code: 422, Message: "does not fit", Details: &metav1.StatusDetails{Causes: causes}, Warnings: []string{"besides"}}),
			admissionv1.AdmissionResponse{UID: "u-3", Warnings: []string{"besides"}, Result: &metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Message: "does not fit", Reason: metav1.StatusReasonInvalid, Code: 422,
				Details: &metav1.StatusDetails{Causes: causes},
			}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := answered(t, tc.handler)
			var got admissionv1.AdmissionReview
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
				t.Fatalf("%d %s: %v", w.Code, w.Body, err)
			}
			want := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{Kind: "AdmissionReview", APIVersion: "admission.k8s.io/v1"}, Response: &tc.want}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("review (-want +got):\n%s", diff)
			}
		})
	}
}

// If a handler refuses a request by its own limit, that counts like a refusal of the gate.
func TestRefusalsOfHandlersAreCounted(t *testing.T) {
	s := start(t, server.Options{}, map[string]server.Handler{
		"/many": refuse(&server.Refusal{UID: "u", Code: http.StatusRequestEntityTooLarge, Message: "too many values", Reason: server.ReasonTooLarge}),
		"/busy": refuse(server.Busy(server.ReasonMemory, "it is busy with large reviews")),
		"/no":   refuse(server.Unavailable("not yet")),
	})
	registry := prometheus.NewRegistry()
	s.Instrument(registry)
	for path, want := range map[string]int{"/many": 200, "/busy": 429, "/no": 503} {
		if response, content := post(t, s.client(t), s.url(path), strings.NewReader("{}")); response.StatusCode != want {
			t.Errorf("%s: got %d %s", path, response.StatusCode, content)
		}
		if got := metric(t, registry, "sidecarset_webhook_requests_total", fmt.Sprint(want), path); got != 1 {
			t.Errorf("%s: %v requests are counted", path, got)
		}
	}
	for reason, want := range map[string]float64{"too_large": 1, "memory": 1, "busy": 0, "invalid": 0} {
		if got := metric(t, registry, "sidecarset_webhook_rejected_requests_total", "sidecarsets", reason); got != want {
			t.Errorf("%v refusals are counted as %s, want %v", got, reason, want)
		}
	}
}
