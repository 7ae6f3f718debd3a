// Package conversion answers the ConversionReviews of API servers. Package
// internal/conversion decides what changes between the versions of a SidecarSet.
package conversion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/conversion"
	"github.com/sidecarset/operator/internal/jsonread"
	"github.com/sidecarset/operator/internal/text"
	"github.com/sidecarset/operator/webhooks/server"
)

const (
	kind       = "ConversionReview"
	apiVersion = "apiextensions.k8s.io/v1" // what the CRD lists in conversionReviewVersions

	// maxObjectBytes bounds one object of a review: the API server stores less than
	// half of it.
	maxObjectBytes = 4 << 20
	// maxObjects is how many objects a review may hold. No cluster has as many: they would
	// take hundreds of megabytes of storage.
	maxObjects = 20_000
)

// Handle is the server.Handler of /convert. It decodes the few members that differ
// between the versions and passes everything else on as the bytes that it was sent,
// so that numbers, unknown members and nulls are exact.
//
// A body that is not a ConversionReview is refused. An object that cannot be
// converted fails its review with a message naming the object, which the API server
// shows to its user. One request takes some three times the memory of its body.
func Handle(ctx context.Context, w http.ResponseWriter, r server.Request) error {
	asked, err := read(r.Body)
	if err != nil {
		return server.Malformed(kind, "", err)
	}
	objects, err := asked.convert(ctx)
	if err != nil {
		const most = 1000 // the message may quote names that the request made up
		logf.FromContext(ctx).Info("Failed to convert SidecarSets", "reason", text.Cut(err.Error(), most))
	}
	asked.answer(w, objects, err)
	return nil
}

// request is the request of a ConversionReview.
type request struct {
	UID     string  `json:"uid"`
	Desired string  `json:"desiredAPIVersion"`
	Objects rawList `json:"objects"`
}

// rawList is a JSON list as it is in the document: it shares the document's bytes.
type rawList jsontext.Value

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (l *rawList) UnmarshalJSONFrom(decoder *jsontext.Decoder) error {
	if kind := decoder.PeekKind(); kind != '[' && kind != 'n' {
		return errors.New("it is not a list")
	}
	value, err := decoder.ReadValue() // shares the bytes that json.Unmarshal was given
	*l = rawList(value)
	return err
}

// read returns the request of a document, which has to be a ConversionReview.
func read(document []byte) (*request, error) {
	var review struct {
		Kind       string   `json:"kind"`
		APIVersion string   `json:"apiVersion"`
		Request    *request `json:"request"`
	}
	if err := json.Unmarshal(document, &review); err != nil {
		return nil, err
	}
	switch {
	case review.Kind != kind || review.APIVersion != apiVersion:
		return nil, fmt.Errorf("expected kind %s of %s, not kind %q of %q", kind, apiVersion, review.Kind, review.APIVersion)
	case review.Request == nil:
		return nil, errors.New("request is missing")
	case review.Request.UID == "":
		return nil, errors.New("request.uid is missing")
	}
	return review.Request, nil
}

// convert returns the list of converted objects. The API server can use all of them or
// none, so convert ends at the first object that cannot be converted.
func (r *request) convert(ctx context.Context) ([]byte, error) {
	if err := conversion.CheckDesired(r.Desired); err != nil {
		return nil, err
	}
	converted := bytes.NewBuffer(append(make([]byte, 0, len(r.Objects)+len(r.Objects)/8+2), '['))
	decoder := jsontext.NewDecoder(bytes.NewBuffer(r.Objects))
	if jsontext.Value(r.Objects).Kind() == '[' {
		if _, err := decoder.ReadToken(); err != nil {
			return nil, err
		}
		for i := 0; decoder.PeekKind() != ']'; i++ {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("the API server does not wait for the other objects: %w", err)
			}
			if i >= maxObjects {
				return nil, fmt.Errorf("request.objects has more than %d objects; list them in parts, as with limit=500", maxObjects)
			}
			if i > 0 {
				converted.WriteByte(',')
			}
			raw, err := decoder.ReadValue()
			if err != nil {
				return nil, err
			}
			if err := r.convertOne(converted, i, raw); err != nil {
				return nil, err
			}
		}
	}
	converted.WriteByte(']')
	return converted.Bytes(), nil
}

// convertOne appends one converted object.
func (r *request) convertOne(converted *bytes.Buffer, i int, raw jsontext.Value) error {
	if len(raw) > maxObjectBytes {
		return fmt.Errorf("request.objects[%d] is longer than %d bytes", i, maxObjectBytes)
	}
	if raw.Kind() != '{' {
		return fmt.Errorf("decoding request.objects[%d]: it is not an object", i)
	}
	object, err := decode(raw, "")
	if err != nil {
		return fmt.Errorf("decoding request.objects[%d]: %w", i, err)
	}
	object, err = conversion.Convert(object, r.Desired)
	if err != nil {
		return fmt.Errorf("request.objects[%d]: %w", i, err)
	}
	if err := json.MarshalWrite(converted, object, json.Deterministic(true), jsontext.PreserveRawStrings(true)); err != nil {
		return fmt.Errorf("encoding a converted object: %w", err)
	}
	return nil
}

// answer answers the review. If failed is not nil, the answer has its message and no objects.
func (r *request) answer(w http.ResponseWriter, objects []byte, failed error) {
	head := jsonread.AppendText([]byte(`{"kind":"`+kind+`","apiVersion":"`+apiVersion+`","response":{"uid":`), r.UID)
	if failed != nil {
		head = jsonread.AppendText(append(head, `,"result":{"status":"Failure","message":`...), failed.Error())
		server.WriteJSON(w, http.StatusOK, append(head, "}}}"...))
		return
	}
	server.WriteJSON(w, http.StatusOK, append(head, `,"convertedObjects":`...), objects, []byte(`,"result":{"status":"Success"}}}`))
}

const annotationsPath = ".metadata.annotations"

// conversionReads are the objects in a SidecarSet that conversion reads, by path.
// Everything else is not decoded.
var conversionReads = map[string]bool{
	".metadata":                           true,
	".metadata.labels":                    true,
	annotationsPath:                       true,
	".spec":                               true,
	".spec.namespaceSelector":             true,
	".spec.namespaceSelector.matchLabels": true,
}

// decode decodes the strings and nulls of the object at a path of a SidecarSet, and the
// objects in it that conversion reads. Of the annotations, which may be long, it decodes
// the one that conversion reads.
func decode(raw jsontext.Value, path string) (map[string]any, error) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, err
	}
	object := make(map[string]any, len(members))
	for name, member := range members {
		var value any = member
		var err error
		switch within := path + "." + name; {
		case member.Kind() == 'n':
			value = nil
		case path == annotationsPath && name != appsv1beta1.AnnotationAlphaSelector:
		case member.Kind() == '"':
			var text string
			err = json.Unmarshal(member, &text)
			value = text
		case member.Kind() == '{' && conversionReads[within]:
			value, err = decode(member, within)
		}
		if err != nil {
			return nil, err
		}
		object[name] = value
	}
	return object, nil
}
