package webhooks

import (
	"errors"
	"fmt"
	"mime"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-logr/logr"

	"github.com/sidecarset/operator/internal/conversion"
)

const conversionKind = "ConversionReview"

// conversionVersions are the ones that the CRD lists in conversionReviewVersions.
// Both say the same in the same words; the answer has the version of the question.
var conversionVersions = map[string]bool{
	"apiextensions.k8s.io/v1":      true,
	"apiextensions.k8s.io/v1beta1": true,
}

// conversionReview is the envelope of both directions.
type conversionReview struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	Request    *conversionRequest  `json:"request,omitzero"`
	Response   *conversionResponse `json:"response,omitzero"`
}

type conversionRequest struct {
	UID               string           `json:"uid"`
	DesiredAPIVersion string           `json:"desiredAPIVersion"`
	Objects           []jsontext.Value `json:"objects"`
}

type conversionResponse struct {
	UID              string           `json:"uid"`
	ConvertedObjects []map[string]any `json:"convertedObjects,omitzero"`
	Result           conversionResult `json:"result"`
}

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
// a message naming the object, which the API server passes on to the user. The
// handler keeps no state and may serve any number of requests at a time; each
// may hold up to twice MaxConversionBytes in memory: one review carries all
// objects of a LIST.
func NewConversionHandler(log logr.Logger) http.Handler {
	return &conversionHandler{log: log, limit: MaxConversionBytes}
}

// ServeHTTP answers one ConversionReview.
func (h *conversionHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	review, refusal := h.read(w, r)
	if refusal != nil {
		h.log.Info("Refused a request for conversion", "status", refusal.status, "reason", refusal.reason)
		http.Error(w, refusal.reason, refusal.status)
		return
	}
	response := convertAll(review.Request)
	if response.Result.Message != "" {
		h.log.Info("Could not convert", "reason", response.Result.Message)
	}
	review.Request, review.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	if err := json.MarshalWrite(w, review, json.Deterministic(true), jsontext.PreserveRawStrings(true)); err != nil {
		h.log.Error(err, "Writing a ConversionReview failed")
	}
}

// refusal is the HTTP answer to something that is no ConversionReview.
type refusal struct {
	status int
	reason string
}

// read decodes the review; its objects stay undecoded.
func (h *conversionHandler) read(w http.ResponseWriter, r *http.Request) (*conversionReview, *refusal) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, &refusal{http.StatusMethodNotAllowed, "conversion is asked for by POST, not " + r.Method}
	}
	contentType := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
		return nil, &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type must be application/json, not %q", contentType)}
	}
	if r.ContentLength > h.limit {
		return nil, h.tooLarge()
	}
	review := &conversionReview{}
	if err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, h.limit), review); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return nil, h.tooLarge()
		}
		return nil, &refusal{http.StatusBadRequest, "the body is not a ConversionReview: " + err.Error()}
	}
	if reason := review.problem(); reason != "" {
		return nil, &refusal{http.StatusBadRequest, reason}
	}
	return review, nil
}

func (h *conversionHandler) tooLarge() *refusal {
	return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", h.limit)}
}

// problem says what makes a decoded review unusable; "" if nothing does.
func (r *conversionReview) problem() string {
	switch {
	case r.Kind != conversionKind || !conversionVersions[r.APIVersion]:
		return fmt.Sprintf("expected kind %s of apiextensions.k8s.io/v1 or v1beta1, not kind %q of %q", conversionKind, r.Kind, r.APIVersion)
	case r.Request == nil:
		return "request is missing"
	case r.Request.UID == "":
		return "request.uid is missing"
	default:
		return ""
	}
}

// convertAll converts every object or none: the API server cannot use a part.
func convertAll(request *conversionRequest) *conversionResponse {
	failure := func(err error) *conversionResponse {
		return &conversionResponse{UID: request.UID, Result: conversionResult{Status: "Failure", Message: err.Error()}}
	}
	if err := conversion.CheckDesired(request.DesiredAPIVersion); err != nil {
		return failure(err)
	}
	converted := make([]map[string]any, len(request.Objects))
	for i, raw := range request.Objects {
		object, err := decodeForConversion(raw)
		if err != nil {
			return failure(fmt.Errorf("decoding request.objects[%d]: %w", i, err))
		}
		if converted[i], err = conversion.Convert(object, request.DesiredAPIVersion); err != nil {
			return failure(fmt.Errorf("request.objects[%d]: %w", i, err))
		}
	}
	return &conversionResponse{UID: request.UID, ConvertedObjects: converted, Result: conversionResult{Status: "Success"}}
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
