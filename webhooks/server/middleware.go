package server

import (
	"fmt"
	"net/http"
	"runtime/debug"

	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// recoverPanics answers 500 if next panics: net/http would close the connection without an
// answer. The log has the path and the stack, and no content of the body.
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
			(&Refusal{Code: http.StatusInternalServerError, Message: "internal error while handling the request; see the operator's log"}).write(w)
		}()
		next.ServeHTTP(w, r)
	})
}

// knownClients refuses clients without a verified certificate. It does not read the
// bodies of their requests.
func knownClients(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			(&Refusal{Code: http.StatusUnauthorized, Message: "a client certificate is required: configure the API server to present one, see --client-ca-file"}).write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// notFound answers for paths without a handler.
func notFound(w http.ResponseWriter, _ *http.Request) {
	(&Refusal{Code: http.StatusNotFound, Message: "there is no webhook at this path"}).write(w)
}
