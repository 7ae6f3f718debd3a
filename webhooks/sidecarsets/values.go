package sidecarsets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	maxValues   = 120_000
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

// Before returns a handler that calls next only for reviews that are one JSON document within the
// bounds, nested at most 10,000 deep. In no object may a name be present twice, because decoders do
// not agree on which member counts. The values are counted before any of them is decoded.
func (b *ValueBound) Before(next server.Handler) server.Handler {
	return func(ctx context.Context, w http.ResponseWriter, r server.Request) error {
		values, err := countValues(r.Body)
		var tooMuch *tooMuchError
		switch {
		case errors.As(err, &tooMuch):
			return &server.Refusal{Code: http.StatusRequestEntityTooLarge, Message: tooMuch.Error(), Reason: server.ReasonTooLarge}
		case err != nil:
			return server.Malformed("AdmissionReview", "", err)
		}
		weight := min(int64(len(r.Body))*weightOfByte+int64(values)*weightOfValue, maxWeight)
		waiting, cancel := context.WithTimeout(ctx, weightPatience)
		defer cancel()
		if b.weights.Acquire(waiting, weight) != nil {
			return server.Busy(server.ReasonMemory, "it is busy with large reviews")
		}
		defer b.weights.Release(weight)
		if err := checkNames(r.Body); err != nil {
			return server.Malformed("AdmissionReview", "", err)
		}
		return next(ctx, w, r)
	}
}

// tooMuchError says which bound an object exceeds, and where.
type tooMuchError struct{ field, problem string }

func (e *tooMuchError) Error() string { return e.field + ": " + e.problem }

// checkNames refuses a document in which an object has a name twice. It keeps all names in
// memory meanwhile. So call countValues first, which bounds the document.
func checkNames(document []byte) error {
	_, err := jsontext.NewDecoder(bytes.NewBuffer(document), jsontext.AllowInvalidUTF8(true)).ReadValue()
	return err
}

// countValues counts the values of a document, up to the first bound that it exceeds. It takes no
// memory for them, nor for the names of members.
func countValues(document []byte) (values int, err error) {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(document), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for begun := false; ; begun = true {
		depth := decoder.StackDepth()
		if begun && depth == 0 {
			if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
				return values, errors.Join(err, errors.New("something follows the document"))
			}
			return values, nil
		}
		parent, length := decoder.StackIndex(depth)
		kind := decoder.PeekKind()
		if parent == '[' && kind == '{' && length >= maxElements {
			return values, &tooMuchError{fieldOf(decoder.StackPointer().Parent()), fmt.Sprintf("the list has more than %d elements, which no Pod can use; shorten it", maxElements)}
		}
		if _, err := decoder.ReadToken(); err != nil {
			return values, err
		}
		if named := parent == '{' && length%2 == 0; named || kind == '}' || kind == ']' {
			continue
		}
		if values++; values > maxValues {
			return values, &tooMuchError{fieldOf(decoder.StackPointer()), fmt.Sprintf("the object has more than %d values up to here, and one may have no more; make it smaller", maxValues)}
		}
	}
}

// fieldOf names a place in a review for messages, by its path in the object.
func fieldOf(pointer jsontext.Pointer) string {
	path := strings.TrimPrefix(strings.TrimPrefix(string(pointer), "/request/object"), "/")
	if path == "" {
		return "the review"
	}
	return strings.ReplaceAll(path[:min(len(path), 300)], "/", ".")
}
