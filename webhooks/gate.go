package webhooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits bound what the requests of a group of paths take at the same time.
// Groups share nothing, so that one under attack does not starve another.
//
// A body is read before the request takes one of the places, hence a client that
// sends slowly keeps nobody waiting. What does not fit is answered 429 at once,
// with Retry-After; the API server tries again within its own time limit.
type Limits struct {
	// Body is the longest body, in bytes.
	Body int64
	// Held bounds the memory, in bytes, of all bodies that have been read or are
	// being read and are not answered yet. The first 16 KiB of a body count as
	// they arrive, all that follows by the 64 KiB.
	Held int64
	// Active is how many requests are answered at a time; Waiting is how many
	// more wait for that, and Patience for how long.
	Active, Waiting int
	Patience        time.Duration
	// Streams, if not 0, is how many bodies longer than 256 KiB are handed on
	// while they arrive, in places of their own. Otherwise all bodies are read
	// before they are handed on.
	Streams int
}

// streamedAfter is how much of a body that is handed on is read before.
const streamedAfter = 256 << 10

// The defaults. Pods are the cheapest to answer, but a new Namespace has to be
// read from the API server while a Pod waits, so there are more places than
// cores could fill. So do SidecarSets: they wait for API servers to use a webhook
// entry. One is decoded into many times its length, whence the bound on bytes. 8 MiB
// hold one of the longest bodies, or 800 Pods of 10 KB; the sum of all is chosen
// so that the process stays under 128 MiB.
func defaultLimits() (pods, sidecarSets, conversions, barriers Limits) {
	cores := runtime.GOMAXPROCS(0)
	places := func(perCore, least int) int { return max(perCore*cores, least) }
	pods = Limits{Body: MaxAdmissionBytes, Held: 8 << 20, Active: places(16, 32), Patience: time.Second}
	sidecarSets = Limits{Body: MaxAdmissionBytes, Held: 8 << 20, Active: places(8, 16), Patience: 2 * time.Second}
	conversions = Limits{Body: MaxConversionBytes, Held: 4 << 20, Active: places(2, 4), Patience: 5 * time.Second, Streams: 2}
	barriers = Limits{Body: maxBarrierBytes, Held: 1 << 20, Active: places(2, 4), Patience: time.Second}
	for _, l := range []*Limits{&pods, &sidecarSets, &conversions, &barriers} {
		l.Waiting = 128
	}
	return pods, sidecarSets, conversions, barriers
}

// Group names the paths that share Limits.
type Group string

// The groups.
const (
	GroupPods        Group = "pods"
	GroupSidecarSets Group = "sidecarsets"
	GroupConversions Group = "conversions"
	// GroupBarriers has no path in common with GroupSidecarSets: requests there
	// wait for answers here.
	GroupBarriers Group = "barriers"
)

// refusalReason is why a request was refused; the values of a label.
type refusalReason string

const (
	refusedBusy     refusalReason = "busy"      // all places are taken
	refusedMemory   refusalReason = "memory"    // too many bytes of bodies are held
	refusedTooLarge refusalReason = "too_large" // longer than any request may be
	refusedSlow     refusalReason = "slow"      // the body did not arrive in time
	refusedInvalid  refusalReason = "invalid"   // method, content type or an unreadable body
)

var refusalReasons = []refusalReason{refusedBusy, refusedMemory, refusedTooLarge, refusedSlow, refusedInvalid}

// gate admits the requests of one group within its Limits.
type gate struct {
	limits  Limits
	held    atomic.Int64
	places  *places
	streams *places
	refused map[refusalReason]prometheus.Counter
}

func newGate(limits Limits) *gate {
	return &gate{
		limits:  limits,
		places:  newPlaces(limits.Active, limits.Waiting, limits.Patience),
		streams: newPlaces(limits.Streams, limits.Waiting, limits.Patience),
		refused: map[refusalReason]prometheus.Counter{}, // the Server's metrics fill it
	}
}

// admit serves next with requests whose bodies have been read, at most so many
// at a time.
func (g *gate) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := heldBodies.Get().(*heldBody)
		body.gate = g
		defer body.release()
		if refusal := g.receive(r, body); refusal != nil {
			g.refuse(w, refusal)
			return
		}
		places := g.places
		if !body.complete {
			places = g.streams
		}
		if !places.take(r.Context()) {
			g.refuse(w, &gateRefusal{failure: tooMany("it is busy"), reason: refusedBusy, keep: body.complete})
			return
		}
		defer places.leave()
		r.Body = body
		next.ServeHTTP(w, r)
	})
}

// gateRefusal is the answer to a request that goes no further. The connection is
// closed unless it is to be kept: what was sent need not be read then.
type gateRefusal struct {
	failure
	reason refusalReason
	keep   bool
}

func (g *gate) refuse(w http.ResponseWriter, refusal *gateRefusal) {
	g.refused[refusal.reason].Inc()
	if !refusal.keep {
		w.Header().Set("Connection", "close")
	}
	if refusal.code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	writeFailure(w, refusal.failure)
}

// tooMany asks for another attempt, which may reach another replica.
func tooMany(why string) failure {
	return failure{code: http.StatusTooManyRequests, retryAfter: 1, message: "this replica of the operator cannot take the request, " + why + "; try again in a moment"}
}

