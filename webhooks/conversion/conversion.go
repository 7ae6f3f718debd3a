// Package conversion answers the ConversionReviews of API servers. What changes
// between the versions of a SidecarSet is decided by internal/conversion.
package conversion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-logr/logr"

	"github.com/sidecarset/operator/internal/conversion"
	"github.com/sidecarset/operator/webhooks/server"
)

const conversionKind = "ConversionReview"

// conversionVersions are the ones that the CRD lists in conversionReviewVersions.
// Both say the same in the same words; the answer has the version of the question.
var conversionVersions = map[string]bool{
	"apiextensions.k8s.io/v1":      true,
	"apiextensions.k8s.io/v1beta1": true,
}

// handler answers the API server's ConversionReviews.
type handler struct {
	log   logr.Logger
	limit int64
}

// maxConvertedBytes bounds one object of a review: the API server stores less
// than half of it.
const maxConvertedBytes = 4 << 20

// maxConverted is how many objects a review may hold: an API server that stores
// as many SidecarSets would hold a catalog of hundreds of megabytes.
const maxConverted = 20_000

// NewHandler returns the handler of /convert. It decodes the few
// members that differ between the versions and passes everything else on as the
// bytes that it was sent, so that numbers, unknown members and nulls are exact.
//
// A request that is no ConversionReview is refused with a 4xx status and a
// sentence about why. An object that cannot be converted fails its review with
// a message naming the object, which the API server passes on to the user. The
// handler keeps no state and may serve any number of requests at a time; one
// takes some three times its body.
func NewHandler(log logr.Logger) http.Handler {
	return &handler{log: log, limit: server.MaxConversionBytes}
}

// ServeHTTP answers one ConversionReview.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if refusal := h.answer(w, r); refusal != nil {
		h.log.V(1).Info("Refused a request for conversion", "status", refusal.status, "reason", refusal.reason)
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
func (h *handler) answer(w http.ResponseWriter, r *http.Request) *refusal {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return &refusal{http.StatusMethodNotAllowed, "conversion is asked for by POST, not " + r.Method}
	}
	if contentType := r.Header.Get("Content-Type"); !server.IsJSON(contentType) {
		return &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type must be application/json, not %q", contentType)}
	}
	document, err := server.WholeBody(w, r, h.limit)
	if err != nil {
		answer := server.Refusal{Code: http.StatusBadRequest}
		_ = errors.As(err, &answer) // keeps answer, unless err is one
		return &refusal{answer.Code, err.Error()}
	}
	review, err := readConversion(document)
	if err != nil {
		return &refusal{http.StatusBadRequest, limited(err.Error())}
	}
	objects, err := review.convert(r.Context())
	if err != nil {
		h.log.Info("Could not convert", "reason", limited(err.Error()))
	}
	review.send(w, objects, err)
	return nil
}

