package server

import (
	"context"
	"net/http"
)

// Request is what a gate hands to a Handler: a POST of JSON whose body has been
// read as a whole and is not empty.
type Request struct {
	Path string
	// Body is valid until the Handler returns.
	Body []byte
}

// Handler answers a request on w, or returns an error instead: a Refusal, or a
// failure of the operator, which is answered with status 500. ctx ends a little
// before the API server stops waiting, and when the client goes away.
type Handler func(ctx context.Context, w http.ResponseWriter, r Request) error

// Answer answers one request. It returns the Refusal that was the answer; nil if h
// answered.
func (h Handler) Answer(ctx context.Context, w http.ResponseWriter, r Request) *Refusal {
	err := h(ctx, w, r)
	if err == nil {
		return nil
	}
	refusal := refusalOf(err)
	refusal.answer(ctx, w, r.Path)
	return refusal
}

// ServeHTTP implements http.Handler, so that a Handler can be used without a Server. Each
// request is bounded. All requests together are not.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	newGate(defaultLimits()[GroupPods], defaultWriteTimeout).admit(h).ServeHTTP(w, r)
}
