package webhooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/webhooks/server"
)

// PodInjectorOptions is what a PodInjector needs.
type PodInjectorOptions struct {
	// Catalog returns the snapshot to decide by; nil until there is one.
	Catalog func() *match.Snapshot
	// Namespaces reads Namespaces from the API server, not from a cache.
	Namespaces client.Reader
	// ExcludedNamespaces are left alone even if the API server sends their Pods.
	ExcludedNamespaces []string
	// Clock stamps what is injected; the real clock if nil.
	Clock clock.PassiveClock
	// Draw returns a number in [0,1) for choices that are left to chance; by
	// default one that nobody can foresee.
	Draw func() float64
	// Rival returns another injector that is live, whose Pods are left alone; nil
	// if there is none, or the function is nil.
	Rival func() *rival.Injector
	// Fresh makes sure that Catalog returns a snapshot that holds every SidecarSet
	// that was stored when it was called, or says why it cannot; nil if the
	// snapshot always does.
	Fresh func(context.Context) error
	// Doubt reports whether even PathPods needs that; nil if it never does.
	Doubt func() bool
	// Registry takes the metrics; they are not exposed if nil.
	Registry prometheus.Registerer
}

// PodInjector answers the AdmissionReviews of Pods being created. It never
// decodes a Pod as a typed object and never writes one: it reads what decides
// and answers with JSON patch operations. It is safe for concurrent use, has no
// side effects, and answers every request exactly once.
//
// A Pod that nothing selects is allowed. Errors come in two kinds: what the
// owners of SidecarSet or Pod have to resolve is denied, and says so; a request
// that cannot be understood or decided here is an HTTP error, to which the
// failure policy applies. A failed look-up is never "not selected".
type PodInjector struct {
	catalog    func() *match.Snapshot
	namespaces liveNamespaces
	excluded   []string
	clock      clock.PassiveClock
	metrics    *podMetrics
	draw       func() float64
	rival      func() *rival.Injector
	fresh      func(context.Context) error
	doubt      func() bool
}

// NewPodInjector returns the handler for Pods.
func NewPodInjector(options PodInjectorOptions) *PodInjector {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Draw == nil {
		options.Draw = rand.Float64
	}
	if options.Rival == nil {
		options.Rival = func() *rival.Injector { return nil }
	}
	if options.Fresh == nil {
		options.Fresh = func(context.Context) error { return nil }
	}
	if options.Doubt == nil {
		options.Doubt = func() bool { return false }
	}
	if options.Registry == nil {
		options.Registry = prometheus.NewRegistry()
	}
	return &PodInjector{
		fresh:      options.Fresh,
		doubt:      options.Doubt,
		rival:      options.Rival,
		draw:       options.Draw,
		catalog:    options.Catalog,
		namespaces: newLiveNamespaces(options.Namespaces),
		excluded:   slices.Clone(options.ExcludedNamespaces),
		clock:      options.Clock,
		metrics:    newPodMetrics(options.Registry),
	}
}

// ServeHTTP answers one AdmissionReview.
func (p *PodInjector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.serve(w, r, p.doubt())
}

// Fresh answers as ServeHTTP does, by a snapshot that holds every SidecarSet that
// was stored when the request came.
func (p *PodInjector) Fresh() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, true) })
}

func (p *PodInjector) serve(w http.ResponseWriter, r *http.Request, fresh bool) {
	start := p.clock.Now()
	a := admissions.Get().(*admission)
	a.injector, a.ctx, a.fresh = p, r.Context(), fresh
	result := a.answer(w, r)
	a.release()
	p.metrics.observe(result, p.clock.Since(start))
}

// admissions holds admissions for reuse: the decoder's state and the body's
// buffer would be most of a request's garbage.
var admissions = sync.Pool{New: func() any { return new(admission) }}

// admission is the work on one request. It is the judge of its own review.
type admission struct {
	reviewReader
	injector *PodInjector
	ctx      context.Context //nolint:containedctx // lives as long as the request
	body     bytes.Buffer
	document []byte // of body, or of the request's own

	fresh bool // the snapshot has to hold what is stored now
	// bySnapshot says that labels of the Namespace were asked for and that the
	// snapshot gave them.
	bySnapshot bool
	ignored    bool              // the request does not concern us
	catalog    *match.Snapshot   // the snapshot that decides
	programs   []*inject.Program // those that select the Pod
	problem    error             // why we could not tell whether any does
}

// maxPooledBytes is the longest buffer that is kept for other requests.
const maxPooledBytes = 256 << 10

// release makes the admission ready for another request. Nothing of this one
// may be in use.
func (a *admission) release() {
	if a.body.Cap() > maxPooledBytes {
		return // a huge body stays with the garbage collector
	}
	a.body.Reset()
	a.document = nil
	a.rev = review{}
	a.injector, a.ctx, a.catalog, a.programs, a.problem = nil, nil, nil, nil, nil
	a.ignored, a.fresh, a.bySnapshot = false, false, false
	admissions.Put(a)
}

