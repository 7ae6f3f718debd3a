package webhooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"

	"github.com/go-json-experiment/json/jsontext"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// recoverPanics answers 500 where next panics, so that one request cannot end
// the connections of others. The log has the stack and the path; a stack holds
// no content of the body.
func recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			reason := recover()
			if reason == nil {
				return
			}
			if reason == http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this
				panic(reason)
			}
			logf.FromContext(r.Context()).Error(nil, "Handler panicked", "path", r.URL.Path,
				"panic", fmt.Sprintf("%T", reason), "stack", string(debug.Stack()))
			writeFailure(w, failure{code: http.StatusInternalServerError, message: "internal error while handling the request; see the operator's log"})
		}()
		next.ServeHTTP(w, r)
	})
}

// wellFormed refuses bodies that are no JSON document before next decodes them
// as a whole; 10,000 is as deep as a document may be.
func wellFormed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, ok := r.Body.(*heldBody); ok {
			if err := checkJSON(body.data); err != nil {
				w.Header().Set("Connection", "close")
				writeFailure(w, failure{code: http.StatusBadRequest, message: malformed(err)})
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func checkJSON(document []byte) error {
	decoder := jsontext.NewDecoder(bytes.NewReader(document), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err := decoder.SkipValue(); err != nil {
		return err
	}
	if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the document")
	}
	return nil
}

// notFound answers for paths that nobody registered.
func notFound(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "close") // the body will not be read
	writeFailure(w, failure{code: http.StatusNotFound, message: "there is no webhook at this path"})
}
