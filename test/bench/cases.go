package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
)

// Now is when the fixture Pods are created.
var Now = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

// Kind is the result of an admission.
type Kind string

// The kinds of admissions that are measured.
const (
	Matched  Kind = "match"   // one SidecarSet selects the Pod
	None     Kind = "none"    // no SidecarSet selects the Pod
	Repeated Kind = "carries" // the Pod already has the operator's sidecars
)

// Kinds are all kinds.
var Kinds = []Kind{Matched, None, Repeated}

// Sizes are all sizes of Pods.
var Sizes = []PodSize{Small, Big}

// Body returns the AdmissionReview of one admission among these SidecarSets.
func Body(sets []map[string]any, size PodSize, kind Kind) []byte {
	switch kind {
	case None:
		return Review(size.Pod(false))
	case Repeated:
		return Review(injected(sets, size.Pod(true)))
	default:
		return Review(size.Pod(true))
	}
}

// injected returns the Pod after the operator's handler.
func injected(sets []map[string]any, pod *corev1.Pod) *corev1.Pod {
	out, err := Admit(NewOurs(sets), pod)
	if err != nil {
		panic(fmt.Sprintf("injecting into a fixture: %v", err))
	}
	return out
}

// Admit sends the creation of pod to a handler, and returns the Pod after its patch.
func Admit(handler http.Handler, pod *corev1.Pod) (*corev1.Pod, error) {
	call := NewCall(handler, Review(pod))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(call.Do(), &review); err != nil {
		return nil, fmt.Errorf("decoding the answer: %w", err)
	}
	if review.Response == nil || !review.Response.Allowed {
		return nil, fmt.Errorf("the Pod was not allowed: %s", call.answer.body.Bytes())
	}
	after := mustEncode(pod)
	if len(review.Response.Patch) > 0 {
		patch, err := jsonpatch.DecodePatch(review.Response.Patch)
		if err != nil {
			return nil, fmt.Errorf("decoding the patch: %w", err)
		}
		if after, err = patch.Apply(after); err != nil {
			return nil, fmt.Errorf("applying the patch: %w", err)
		}
	}
	out := &corev1.Pod{}
	return out, json.Unmarshal(after, out)
}

// Call sends one body to a handler again and again, in memory, with almost no work of its own.
type Call struct {
	handler http.Handler
	body    []byte
	reader  bytes.Reader
	request http.Request
	answer  answer
}

// NewCall prepares a Call.
func NewCall(handler http.Handler, body []byte) *Call {
	c := &Call{handler: handler, body: body, answer: answer{header: http.Header{}}}
	c.request = http.Request{
		Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(body)),
	}
	return c
}

// Do sends the body and returns the answer, which the next Do overwrites.
func (c *Call) Do() []byte {
	c.reader.Reset(c.body)
	c.request.Body = io.NopCloser(&c.reader)
	clear(c.answer.header)
	c.answer.body.Reset()
	c.handler.ServeHTTP(&c.answer, &c.request)
	return c.answer.body.Bytes()
}

// answer is a ResponseWriter in memory.
type answer struct {
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header            { return a.header }
func (a *answer) Write(data []byte) (int, error) { return a.body.Write(data) }
func (a *answer) WriteHeader(int)                {}
