package webhooks

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-logr/logr"
)

const conversionKind = "ConversionReview"

// conversionVersions are the ones that the CRD lists in conversionReviewVersions.
// Both say the same in the same words; the answer has the version of the question.
var conversionVersions = map[string]bool{
	"apiextensions.k8s.io/v1":      true,
	"apiextensions.k8s.io/v1beta1": true,
}

// conversionResult says whether all objects were converted.
type conversionResult struct {
	Status  string `json:"status"`
	Message string `json:"message,omitzero"`
}

// conversionHandler answers the API server's ConversionReviews.
type conversionHandler struct {
	log   logr.Logger
	limit int64
}

// NewConversionHandler returns the handler of /convert. It decodes the few
// members that differ between the versions and passes everything else on as the
// bytes that it was sent, so that numbers, unknown members and nulls are exact.
//
// A request that is no ConversionReview is refused with a 4xx status and a
// sentence about why. An object that cannot be converted fails its review with
// a message naming the object, which the API server passes on to the user; so
// does what is found wrong after the first 256 KiB of an answer have been sent.
// The handler keeps no state and may serve any number of requests at a time;
// one holds a few objects in memory, however long the review is.
func NewConversionHandler(log logr.Logger) http.Handler {
	return &conversionHandler{log: log, limit: MaxConversionBytes}
}

// ServeHTTP answers one ConversionReview.
func (h *conversionHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if refusal := h.answer(w, r); refusal != nil {
		h.log.Info("Refused a request for conversion", "status", refusal.status, "reason", refusal.reason)
		w.Header().Set("Connection", "close") // the body may not have been read
		http.Error(w, refusal.reason, refusal.status)
	}
}

// refusal is the HTTP answer to something that is no ConversionReview.
type refusal struct {
	status int
	reason string
}

// answer converts, or says why the request cannot be answered.
func (h *conversionHandler) answer(w http.ResponseWriter, r *http.Request) *refusal {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return &refusal{http.StatusMethodNotAllowed, "conversion is asked for by POST, not " + r.Method}
	}
	contentType := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
		return &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type must be application/json, not %q", contentType)}
	}
	if r.ContentLength > h.limit {
		return h.tooLarge()
	}
	// HTTP/1.1 servers finish reading before they write, unless asked. An error
	// means that this connection needs no asking.
	_ = http.NewResponseController(w).EnableFullDuplex()
	stream := newConversionStream(http.MaxBytesReader(w, r.Body, h.limit), w)
	err := stream.convert()
	if stream.failure != nil {
		h.log.Info("Could not convert", "reason", stream.failure.Error())
	}
	return h.refusal(err)
}

// refusal is the answer to a request that failed with err.
func (h *conversionHandler) refusal(err error) *refusal {
	var tooLong *http.MaxBytesError
	var notReview errNotReview
	switch {
	case err == nil:
		return nil
	case errors.As(err, &tooLong):
		return h.tooLarge()
	case errors.Is(err, errValueTooLong):
		return &refusal{http.StatusRequestEntityTooLarge, err.Error()}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{http.StatusRequestTimeout, "the request body did not arrive in time"}
	case errors.As(err, &notReview):
		return &refusal{http.StatusBadRequest, err.Error()}
	default:
		return &refusal{http.StatusBadRequest, "the body is not a ConversionReview: " + err.Error()}
	}
}

func (h *conversionHandler) tooLarge() *refusal {
	return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", h.limit)}
}

// conversionReads lists the objects that conversion looks into. Everything
// else in a SidecarSet stays undecoded.
var conversionReads = map[string]bool{
	"":                 true,
	".metadata":        true,
	".metadata.labels": true,
	".spec":            true,
}

func decodeForConversion(raw jsontext.Value) (map[string]any, error) {
	if raw.Kind() != '{' {
		return nil, errors.New("it is not an object")
	}
	value, err := decodeShallow(raw, "")
	if err != nil {
		return nil, err
	}
	return value.(map[string]any), nil // conversionReads has ""
}

// decodeShallow decodes strings, nulls and the objects that conversion reads.
func decodeShallow(raw jsontext.Value, path string) (any, error) {
	switch raw.Kind() {
	case 'n':
		return nil, nil
	case '"':
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	case '{':
		if conversionReads[path] {
			return decodeMembers(raw, path)
		}
	}
	return raw, nil
}

func decodeMembers(raw jsontext.Value, path string) (map[string]any, error) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, err
	}
	object := make(map[string]any, len(members))
	for name, member := range members {
		value, err := decodeShallow(member, path+"."+name)
		if err != nil {
			return nil, err
		}
		object[name] = value
	}
	return object, nil
}
