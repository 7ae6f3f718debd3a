package server

import (
	"fmt"
	"net/http"
	"runtime/debug"

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
			WriteRefusal(w, Refusal{Code: http.StatusInternalServerError, Message: "internal error while handling the request; see the operator's log"})
		}()
		next.ServeHTTP(w, r)
	})
}

// knownClients lets only those pass whose certificate was verified. The body of
// others is not read.
func knownClients(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			w.Header().Set("Connection", "close")
			WriteRefusal(w, Refusal{Code: http.StatusUnauthorized, Message: "a client certificate is required: have the API server show one, see --client-ca-file"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// notFound answers for paths that nobody registered.
func notFound(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "close") // the body will not be read
	WriteRefusal(w, Refusal{Code: http.StatusNotFound, Message: "there is no webhook at this path"})
}
