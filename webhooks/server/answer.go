package server

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Answer allows the object of an AdmissionReview.
type Answer struct {
	// UID is that of the review's request.
	UID string
	// Patch, if not nil, changes the object: it appends a JSON patch to its argument. It
	// is called once, before Write returns.
	Patch func([]byte) []byte
	// AuditKey, if not empty, annotates the API server's audit event with AuditValue.
	AuditKey, AuditValue string
	// Warnings are shown to the API server's user.
	Warnings []string
}

// Write answers with a.
func (a Answer) Write(w http.ResponseWriter) {
	text := newAnswer(a.UID, true)
	if a.Patch != nil {
		text.patch = a.Patch(text.patch[:0])
		text.body = append(text.body, `,"patchType":"JSONPatch","patch":"`...)
		text.body = append(base64.StdEncoding.AppendEncode(text.body, text.patch), '"')
	}
	if a.AuditKey != "" {
		text.body = appendText(append(text.body, `,"auditAnnotations":{`...), a.AuditKey)
		text.body = append(appendText(append(text.body, ':'), a.AuditValue), '}')
	}
	text.warn(a.Warnings)
	text.send(w)
}

// answers holds buffers for answers. A buffer that a huge patch has grown is left to the
// garbage collector.
var answers = sync.Pool{New: func() any { return new(answer) }}

const maxPooledBytes = 256 << 10

// answer is the text of an AdmissionReview that is being written.
type answer struct{ body, patch []byte }

func newAnswer(uid string, allowed bool) *answer {
	a := answers.Get().(*answer)
	a.body = append(a.body[:0], `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":`...)
	a.body = appendText(a.body, uid)
	a.body = append(a.body, `,"allowed":`...)
	a.body = strconv.AppendBool(a.body, allowed)
	return a
}

func (a *answer) warn(warnings []string) {
	for i, warning := range warnings {
		if i == 0 {
			a.body = append(a.body, `,"warnings":[`...)
		} else {
			a.body = append(a.body, ',')
		}
		a.body = appendText(a.body, warning)
	}
	if len(warnings) > 0 {
		a.body = append(a.body, ']')
	}
}

// send ends the answer and writes it.
func (a *answer) send(w http.ResponseWriter) {
	a.body = append(a.body, `}}`...)
	WriteJSON(w, http.StatusOK, a.body)
	if cap(a.body)+cap(a.patch) <= maxPooledBytes {
		answers.Put(a)
	}
}

// WriteJSON answers with a document, in one piece or in several.
func WriteJSON(w http.ResponseWriter, code int, parts ...[]byte) {
	length := 0
	for _, part := range parts {
		length += len(part)
	}
	header := w.Header()
	header["Content-Type"] = jsonContentType
	header["Content-Length"] = []string{strconv.Itoa(length)}
	w.WriteHeader(code)
	for _, part := range parts {
		_, _ = w.Write(part) // an error means that the client has gone
	}
}

var jsonContentType = []string{"application/json"}

// appendText appends s as a JSON string. Bytes that are not UTF-8 are replaced.
func appendText(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that bytes were replaced
	return dst
}