// answer gathers, decides and renders.
func (a *admission) answer(w http.ResponseWriter, r *http.Request) admissionResult {
	if err := a.receive(w, r); err != nil {
		return a.fail(w, resultInvalid, err)
	}
	if a.abandoned() {
		return a.giveUp(w)
	}
	selected, err := a.read(a.document, a)
	switch {
	case a.abandoned():
		return a.giveUp(w)
	case err != nil && a.rev.uid == "":
		return a.fail(w, resultInvalid, server.Refusal{Code: http.StatusBadRequest, Message: malformed(err)})
	case err != nil:
		return a.deny(w, resultInvalid, http.StatusBadRequest, malformed(err))
	case a.problem != nil:
		return a.fail(w, resultError, a.problem)
	case a.ignored:
		return a.allow(w, resultIgnored)
	case !selected:
		return a.allow(w, resultNotSelected)
	}
	return a.inject(w)
}

// inject answers for a Pod that some SidecarSet selects.
func (a *admission) inject(w http.ResponseWriter) admissionResult {
	if other := a.injector.rival(); other != nil && other.Owns(a.rev.pod.Annotations, a.selectedNames) {
		return a.allow(w, resultOther)
	}
	plan, err := inject.Compute(inject.Input{
		Pod:        a.rev.pod,
		Candidates: a.candidates(),
		Now:        a.injector.clock.Now(),
		Known:      a.catalog.Has,
	})
	switch {
	case a.abandoned():
		return a.giveUp(w)
	case err != nil:
		return a.deny(w, resultDenied, http.StatusUnprocessableEntity, fmt.Sprintf("injecting into Pod %s: %v", a.rev.podName(), err))
	case plan.Empty():
		return a.leave(w, plan)
	}
	server.WritePatch(w, a.rev.uid, plan.AppendPatch, auditValue(plan.Injected))
	return resultInjected
}

// selectedNames yields the names of the selected SidecarSets.
func (a *admission) selectedNames(yield func(string) bool) {
	for _, program := range a.programs {
		if !yield(program.Name()) {
			return
		}
	}
}

// candidates are the selected SidecarSets, each with what its choice of a
// revision depends on.
func (a *admission) candidates() []inject.Candidate {
	list := make([]inject.Candidate, len(a.programs))
	for i, program := range a.programs {
		list[i].Current = program
		if _, refers := program.Refers(); refers {
			list[i].History, list[i].Draw = a.catalog.History(program.Name()), a.injector.draw()
		}
	}
	return list
}

// receive reads the body.
func (a *admission) receive(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return server.Refusal{Code: http.StatusMethodNotAllowed, Message: "an AdmissionReview has to be sent by POST, not " + r.Method}
	}
	if !server.IsJSON(r.Header.Get("Content-Type")) {
		return server.Refusal{Code: http.StatusUnsupportedMediaType, Message: "an AdmissionReview has to have Content-Type application/json"}
	}
	if held, ok := server.Held(r); ok {
		a.document = held
		return a.notEmpty()
	}
	// The length is the client's word: believe it up to a usual size.
	a.body.Grow(int(min(max(r.ContentLength, 0), 64<<10)) + bytes.MinRead)
	_, err := a.body.ReadFrom(http.MaxBytesReader(w, r.Body, server.MaxAdmissionBytes))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return server.TooLarge(tooLong.Limit)
	case err != nil:
		return server.Refusal{Code: http.StatusBadRequest, Message: "reading the request body: " + err.Error()}
	}
	a.document = a.body.Bytes()
	return a.notEmpty()
}

func (a *admission) notEmpty() error {
	if len(a.document) == 0 {
		return server.Refusal{Code: http.StatusBadRequest, Message: "the request body is empty"}
	}
	return nil
}

// concerns implements podJudge: only Pods being created concern us.
func (a *admission) concerns(rev *review) bool {
	a.ignored = rev.operation != "CREATE" || rev.group != "" || rev.resource != "pods" || rev.subResource != "" ||
		slices.Contains(a.injector.excluded, rev.namespace)
	return !a.ignored
}

