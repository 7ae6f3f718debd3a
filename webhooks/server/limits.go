package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
)

// Bounds of a request's body. An AdmissionReview has two objects of at most 3 MiB each,
// and less than 1 MiB of other content. A ConversionReview has all objects of a LIST:
// 16 MiB is some 1,600 SidecarSets of 10 KiB. A propagation probe has some 2 KiB.
const (
	MaxAdmissionBytes  = 7 << 20
	MaxConversionBytes = 16 << 20
	MaxProbeBytes      = 256 << 10
	// smallBody is how much of a body is read freely. Most Pods are smaller.
	smallBody = 64 << 10
)

// Limits bound what the requests of a group of paths take at the same time. Groups share nothing,
// so that one under attack does not starve another. A request that does not fit is answered 429,
// with Retry-After; the API server tries again within its own time limit.
type Limits struct {
	// Body is the longest body, in bytes.
	Body int64
	// Large bounds the bytes of all bodies above 64 KiB that are being read or answered. The rest of
	// such a body is read when there is room for all of it.
	Large int64
	// Active is how many requests are answered at a time. A body is read before its request takes
	// one of these seats, so a client that sends slowly occupies none.
	Active int64
}

// A Pod is cheap to answer, but may wait while its Namespace is read from the API server. So there
// are more seats than cores could fill. A review of a SidecarSet mostly waits until API servers use
// a Pod webhook: its seat is a place to wait. The handler of SidecarSets bounds what bodies
// become in memory. The sum of all bounds keeps the process below half of its container's limit
// (TestHostileBodies).
func defaultLimits() map[Group]Limits {
	cores := int64(runtime.GOMAXPROCS(0))
	return map[Group]Limits{
		GroupPods:        {Body: MaxAdmissionBytes, Large: 8 << 20, Active: max(16*cores, 32)},
		GroupSidecarSets: {Body: MaxAdmissionBytes, Large: 10 << 20, Active: 512},
		GroupConversions: {Body: MaxConversionBytes, Large: 20 << 20, Active: max(cores, 2)},
		GroupProbes:      {Body: MaxProbeBytes, Large: 1 << 20, Active: max(2*cores, 4)},
	}
}

// patience is how long a request waits for room or for a seat.
const patience = time.Second

// Group names the paths that share Limits.
type Group string

// The groups.
const (
	GroupPods        Group = "pods"
	GroupSidecarSets Group = "sidecarsets"
	GroupConversions Group = "conversions"
	// GroupProbes is apart from GroupSidecarSets, whose requests wait for answers
	// to requests of this group.
	GroupProbes Group = "probes"
)

// limiter admits the requests of one group within its Limits.
type limiter struct {
	limits          Limits
	forBody, longer time.Duration // that a body, and an answer, may take
	large, seats    *semaphore.Weighted
	active          atomic.Int64
	refused         map[Reason]prometheus.Counter // the Server's metrics fill it
}

func newLimiter(l Limits, forBody, longest time.Duration) *limiter {
	return &limiter{limits: l, forBody: forBody, longer: longest, refused: map[Reason]prometheus.Counter{},
		large: semaphore.NewWeighted(l.Large), seats: semaphore.NewWeighted(l.Active)}
}

// admit gives next the requests whose bodies have been read and that have a seat.
func (g *limiter) admit(next Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeToAnswer(r.URL, g.longer))
		defer cancel()
		body := bodies.Get().(*bytes.Buffer)
		defer release(body)
		held, refusal := g.receive(ctx, w, r, body)
		defer g.large.Release(held)
		if refusal == nil {
			if refusal = g.acquireSeat(ctx); refusal == nil {
				refusal = g.serve(ctx, w, Request{r.URL.Path, body.Bytes()}, next)
			} else {
				refusal.answer(ctx, w, r.URL.Path)
			}
		} else {
			refusal.answer(ctx, w, r.URL.Path)
		}
		if refusal == nil {
			return
		}
		if counter, ok := g.refused[refusal.Reason]; ok {
			counter.Inc()
		}
	})
}

