package webhooks

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/sidecarset/operator/internal/inject"
)

// failure is an answer without a decision: the request cannot be understood, or
// this replica cannot tell. The API server applies the failure policy. Its body
// is a Status, whose message the API server shows to the user.
type failure struct {
	code    int
	message string
	// retryAfter asks the API server to try again after so many seconds, within
	// its own time limit; the retry may reach another replica. 0: it does not.
	retryAfter int
}

func (f failure) Error() string { return f.message }

func tooLarge(maxBytes int64) failure {
	return failure{code: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("the request body is longer than %d bytes", maxBytes)}
}

// writeFailure answers with an HTTP error. It does nothing useful once the
// header has been written.
func writeFailure(w http.ResponseWriter, f failure) {
	body := append([]byte(nil), `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":`...)
	body = appendText(body, "sidecarset: "+f.message)
	body = append(body, `,"reason":`...)
	body = appendText(body, reasonFor(f.code))
	body = append(body, `,"code":`...)
	body = strconv.AppendInt(body, int64(f.code), 10)
	if f.retryAfter > 0 {
		body = append(body, `,"details":{"retryAfterSeconds":`...)
		body = strconv.AppendInt(body, int64(f.retryAfter), 10)
		body = append(body, '}')
		w.Header().Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	body = append(body, '}')
	writeJSON(w, f.code, body)
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

// writeAllowed leaves the object as it is.
func writeAllowed(w http.ResponseWriter, uid string) {
	newAnswer(uid, true).send(w)
}

// writeDenied refuses the object, whatever the failure policy.
func writeDenied(w http.ResponseWriter, uid string, code int, message string) {
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

// writePatch changes the object as the plan says. The audit log names the
// SidecarSets, under <name of the webhook>/injected.
func writePatch(w http.ResponseWriter, uid string, plan inject.Plan) {
	a := newAnswer(uid, true)
	a.patch = plan.AppendPatch(a.patch[:0])
	a.body = append(a.body, `,"patchType":"JSONPatch","patch":"`...)
	a.body = base64.StdEncoding.AppendEncode(a.body, a.patch)
	a.body = append(a.body, `","auditAnnotations":{"injected":`...)
	a.body = appendText(a.body, auditValue(plan.Injected))
	a.body = append(a.body, '}')
	a.send(w)
}

// auditValue keeps audit events small, however many SidecarSets there are.
func auditValue(names []string) string {
	const most = 20 // times 253 bytes: 5 KB
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), len(names)-most)
	}
	return strings.Join(names, ",")
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	header := w.Header()
	header["Content-Type"] = jsonContentType
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(code)
	_, _ = w.Write(body) // an error means that the client has gone
}

var jsonContentType = []string{"application/json"}
