package pods

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/review"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/webhooks/server"
)

// Options is what an Injector needs.
type Options struct {
	// Snapshot returns the newest snapshot; nil until there is one.
	Snapshot func() *match.Snapshot
	// CatchUp returns once Snapshot holds every SidecarSet that was stored when it
	// was called, or says why it cannot; nil if the snapshot always does.
	CatchUp func(context.Context) error
	// Trusted reports whether the snapshot may decide on PathPods without CatchUp;
	// nil if it always may.
	Trusted func() bool
	// Namespaces reads Namespaces from the API server, not from a cache.
	Namespaces client.Reader
	// ExcludedNamespaces are left alone even if the API server sends their Pods.
	ExcludedNamespaces []string
	// Clock stamps what is injected; the real clock if nil.
	Clock clock.PassiveClock
	// Draw returns a number in [0,1) for choices that are left to chance; by
	// default one that no client can foresee.
	Draw func() float64
	// Rival returns another injector that is live, whose Pods are left alone; nil
	// if there is none, or the function is nil.
	Rival func() *rival.Injector
	// Registry takes the metrics; they are not exposed if nil.
	Registry prometheus.Registerer
}

// Injector answers the AdmissionReviews of Pods that are being created. It is safe
// for concurrent use, has no side effects, and answers every request exactly once.
//
// It allows a Pod that no SidecarSet selects. Errors are of two kinds. A conflict
// that the owner of a SidecarSet or of the Pod has to resolve is a denial with a
// message for them. If the request cannot be understood, or this replica cannot
// tell which SidecarSets select the Pod, the answer is an HTTP error, to which the
// API server applies the failure policy.
type Injector struct {
	snapshot   func() *match.Snapshot
	catchUp    func(context.Context) error
	trusted    func() bool
	namespaces liveNamespaces
	excluded   inject.Exclusions
	clock      clock.PassiveClock
	draw       func() float64
	rival      func() *rival.Injector
	metrics    *podMetrics
}

// NewInjector returns an Injector.
func NewInjector(options Options) *Injector {
	if options.CatchUp == nil {
		options.CatchUp = func(context.Context) error { return nil }
	}
	if options.Trusted == nil {
		options.Trusted = func() bool { return true }
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Draw == nil {
		options.Draw = rand.Float64
	}
	if options.Rival == nil {
		options.Rival = func() *rival.Injector { return nil }
	}
	if options.Registry == nil {
		options.Registry = prometheus.NewRegistry()
	}
	return &Injector{
		snapshot:   options.Snapshot,
		catchUp:    options.CatchUp,
		trusted:    options.Trusted,
		namespaces: newLiveNamespaces(options.Namespaces),
		excluded:   slices.Clone(options.ExcludedNamespaces),
		clock:      options.Clock,
		draw:       options.Draw,
		rival:      options.Rival,
		metrics:    newPodMetrics(options.Registry),
	}
}

// ServeHTTP answers one AdmissionReview on the settled path.
func (i *Injector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.serve(w, r, !i.trusted())
}

// Fresh answers as ServeHTTP does, by a snapshot that holds every SidecarSet that
// was stored when the request came.
func (i *Injector) Fresh() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { i.serve(w, r, true) })
}

func (i *Injector) serve(w http.ResponseWriter, r *http.Request, live bool) {
	start := i.clock.Now()
	a := admissions.Get().(*admission)
	v := i.answer(r.Context(), a, w, r, live)
	v.write(r.Context(), w)
	a.release()
	i.metrics.observe(v.result, i.clock.Since(start))
}

func (i *Injector) answer(ctx context.Context, a *admission, w http.ResponseWriter, r *http.Request, live bool) verdict {
	document, err := a.receive(w, r)
	if err != nil {
		return verdict{result: resultInvalid, err: err}
	}
	var v verdict
	if ctx.Err() == nil {
		v = i.decide(ctx, &a.reader, document, live)
	}
	if ctx.Err() != nil {
		return verdict{result: resultAbandoned, head: v.head, err: errAbandoned}
	}
	return v
}

// decide says what becomes of a Pod. If live, neither SidecarSets nor labels of
// the Namespace may be older than the request. If ctx ends, decide ends early, and
// its verdict means nothing.
func (i *Injector) decide(ctx context.Context, reader *review.Reader, document []byte, live bool) verdict {
	head, err := reader.ReadHead(document)
	switch {
	case err != nil:
		return verdict{result: resultInvalid, head: head, err: server.Malformed(err)}
	case !head.CreatesPod() || i.excluded.Namespace(head.Namespace):
		return verdict{result: resultIgnored, head: head}
	}
	selected, err := i.gather(ctx, &head, live)
	switch {
	case err != nil:
		return verdict{result: resultError, head: head, err: err}
	case len(selected.programs) == 0 || ctx.Err() != nil:
		return verdict{result: resultNotSelected, head: head}
	}
	pod, err := reader.ReadPod(document, head.Labels, selected.needs())
	if err != nil {
		return verdict{result: resultInvalid, head: head, err: server.Malformed(err)}
	}
	if other := i.rival(); other != nil && other.Owns(pod.Annotations, selected.names) {
		return verdict{result: resultOther, head: head}
	}
	plan, err := inject.Compute(inject.Input{
		Pod:        pod,
		Candidates: selected.candidates(i.draw),
		Now:        i.clock.Now(),
		Known:      selected.snapshot.Has,
	})
	switch {
	case err != nil:
		return verdict{result: resultDenied, head: head, err: err}
	case plan.TakesBack && !live:
		// An earlier call, to a replica that knows more, may have injected that content.
		return i.decide(ctx, reader, document, true)
	case plan.Empty():
		return verdict{result: resultUnchanged, head: head, plan: plan}
	}
	return verdict{result: resultInjected, head: head, plan: plan}
}

// admissions are kept for other requests: the reader's state and the body would be
// most of the garbage of a request.
var admissions = sync.Pool{New: func() any { return new(admission) }}

// admission is the memory of one request.
type admission struct {
	reader review.Reader
	body   bytes.Buffer
}

// maxPooledBytes is the longest buffer that is kept for other requests.
const maxPooledBytes = 256 << 10

// release keeps the memory for another request. Nothing of this one may be in use.
func (a *admission) release() {
	if a.body.Cap() > maxPooledBytes {
		return // a huge body stays with the garbage collector
	}
	a.body.Reset()
	a.reader.Release()
	admissions.Put(a)
}

// receive returns the body.
func (a *admission) receive(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	document, held := server.Held(r)
	if !held {
		// The length is the client's word: believe it up to a usual size.
		a.body.Grow(int(min(max(r.ContentLength, 0), 64<<10)) + bytes.MinRead)
		_, err := a.body.ReadFrom(http.MaxBytesReader(w, r.Body, server.MaxAdmissionBytes))
		var tooLong *http.MaxBytesError
		switch {
		case errors.As(err, &tooLong):
			return nil, server.TooLarge(tooLong.Limit)
		case err != nil:
			return nil, server.Refusal{Code: http.StatusBadRequest, Message: "reading the request body: " + err.Error()}
		}
		document = a.body.Bytes()
	}
	if len(document) == 0 {
		return nil, server.Refusal{Code: http.StatusBadRequest, Message: "the request body is empty"}
	}
	return document, nil
}
