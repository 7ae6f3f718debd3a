package server

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sidecarset/operator/webhooks/ports"
)

// Limits bound what the requests of a group of paths take at the same time.
// Groups share nothing, so that one under attack does not starve another.
//
// A body is read before the request takes one of the seats, so a client that
// sends slowly occupies none. Seats and bytes are shared fairly by client address.
// A request that does not fit is answered 429 at once, with Retry-After; the API
// server tries again within its own time limit.
type Limits struct {
	// Body is the longest body, in bytes.
	Body int64
	// Held bounds the memory, in bytes, of all bodies that have been read or are
	// being read and are not answered yet. A body counts 16 KiB from its beginning,
	// and at most twice what has arrived of it. A sixteenth is for bodies of no more
	// than 16 KiB.
	Held int64
	// Active is how many requests are answered at a time; Waiting is how many
	// more wait for that, and Patience for how long.
	Active, Waiting int
	Patience        time.Duration
}

// The defaults. A Pod is cheap to answer, but may wait while its Namespace is read
// from the API server. So there are more seats than cores could fill. As many Pods wait
// for a seat as Held has room for: an API server that gets 429 tries again only after a
// second, and in a second a replica answers thousands of Pods.
//
// A review of a SidecarSet mostly waits until API servers use a webhook entry. Its seat is
// a place to wait, so the number of seats does not depend on cores. 512 seats, 128 requests
// that wait and 10 MiB are for 640 bodies of no more than 16 KiB: all that one API server
// sends at the same time (Options.MaxConnections).
//
// 8 MiB hold one of the longest bodies, or 500 Pods of 10 KB; 20 MiB hold one of the
// longest conversions. The handler of SidecarSets bounds the values that bodies become. The
// sum of all bounds keeps the process below half of its container's limit
// (TestHostileBodies).
func defaultLimits() map[Group]Limits {
	const waiting = 128
	cores := runtime.GOMAXPROCS(0)
	return map[Group]Limits{
		GroupPods:        {Body: MaxAdmissionBytes, Held: 8 << 20, Active: max(16*cores, 32), Waiting: 480, Patience: time.Second},
		GroupSidecarSets: {Body: MaxAdmissionBytes, Held: 10 << 20, Active: 512, Waiting: waiting, Patience: 2 * time.Second},
		GroupConversions: {Body: MaxConversionBytes, Held: 20 << 20, Active: max(cores, 2), Waiting: waiting, Patience: 5 * time.Second},
		GroupBarriers:    {Body: MaxBarrierBytes, Held: 1 << 20, Active: max(2*cores, 4), Waiting: waiting, Patience: time.Second},
	}
}

// Group names the paths that share Limits.
type Group string

// The groups.
const (
	GroupPods        Group = "pods"
	GroupSidecarSets Group = "sidecarsets"
	GroupConversions Group = "conversions"
	// GroupBarriers is apart from GroupSidecarSets, whose requests wait for answers
	// to requests of this group.
	GroupBarriers Group = "barriers"
)

// gate admits the requests of one group within its Limits.
type gate struct {
	limits  Limits
	longest time.Duration // that an answer may take
	ledger  ledger
	seats   *seats
	refused map[Reason]prometheus.Counter // the Server's metrics fill it
}

func newGate(limits Limits, longest time.Duration) *gate {
	return &gate{
		limits:  limits,
		longest: longest,
		ledger:  ledger{most: limits.Held, arriving: map[*bufferedBody]struct{}{}},
		seats:   &seats{most: limits.Active, queue: limits.Waiting, patience: limits.Patience, active: map[netip.Addr]int{}},
		refused: map[Reason]prometheus.Counter{},
	}
}

// admit gives next the requests whose bodies have been read and that have a seat.
func (g *gate) admit(next Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeToAnswer(r.URL, g.longest))
		defer cancel()
		connection := ports.ConnectionOf(ctx)
		body := bodies.Get().(*bufferedBody)
		body.client, body.w = connection.Client(), w
		defer body.release(&g.ledger)
		refusal := g.receive(r, body)
		if refusal == nil && !g.seats.take(ctx, body.client) {
			refusal = Busy(ReasonBusy, "it is busy")
		}
		if refusal != nil {
			refusal.answer(ctx, w, r.URL.Path)
		} else {
			refusal = g.serve(ctx, w, Request{r.URL.Path, body.data}, connection, next)
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
func (g *gate) serve(ctx context.Context, w http.ResponseWriter, r Request, connection *ports.Connection, next Handler) *Refusal {
	defer g.seats.leave(connection.Client())
	connection.Enter()
	defer connection.Leave()
	return next.Answer(ctx, w, r)
}

// receive reads the body.
func (g *gate) receive(r *http.Request, body *bufferedBody) *Refusal {
	if r.Method != http.MethodPost {
		return invalid(http.StatusMethodNotAllowed, "a review has to be sent by POST, not "+r.Method)
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		return invalid(http.StatusUnsupportedMediaType, "a review has to have Content-Type application/json")
	}
	if r.ContentLength > g.limits.Body {
		return tooLarge(g.limits.Body)
	}
	err := body.fill(r, g.limits, &g.ledger)
	switch {
	case err == nil && len(body.data) == 0:
		return invalid(http.StatusBadRequest, "the request body is empty")
	case err == nil:
		return nil
	case errors.Is(err, errBodyTooLong):
		return tooLarge(g.limits.Body)
	case errors.Is(err, errHeldTooMuch):
		return Busy(ReasonMemory, "it holds too many bytes of other requests")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Refusal{Code: http.StatusRequestTimeout, Message: "the request body did not arrive in time", Reason: ReasonSlow}
	default:
		return invalid(http.StatusBadRequest, "reading the request body: "+err.Error())
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

// check panics if the limits let no request pass.
func (l Limits) check(group Group) {
	if l.Body <= 0 || l.Active <= 0 || l.Held-l.Held/16 <= l.Body {
		panic(fmt.Sprintf("limits of %s let nothing through: %+v", group, l))
	}
}