// limited is a text at a length that fits a log: it may quote names that the
// request made up.
func limited(text string) string {
	const most = 1000
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// conversionReview is what a ConversionReview says.
type conversionReview struct {
	kind, apiVersion string
	hasRequest       bool
	uid, desired     string
	objects          jsontext.Value // the list, as it stands in the document
}

// readConversion reads a document, which has to be a ConversionReview.
func readConversion(document []byte) (*conversionReview, error) {
	review := &conversionReview{}
	decoder := jsontext.NewDecoder(bytes.NewBuffer(document))
	err := review.read(decoder)
	if err == nil {
		if _, end := decoder.ReadToken(); !errors.Is(end, io.EOF) {
			err = errors.Join(end, errors.New("something follows the document"))
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the body is not a ConversionReview: %w", err)
	case review.kind != conversionKind || !conversionVersions[review.apiVersion]:
		return nil, fmt.Errorf("expected kind %s of apiextensions.k8s.io/v1 or v1beta1, not kind %q of %q", conversionKind, review.kind, review.apiVersion)
	case !review.hasRequest:
		return nil, errors.New("request is missing")
	case review.uid == "":
		return nil, errors.New("request.uid is missing")
	}
	return review, nil
}

func (c *conversionReview) read(decoder *jsontext.Decoder) error {
	return readMembers(decoder, func(name string) error {
		switch name {
		case "kind":
			return json.UnmarshalDecode(decoder, &c.kind)
		case "apiVersion":
			return json.UnmarshalDecode(decoder, &c.apiVersion)
		case "request":
			c.hasRequest = decoder.PeekKind() != 'n'
			return readMembers(decoder, func(name string) error { return c.readRequest(decoder, name) })
		}
		return decoder.SkipValue()
	})
}

func (c *conversionReview) readRequest(decoder *jsontext.Decoder, name string) error {
	switch name {
	case "uid":
		return json.UnmarshalDecode(decoder, &c.uid)
	case "desiredAPIVersion":
		return json.UnmarshalDecode(decoder, &c.desired)
	case "objects":
		objects, err := decoder.ReadValue()
		if err == nil && objects.Kind() != '[' && objects.Kind() != 'n' {
			return errors.New("/request/objects is not a list")
		}
		c.objects = objects // valid after the next read as well: the decoder has all of the document
		return err
	}
	return decoder.SkipValue()
}

// readMembers reads an object; null has no members.
func readMembers(decoder *jsontext.Decoder, member func(name string) error) error {
	switch kind := decoder.PeekKind(); kind {
	case 'n':
		return decoder.SkipValue()
	case '{', 0: // 0 is an error, which reading returns
	default:
		return fmt.Errorf("%s at %q where an object is expected", kind, decoder.StackPointer())
	}
	if _, err := decoder.ReadToken(); err != nil {
		return err
	}
	for decoder.PeekKind() != '}' {
		name, err := decoder.ReadToken()
		if err != nil {
			return err
		}
		if err := member(name.String()); err != nil {
			return err
		}
	}
	_, err := decoder.ReadToken()
	return err
}

// convert returns the list of converted objects. The API server can use all of
// them or none, so the first that cannot be converted ends it.
func (c *conversionReview) convert(ctx context.Context) ([]byte, error) {
	if err := conversion.CheckDesired(c.desired); err != nil {
		return nil, err
	}
	converted := sliceWriter(append(make([]byte, 0, len(c.objects)+len(c.objects)/8+2), '['))
	decoder := jsontext.NewDecoder(bytes.NewBuffer(c.objects))
	if c.objects.Kind() == '[' {
		if _, err := decoder.ReadToken(); err != nil {
			return nil, err
		}
		for i := 0; decoder.PeekKind() != ']'; i++ {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("the API server has ended the request: %w", err)
			}
			if i >= maxConverted {
				return nil, fmt.Errorf("request.objects has more than %d objects; list them in parts, as with limit=500", maxConverted)
			}
			if i > 0 {
				converted = append(converted, ',')
			}
			raw, err := decoder.ReadValue()
			if err != nil {
				return nil, err
			}
			if err := c.convertOne(&converted, i, raw); err != nil {
				return nil, err
			}
		}
	}
	return append(converted, ']'), nil
}

// convertOne appends one converted object.
func (c *conversionReview) convertOne(converted *sliceWriter, i int, raw jsontext.Value) error {
	if len(raw) > maxConvertedBytes {
		return fmt.Errorf("request.objects[%d] is longer than %d bytes", i, maxConvertedBytes)
	}
	object, err := decodeForConversion(raw)
	if err != nil {
		return fmt.Errorf("decoding request.objects[%d]: %w", i, err)
	}
	object, err = conversion.Convert(object, c.desired)
	if err != nil {
		return fmt.Errorf("request.objects[%d]: %w", i, err)
	}
	if err := json.MarshalWrite(converted, object, json.Deterministic(true), jsontext.PreserveRawStrings(true)); err != nil {
		return fmt.Errorf("encoding a converted object: %w", err)
	}
	return nil
}

// send answers; the answer holds no objects if the review fails.
func (c *conversionReview) send(w http.ResponseWriter, objects []byte, failed error) {
	status, message := "Success", ""
	if failed != nil {
		status, message, objects = "Failure", failed.Error(), nil
	}
	head := appendText([]byte(`{"kind":"ConversionReview","apiVersion":`), c.apiVersion)
	head = appendText(append(head, `,"response":{"uid":`...), c.uid)
	if objects != nil {
		head = append(head, `,"convertedObjects":`...)
	}
	tail := appendText([]byte(`,"result":{"status":`), status)
	if message != "" {
		tail = appendText(append(tail, `,"message":`...), message)
	}
	tail = append(tail, "}}}"...)
	w.Header().Set("Content-Type", "application/json")
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(head) + len(objects) + len(tail))}
	for _, part := range [][]byte{head, objects, tail} {
		_, _ = w.Write(part) // an error means that the client has gone
	}
}

type sliceWriter []byte

// Write implements io.Writer.
func (s *sliceWriter) Write(p []byte) (int, error) {
	*s = append(*s, p...)
	return len(p), nil
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

// appendText appends s as a JSON string. Bytes that are not UTF-8 are replaced.
func appendText(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that bytes were replaced
	return dst
}
