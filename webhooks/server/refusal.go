package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// Refusal is every answer of the webhooks that does not allow a request. A Handler
// returns one as its error.
//
// A Refusal with a UID denies the object of that AdmissionReview, whatever the failure
// policy is: the user has to change something. A Refusal without a UID is an HTTP error,
// to which the API server applies the failure policy: the request cannot be understood, or
// this replica cannot decide. In both cases the API server shows the message to its user.
type Refusal struct {
	UID     string
	Code    int
	Message string
	// Details and Warnings go with a denial.
	Details  *metav1.StatusDetails
	Warnings []string
	// RetryAfter asks the API server to try again after so many seconds, within
	// its own time limit; the retry may reach another replica. 0 does not ask.
	RetryAfter int
	// Reason, if not empty, counts the refusal in
	// sidecarset_webhook_rejected_requests_total.
	Reason Reason
}

// Reason says why a request was refused before its content was considered. It is the value
// of a metric's label.
type Reason string

// The reasons.
const (
	ReasonBusy     Reason = "busy"      // no seat became free in time
	ReasonMemory   Reason = "memory"    // the group holds too many bytes of bodies, or of decoded values
	ReasonTooLarge Reason = "too_large" // longer than a request may be, or with more values
	ReasonSlow     Reason = "slow"      // the body did not arrive in time
	ReasonInvalid  Reason = "invalid"   // method, content type or an unreadable body
)

var reasons = []Reason{ReasonBusy, ReasonMemory, ReasonTooLarge, ReasonSlow, ReasonInvalid}

// Error is the message.
func (r *Refusal) Error() string { return r.Message }

// Unavailable says that this replica cannot tell now. It asks for another attempt.
func Unavailable(message string) *Refusal {
	return &Refusal{Code: http.StatusServiceUnavailable, RetryAfter: 1, Message: message}
}

// Busy says that this replica has no room for the request. It asks for another
// attempt, which may reach another replica.
func Busy(reason Reason, why string) *Refusal {
	return &Refusal{Code: http.StatusTooManyRequests, RetryAfter: 1, Reason: reason,
		Message: "this replica of the operator cannot take the request, " + why + "; try again in a moment"}
}

// Malformed says that a body is not a valid review of a kind. If uid is not empty, the
// Refusal denies that review. The message is cut to a length that fits a log, because it
// may quote names that the request made up.
func Malformed(kind, uid string, err error) *Refusal {
	const most = 500
	message := "malformed " + kind + ": " + err.Error()
	if len(message) > most {
		message = message[:most] + "…"
	}
	return &Refusal{UID: uid, Code: http.StatusBadRequest, Message: message}
}

func invalid(code int, message string) *Refusal {
	return &Refusal{Code: code, Message: message, Reason: ReasonInvalid}
}

func tooLarge(most int64) *Refusal {
	return &Refusal{Code: http.StatusRequestEntityTooLarge, Reason: ReasonTooLarge, Message: fmt.Sprintf("the request body is longer than %d bytes", most)}
}

// refusalOf returns err if it is a Refusal. Any other error is a failure of the operator.
func refusalOf(err error) *Refusal {
	if refusal := new(Refusal); errors.As(err, &refusal) {
		return refusal
	}
	return &Refusal{Code: http.StatusInternalServerError, Message: err.Error()}
}

// answer answers a request with the refusal, and logs it. The level is 1 if the client or
// the user is at fault, or if the client has gone, and 0 if the operator could not decide.
func (r *Refusal) answer(ctx context.Context, w http.ResponseWriter, path string) {
	logger := logf.FromContext(ctx)
	if r.Code < http.StatusInternalServerError || errors.Is(ctx.Err(), context.Canceled) {
		logger = logger.V(1)
	}
	logger.Info("Refused a request", "path", path, "code", r.Code, "reason", r.Message)
	r.write(w)
}

// status is the status code of the HTTP answer. A denial is an AdmissionReview with code 200.
func (r *Refusal) status() int {
	if r.UID != "" {
		return http.StatusOK
	}
	return r.Code
}

// write answers with the refusal. If the code is below 500, it closes the connection, so
// that the server need not read the rest of the request. If only a seat was missing, the
// request has been read, and the connection stays open.
func (r *Refusal) write(w http.ResponseWriter) {
	if r.UID != "" {
		a := newAnswer(r.UID, false)
		a.body = append(append(a.body, `,"status":`...), r.text(r.Message)...)
		a.warn(r.Warnings)
		a.send(w)
		return
	}
	if r.Code < http.StatusInternalServerError && r.Reason != ReasonBusy {
		w.Header().Set("Connection", "close")
	}
	if r.Code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	if r.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(r.RetryAfter))
	}
	WriteJSON(w, r.Code, r.text("sidecarset: "+r.Message))
}

// text is the refusal as a Status in JSON.
func (r *Refusal) text(message string) []byte {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Message: message, Reason: statusReasons[r.Code], Details: r.Details, Code: int32(r.Code),
	}
	if r.RetryAfter > 0 {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(r.RetryAfter)}
	}
	if status.Reason == "" {
		status.Reason = metav1.StatusReasonInternalError
	}
	text, _ := json.Marshal(status) // strings and numbers: it cannot fail
	return text
}

// statusReasons are the machine-readable reasons that Kubernetes gives with a code.
var statusReasons = map[int]metav1.StatusReason{
	http.StatusBadRequest:            metav1.StatusReasonBadRequest,
	http.StatusUnauthorized:          metav1.StatusReasonUnauthorized,
	http.StatusForbidden:             metav1.StatusReasonForbidden,
	http.StatusNotFound:              metav1.StatusReasonNotFound,
	http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
	http.StatusRequestTimeout:        metav1.StatusReasonTimeout,
	http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
	http.StatusUnsupportedMediaType:  metav1.StatusReasonUnsupportedMediaType,
	http.StatusUnprocessableEntity:   metav1.StatusReasonInvalid,
	http.StatusTooManyRequests:       metav1.StatusReasonTooManyRequests,
	http.StatusServiceUnavailable:    metav1.StatusReasonServiceUnavailable,
}
