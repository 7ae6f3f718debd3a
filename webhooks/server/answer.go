package server

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Refusal is an answer without a decision: the request cannot be understood, or
// this replica cannot tell. The API server applies the failure policy. Its body
// is a Status, whose message the API server shows to the user.
type Refusal struct {
	Code    int
	Message string
	// RetryAfter asks the API server to try again after so many seconds, within
	// its own time limit; the retry may reach another replica. 0: it does not.
	RetryAfter int
}

func (f Refusal) Error() string { return f.Message }

// TooLarge says that a body is longer than it may be.
func TooLarge(maxBytes int64) Refusal {
	return Refusal{Code: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the request body is longer than %d bytes", maxBytes)}
}

// Malformed says that a request is not an AdmissionReview that can be answered. The
// message fits a log: err may quote names that the client made up.
func Malformed(err error) Refusal {
	const most = 500
	message := "malformed AdmissionReview: " + err.Error()
	if len(message) > most {
		message = message[:most] + "…"
	}
	return Refusal{Code: http.StatusBadRequest, Message: message}
}

// WriteRefusal answers with an HTTP error. It does nothing useful once the
// header has been written.
func WriteRefusal(w http.ResponseWriter, f Refusal) {
	body := append([]byte(nil), `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":`...)
	body = appendText(body, "sidecarset: "+f.Message)
	body = append(body, `,"reason":`...)
	body = appendText(body, reasonFor(f.Code))
	body = append(body, `,"code":`...)
	body = strconv.AppendInt(body, int64(f.Code), 10)
	if f.RetryAfter > 0 {
		body = append(body, `,"details":{"retryAfterSeconds":`...)
		body = strconv.AppendInt(body, int64(f.RetryAfter), 10)
		body = append(body, '}')
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	body = append(body, '}')
	writeJSON(w, f.Code, body)
}

// reasonFor is the machine-readable reason that Kubernetes gives with a code.
func reasonFor(code int) string {
	switch code {
	case http.StatusBadRequest:
		return "BadRequest"
	case http.StatusUnauthorized:
		return "Unauthorized"
	case http.StatusNotFound:
		return "NotFound"
	case http.StatusMethodNotAllowed:
		return "MethodNotAllowed"
	case http.StatusRequestEntityTooLarge:
		return "RequestEntityTooLarge"
	case http.StatusUnsupportedMediaType:
		return "UnsupportedMediaType"
	case http.StatusUnprocessableEntity:
		return "Invalid"
	case http.StatusRequestTimeout:
		return "Timeout"
	case http.StatusTooManyRequests:
		return "TooManyRequests"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailable"
	default:
		return "InternalError"
	}
}

// answers holds the buffers of answers; those that a huge patch has grown are
// left to the garbage collector.
var answers = sync.Pool{New: func() any { return new(answer) }}

const maxPooledBytes = 256 << 10

// answer is an AdmissionReview in the making.
type answer struct{ body, patch []byte }

func newAnswer(uid string, allowed bool) *answer {
	a := answers.Get().(*answer)
	a.body = append(a.body[:0], `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":`...)
	a.body = appendText(a.body, uid)
	a.body = append(a.body, `,"allowed":`...)
	a.body = strconv.AppendBool(a.body, allowed)
	return a
}

// send ends the answer and writes it.
func (a *answer) send(w http.ResponseWriter) {
	a.body = append(a.body, `}}`...)
	writeJSON(w, http.StatusOK, a.body)
	if cap(a.body)+cap(a.patch) <= maxPooledBytes {
		answers.Put(a)
	}
}

// WriteAllowed leaves the object as it is.
func WriteAllowed(w http.ResponseWriter, uid string) {
	newAnswer(uid, true).send(w)
}

// WriteDenied refuses the object, whatever the failure policy.
func WriteDenied(w http.ResponseWriter, uid string, code int, message string) {
	a := newAnswer(uid, false)
	a.body = append(a.body, `,"status":{"status":"Failure","message":`...)
	a.body = appendText(a.body, message)
	a.body = append(a.body, `,"reason":`...)
	a.body = appendText(a.body, reasonFor(code))
	a.body = append(a.body, `,"code":`...)
	a.body = strconv.AppendInt(a.body, int64(code), 10)
	a.body = append(a.body, '}')
	a.send(w)
}

// WritePatch changes the object by a JSON patch, which patch appends to what it is
// given. The audit log has the audit text under <name of the webhook>/injected.
func WritePatch(w http.ResponseWriter, uid string, patch func([]byte) []byte, audit string) {
	a := newAnswer(uid, true)
	a.patch = patch(a.patch[:0])
	a.body = append(a.body, `,"patchType":"JSONPatch","patch":"`...)
	a.body = base64.StdEncoding.AppendEncode(a.body, a.patch)
	a.body = append(a.body, `","auditAnnotations":{"injected":`...)
	a.body = appendText(a.body, audit)
	a.body = append(a.body, '}')
	a.send(w)
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	header := w.Header()
	header["Content-Type"] = jsonContentType
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(code)
	_, _ = w.Write(body) // an error means that the client has gone
}

var jsonContentType = []string{"application/json"}

// appendText appends s as a JSON string. Bytes that are not UTF-8 are replaced.
func appendText(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that bytes were replaced
	return dst
}