// receive reads the body as far as it is read ahead.
func (g *gate) receive(r *http.Request, body *heldBody) *gateRefusal {
	invalid := func(code int, message string) *gateRefusal {
		return &gateRefusal{failure: failure{code: code, message: message}, reason: refusedInvalid}
	}
	if r.Method != http.MethodPost {
		return invalid(http.StatusMethodNotAllowed, "a review has to be sent by POST, not "+r.Method)
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		return invalid(http.StatusUnsupportedMediaType, "a review has to have Content-Type application/json")
	}
	if r.ContentLength > g.limits.Body {
		return &gateRefusal{failure: tooLarge(g.limits.Body), reason: refusedTooLarge}
	}
	err := body.fill(r.Body)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errBodyTooLong):
		return &gateRefusal{failure: tooLarge(g.limits.Body), reason: refusedTooLarge}
	case errors.Is(err, errHeldTooMuch):
		return &gateRefusal{failure: tooMany("it holds too many bytes of other requests"), reason: refusedMemory}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &gateRefusal{failure: failure{code: http.StatusRequestTimeout, message: "the request body did not arrive in time"}, reason: refusedSlow}
	default:
		return invalid(http.StatusBadRequest, "reading the request body: "+err.Error())
	}
}

var (
	errBodyTooLong = errors.New("the body is too long")
	errHeldTooMuch = errors.New("too many bytes are held")
)

// heldBody is the body of a request, of which the beginning, or all, is in
// memory.
type heldBody struct {
	gate     *gate
	data     []byte        // what is in memory, once fill has returned
	at       int           // how much of data has been read
	rest     io.ReadCloser // what follows data, unless complete
	complete bool

	size     int64     // bytes that have been read
	held     int64     // bytes that count as held
	small    []byte    // where a body begins, reused
	segments []*[]byte // where a long one goes on
}

// heldBodies are reused with buffers in which most Pods fit. Connections are
// bounded, and with them what this adds to Limits.Held.
var heldBodies = sync.Pool{New: func() any { return &heldBody{small: make([]byte, 0, smallBody)} }}

// segments are where long bodies are gathered: a buffer that doubled would leave
// its own length of garbage, and a client that sends half a body much of that.
var segments = sync.Pool{New: func() any { return new(make([]byte, 0, segmentSize)) }}

const (
	smallBody   = 16 << 10
	segmentSize = 64 << 10
)

// release ends the use of the body and of its bytes.
func (b *heldBody) release() {
	b.releaseSegments()
	b.gate.held.Add(-b.held)
	*b = heldBody{small: b.small[:0]}
	heldBodies.Put(b)
}

func (b *heldBody) releaseSegments() {
	for _, s := range b.segments {
		*s = (*s)[:0]
		segments.Put(s)
	}
	b.segments = nil
}

// fill reads the body until it ends or is long enough to be streamed.
func (b *heldBody) fill(from io.ReadCloser) error {
	streams := b.gate.limits.Streams > 0
	buffer := &b.small
	for {
		for len(*buffer) < cap(*buffer) {
			n, err := from.Read((*buffer)[len(*buffer):cap(*buffer)])
			*buffer = (*buffer)[:len(*buffer)+n]
			b.size += int64(n)
			fits := buffer != &b.small || b.hold(int64(n))
			switch {
			case b.size > b.gate.limits.Body:
				return errBodyTooLong
			case errors.Is(err, io.EOF):
				b.complete = true
				b.join()
				return nil
			case err != nil:
				return err
			case !fits:
				return errHeldTooMuch
			}
		}
		if streams && b.size > streamedAfter {
			b.rest = http.MaxBytesReader(nil, from, b.gate.limits.Body-b.size)
			b.join()
			return nil
		}
		if !b.hold(segmentSize) {
			return errHeldTooMuch
		}
		buffer = b.another()
	}
}

// hold counts n more bytes until release, and reports whether they fit.
func (b *heldBody) hold(n int64) bool {
	b.held += n
	return b.gate.held.Add(n) <= b.gate.limits.Held
}

// another is the next segment.
func (b *heldBody) another() *[]byte {
	segment := segments.Get().(*[]byte)
	b.segments = append(b.segments, segment)
	return segment
}

// join makes data of what has been read.
func (b *heldBody) join() {
	if len(b.segments) == 0 {
		b.data = b.small
		return
	}
	b.data = append(make([]byte, 0, b.size), b.small...)
	for _, s := range b.segments {
		b.data = append(b.data, *s...)
	}
	b.releaseSegments()
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	if b.at < len(b.data) {
		n := copy(p, b.data[b.at:])
		b.at += n
		return n, nil
	}
	if b.complete || b.rest == nil {
		return 0, io.EOF
	}
	return b.rest.Read(p)
}

// Close implements io.Closer; the server closes what is left.
func (*heldBody) Close() error { return nil }

// places are a semaphore with a short queue.
type places struct {
	free     chan struct{}
	waiting  atomic.Int64
	most     int64
	patience time.Duration
}

func newPlaces(count, waiting int, patience time.Duration) *places {
	return &places{free: make(chan struct{}, count), most: int64(waiting), patience: patience}
}

// take reports whether there was a place in time; leave gives it back.
func (p *places) take(ctx context.Context) bool {
	select {
	case p.free <- struct{}{}:
		return true
	default:
	}
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > p.most {
		return false
	}
	timer := time.NewTimer(p.patience)
	defer timer.Stop()
	select {
	case p.free <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (p *places) leave() { <-p.free }

// inFlight is how many requests are being answered.
func (g *gate) inFlight() int { return len(g.places.free) + len(g.streams.free) }

// check panics if no request could ever pass.
func (l Limits) check(group Group) {
	if l.Body <= 0 || l.Active <= 0 || l.Streams == 0 && l.Held < l.Body+segmentSize {
		panic(fmt.Sprintf("limits of %s let nothing through: %+v", group, l))
	}
}