// selects implements podJudge.
func (a *admission) selects(rev *review) bool {
	if a.fresh {
		if err := a.injector.fresh(a.ctx); err != nil {
			a.problem = server.Refusal{Code: http.StatusServiceUnavailable, RetryAfter: 1,
				Message: fmt.Sprintf("cannot tell which SidecarSets select Pod %s: %v", rev.podName(), err)}
			return false
		}
	}
	if a.abandoned() {
		return false
	}
	a.catalog = a.injector.catalog()
	if a.catalog == nil {
		a.problem = server.Refusal{Code: http.StatusServiceUnavailable, RetryAfter: 1,
			Message: "this replica of the operator has not read all SidecarSets yet; try again in a moment"}
		return false
	}
	selection, err := a.catalog.Select(rev.namespace, rev.pod.Labels, a.namespaceLabels)
	if err == nil && selection.LeftOut && a.bySnapshot {
		// API servers send us the Pods that are selected as far as they know, so the
		// Namespace may have been labelled a moment ago.
		selection, err = a.catalog.Select(rev.namespace, rev.pod.Labels, a.liveNamespaceLabels)
	}
	if err != nil {
		a.problem = server.Refusal{Code: http.StatusServiceUnavailable, RetryAfter: 1,
			Message: fmt.Sprintf("cannot tell which SidecarSets select Pod %s: %v", rev.podName(), err)}
		return false
	}
	a.programs = selection.Programs
	return len(a.programs) > 0
}

// needs implements podJudge.
func (a *admission) needs() (parts inject.Parts) {
	for _, program := range a.programs {
		parts |= program.Needs
		if history := a.catalog.History(program.Name()); history != nil {
			parts |= history.Needs
		}
	}
	return parts
}

// namespaceLabels reads live what the snapshot cannot know: the labels of a
// Namespace that is younger than it; or of any, where it may be old.
func (a *admission) namespaceLabels(name string) (labels.Set, error) {
	if set, ok := a.catalog.NamespaceLabels(name); ok && !a.fresh {
		a.bySnapshot = true
		return set, nil
	}
	return a.liveNamespaceLabels(name)
}

func (a *admission) liveNamespaceLabels(name string) (labels.Set, error) {
	return a.injector.namespaces.labels(a.ctx, name)
}

// abandoned reports that the client does not wait for the answer any more.
func (a *admission) abandoned() bool { return a.ctx.Err() != nil }

// giveUp ends a request that the client has abandoned.
func (a *admission) giveUp(w http.ResponseWriter) admissionResult {
	return a.fail(w, resultAbandoned, server.Refusal{Code: http.StatusServiceUnavailable, Message: "the client did not wait for the answer"})
}

// malformed says what is wrong with a request, at a length that fits a log: it
// may quote names that the request made up.
func malformed(err error) string {
	const most = 500
	message := "malformed AdmissionReview: " + err.Error()
	if len(message) > most {
		message = message[:most] + "…"
	}
	return message
}

// fail answers without a decision. What others send us is their problem and
// logged on request only; what keeps us from deciding is ours.
func (a *admission) fail(w http.ResponseWriter, result admissionResult, err error) admissionResult {
	answer := server.Refusal{Code: http.StatusInternalServerError, Message: err.Error()}
	_ = errors.As(err, &answer)
	logger := logf.FromContext(a.ctx)
	switch result {
	case resultInvalid:
		logger = logger.V(1)
		w.Header().Set("Connection", "close") // what comes next will be no better
	case resultAbandoned:
		logger = logger.V(1)
	}
	logger.Info("Could not answer an AdmissionReview", "code", answer.Code, "reason", answer.Message)
	server.WriteRefusal(w, answer)
	return result
}

// deny refuses the Pod and tells its creator why.
func (a *admission) deny(w http.ResponseWriter, result admissionResult, code int, message string) admissionResult {
	if result == resultInvalid {
		w.Header().Set("Connection", "close")
	}
	logf.FromContext(a.ctx).V(1).Info("Denied a Pod", "Pod", a.rev.podName(), "code", code, "reason", message)
	server.WriteDenied(w, a.rev.uid, code, message)
	return result
}

// allow lets the Pod pass as it is.
func (a *admission) allow(w http.ResponseWriter, result admissionResult) admissionResult {
	if logger := logf.FromContext(a.ctx).V(1); logger.Enabled() {
		logger.Info("Left a Pod alone", "Pod", a.rev.podName(), "result", string(result))
	}
	server.WriteAllowed(w, a.rev.uid)
	return result
}

// leave lets a Pod pass that is selected but needs nothing, and says why.
func (a *admission) leave(w http.ResponseWriter, plan inject.Plan) admissionResult {
	if logger := logf.FromContext(a.ctx).V(1); logger.Enabled() {
		for _, skip := range plan.Skipped {
			logger.Info("Skipped a SidecarSet", "Pod", a.rev.podName(), "SidecarSet", skip.SidecarSet, "reason", string(skip.Reason))
		}
	}
	server.WriteAllowed(w, a.rev.uid)
	return resultUnchanged
}

// auditValue keeps audit events small, however many SidecarSets there are.
func auditValue(names []string) string {
	const most = 20 // times 253 bytes: 5 KB
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), len(names)-most)
	}
	return strings.Join(names, ",")
}
