package sidecarsets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/semaphore"

	"github.com/sidecarset/operator/webhooks/server"
)

// Bounds of the values of a decoded object. The largest SidecarSets that an API server stores
// have 1.5 MB, and some 50,000 values, managed fields included. A Pod has a few dozen
// containers. A value takes up to 800 bytes until the review is answered. A container without
// members takes 3 KiB and seven operations.
const (
	maxValues   = 100_000
	maxElements = 1_000 // of a list of objects; strings and numbers count as values only
)

// Bounds of the memory of all reviews that are decoded at the same time. A byte is copied
// some ten times until the review is answered.
const (
	maxWeight     = 96 << 20
	weightOfByte  = 10
	weightOfValue = 800
	// weightPatience is how long a review waits for others that are decoded.
	weightPatience = 2 * time.Second
)

// ValueBound bounds the values of each review, and the memory of all reviews that are
// decoded at the same time.
type ValueBound struct{ weights *semaphore.Weighted }

// NewValueBound returns a ValueBound. The handlers that share it share its memory.
func NewValueBound() *ValueBound { return &ValueBound{semaphore.NewWeighted(maxWeight)} }

// Before returns a handler that calls next only for reviews that are one JSON document within
// the bounds, nested at most 10,000 deep. In no object may a name be present twice, because
// decoders do not agree on which member counts. If the object is too large, the handler
// denies it and names the field and the bound. If the stored object is too large, the handler
// leaves it out of the review, because otherwise no update could repair it.
func (b *ValueBound) Before(next server.Handler) server.Handler {
	return func(ctx context.Context, w http.ResponseWriter, r server.Request) error {
		counted, err := checkReview(r.Body)
		var tooMuch *tooMuchError
		switch {
		case errors.As(err, &tooMuch) && counted.uid != "":
			return &server.Refusal{UID: counted.uid, Code: http.StatusRequestEntityTooLarge, Message: tooMuch.Error(), Reason: server.ReasonTooLarge}
		case err != nil:
			return server.Malformed("AdmissionReview", "", err)
		}
		weight := min(int64(len(r.Body))*weightOfByte+int64(counted.values)*weightOfValue, maxWeight)
		waiting, cancel := context.WithTimeout(ctx, weightPatience)
		defer cancel()
		if b.weights.Acquire(waiting, weight) != nil {
			return server.Busy(server.ReasonMemory, "it is busy with large reviews")
		}
		defer b.weights.Release(weight)
		if err := checkNames(counted.document); err != nil {
			return server.Malformed("AdmissionReview", "", err)
		}
		r.Body = counted.document
		return next(ctx, w, r)
	}
}

// census is the result of counting a review.
type census struct {
	document []byte // the review to decode
	uid      string // of the request; "" if the count ended before it
	values   int
}

// tooMuchError says which bound an object exceeds, and where.
type tooMuchError struct{ field, problem string }

func (e *tooMuchError) Error() string { return e.field + ": " + e.problem }

// unnamed are the options of a decoder that takes no memory for the names of members.
var unnamed = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

var errDuplicate = errors.New("duplicate object member name \"oldObject\"")

// checkNames refuses a document in which an object has a name twice. It keeps all names in
// memory meanwhile. So call checkReview first, which bounds the document.
func checkNames(document []byte) error {
	_, err := jsontext.NewDecoder(bytes.NewBuffer(document), jsontext.AllowInvalidUTF8(true)).ReadValue()
	return err
}

// checkReview counts the values of document, up to the first bound that it exceeds.
func checkReview(document []byte) (census, error) {
	counted := census{document: document}
	decoder := jsontext.NewDecoder(bytes.NewBuffer(document), unnamed...)
	var old [2]int64
	seen := false
	err := counted.count(decoder, func() error {
		switch string(decoder.StackPointer()) {
		case "/request/uid":
			if decoder.PeekKind() != '"' {
				return nil
			}
			value, err := decoder.ReadValue()
			if err == nil {
				text, _ := jsontext.AppendUnquote(nil, value) // the decoder has checked it
				counted.uid = string(text)
			}
			return err
		case "/request/oldObject":
			if seen { // only one of them would be cut out
				return errDuplicate
			}
			seen = true
			begin := decoder.InputOffset()
			value, err := decoder.ReadValue()
			if err != nil {
				return err
			}
			stored := census{values: counted.values}
			within := jsontext.NewDecoder(bytes.NewBuffer(value), unnamed...)
			var tooMuch *tooMuchError
			if errors.As(stored.count(within, nil), &tooMuch) {
				old = [2]int64{begin, decoder.InputOffset()}
			} else {
				counted.values = stored.values
			}
			return nil
		}
		return nil
	})
	if err == nil && old[1] > 0 {
		counted.document = append(append(bytes.Clone(document[:old[0]]), ":null"...), document[old[1]:]...)
	}
	return counted, err
}

// count reads one document to its end. It calls member, which may be nil, after each name at
// depth 2: in a review, after the names of the request's members. It does not count the
// values that member reads.
func (c *census) count(decoder *jsontext.Decoder, member func() error) error {
	for begun := false; ; begun = true {
		depth := decoder.StackDepth()
		if begun && depth == 0 {
			if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
				return errors.Join(err, errors.New("something follows the document"))
			}
			return nil
		}
		parent, length := decoder.StackIndex(depth)
		kind := decoder.PeekKind()
		if parent == '[' && kind == '{' && length >= maxElements {
			return &tooMuchError{fieldOf(decoder.StackPointer().Parent()), fmt.Sprintf("the list has more than %d elements, which no Pod can use; shorten it", maxElements)}
		}
		if _, err := decoder.ReadToken(); err != nil {
			return err
		}
		switch named := parent == '{' && length%2 == 0; {
		case kind == '}' || kind == ']':
		case !named:
			if c.values++; c.values > maxValues {
				return &tooMuchError{fieldOf(decoder.StackPointer()), fmt.Sprintf("the object has more than %d values up to here, and one may have no more; make it smaller", maxValues)}
			}
		case depth == 2 && member != nil:
			if err := member(); err != nil {
				return err
			}
		}
	}
}

// fieldOf names a place in a review for messages, by its path in the object.
func fieldOf(pointer jsontext.Pointer) string {
	var field strings.Builder
	for token := range jsontext.Pointer(strings.TrimPrefix(string(pointer), "/request/object")).Tokens() {
		if _, err := strconv.Atoi(token); err == nil {
			fmt.Fprintf(&field, "[%s]", token)
			continue
		}
		if field.Len() > 0 {
			field.WriteByte('.')
		}
		field.WriteString(token[:min(len(token), 100)])
		if field.Len() > 500 {
			break
		}
	}
	if field.Len() == 0 {
		return "the review"
	}
	return field.String()
}