// serve answers a request that has a seat.
func (g *limiter) serve(ctx context.Context, w http.ResponseWriter, r Request, next Handler) *Refusal {
	g.active.Add(1)
	defer func() {
		g.active.Add(-1)
		g.seats.Release(1)
	}()
	return next.Answer(ctx, w, r)
}

// acquireSeat waits for a seat.
func (g *limiter) acquireSeat(ctx context.Context) *Refusal {
	if !g.acquire(ctx, g.seats, 1) {
		return Busy(ReasonBusy, "it is busy")
	}
	return nil
}

// acquire reports whether there was room in time.
func (g *limiter) acquire(ctx context.Context, of *semaphore.Weighted, n int64) bool {
	if of.TryAcquire(n) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return of.Acquire(ctx, n) == nil
}

// bodies are buffers in which most Pods fit.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// release leaves the buffer of a large body to the garbage collector.
func release(body *bytes.Buffer) {
	if body.Cap() <= 2*smallBody {
		body.Reset()
		bodies.Put(body)
	}
}

// receive reads the body. held is what it takes of the room for large bodies.
func (g *limiter) receive(ctx context.Context, w http.ResponseWriter, r *http.Request, body *bytes.Buffer) (held int64, refusal *Refusal) {
	// It also bounds how long net/http reads the rest of a body that is refused. A deadline that
	// passes while the request is answered would end it. An error means that there is no
	// connection, as in tests.
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(g.forBody))
	switch {
	case r.Method != http.MethodPost:
		return 0, invalid(http.StatusMethodNotAllowed, "a review has to be sent by POST, not "+r.Method)
	case !isJSON(r.Header.Get("Content-Type")):
		return 0, invalid(http.StatusUnsupportedMediaType, "a review has to have Content-Type application/json")
	case r.ContentLength > g.limits.Body:
		return 0, tooLarge(g.limits.Body)
	}
	rest := http.MaxBytesReader(w, r.Body, g.limits.Body)
	_, err := io.CopyN(body, rest, smallBody+1)
	if err == nil {
		held = g.limits.Body
		if r.ContentLength > 0 {
			held = r.ContentLength
		}
		if !g.acquire(ctx, g.large, held) {
			return 0, Busy(ReasonMemory, "it holds too many bytes of other requests")
		}
		body.Grow(int(held) - body.Len() + bytes.MinRead) // at once: a buffer that doubles takes three times as much while it is copied
		_, err = body.ReadFrom(rest)
	}
	var tooLong *http.MaxBytesError
	switch {
	case err == nil, errors.Is(err, io.EOF):
		_ = connection.SetReadDeadline(time.Time{})
		if body.Len() == 0 {
			return held, invalid(http.StatusBadRequest, "the request body is empty")
		}
		return held, nil
	case errors.As(err, &tooLong):
		return held, tooLarge(g.limits.Body)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return held, &Refusal{Code: http.StatusRequestTimeout, Message: "the request body did not arrive in time", Reason: ReasonSlow}
	default:
		return held, invalid(http.StatusBadRequest, "reading the request body: "+err.Error())
	}
}

func isJSON(contentType string) bool {
	const want = "application/json"
	if contentType == want {
		return true
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && mediaType == want
}

// answerMargin is the part of the API server's time that is left for the way back,
// so that the API server hears the reason of a refusal and not a timeout.
const answerMargin = 300 * time.Millisecond

// timeToAnswer is how long the answer to a request may take. The query says how long the
// API server waits, such as ?timeout=5s. If it does not, or if it says more than longest,
// longest counts.
func timeToAnswer(u *url.URL, longest time.Duration) time.Duration {
	if u.RawQuery != "" {
		if waits, err := time.ParseDuration(u.Query().Get("timeout")); err == nil && waits > 0 {
			longest = min(waits, longest)
		}
	}
	return longest - min(answerMargin, longest/2)
}
