package server

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sidecarset/operator/webhooks/ports"
)

// Limits bound what the requests of a group of paths take at the same time.
// Groups share nothing, so that one under attack does not starve another.
//
// A body is read before the request takes one of the places, hence a client that
// sends slowly keeps nobody waiting. Places and bytes are shared fairly by client
// address. What does not fit is answered 429 at once, with Retry-After; the API
// server tries again within its own time limit.
type Limits struct {
	// Body is the longest body, in bytes.
	Body int64
	// Held bounds the memory, in bytes, of all bodies that have been read or are
	// being read and are not answered yet. The first 16 KiB of a body count from
	// its beginning, all that follows by the 64 KiB. A sixteenth is for bodies of
	// no more than 16 KiB.
	Held int64
	// Active is how many requests are answered at a time; Waiting is how many
	// more wait for that, and Patience for how long.
	Active, Waiting int
	Patience        time.Duration
}

// The defaults. Pods are the cheapest to answer, but a new Namespace has to be
// read from the API server while a Pod waits, so there are more places than
// cores could fill. So do SidecarSets: they wait for API servers to use a webhook
// entry. 8 MiB hold one of the longest bodies, or 300 Pods of 10 KB, and 20 MiB one
// of the longest conversions. What bodies become is bounded besides (values.go);
// the sum of all is chosen so that the process stays below half of its container's
// limit (TestHostileBodies).
func defaultLimits() (pods, sidecarSets, conversions, barriers Limits) {
	cores := runtime.GOMAXPROCS(0)
	places := func(perCore, least int) int { return max(perCore*cores, least) }
	pods = Limits{Body: MaxAdmissionBytes, Held: 8 << 20, Active: places(16, 32), Patience: time.Second}
	sidecarSets = Limits{Body: MaxAdmissionBytes, Held: 8 << 20, Active: places(8, 16), Patience: 2 * time.Second}
	conversions = Limits{Body: MaxConversionBytes, Held: 20 << 20, Active: places(1, 2), Patience: 5 * time.Second}
	barriers = Limits{Body: MaxBarrierBytes, Held: 1 << 20, Active: places(2, 4), Patience: time.Second}
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
	ledger  ledger
	places  *places
	refused map[refusalReason]prometheus.Counter
}

func newGate(limits Limits) *gate {
	return &gate{
		limits:  limits,
		ledger:  ledger{most: limits.Held, arriving: map[*heldBody]struct{}{}},
		places:  newPlaces(limits.Active, limits.Waiting, limits.Patience),
		refused: map[refusalReason]prometheus.Counter{}, // the Server's metrics fill it
	}
}

// admit serves next with requests whose bodies have been read, at most so many
// at a time.
func (g *gate) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection := ports.ConnectionOf(r.Context())
		body := heldBodies.Get().(*heldBody)
		body.gate, body.client, body.w = g, connection.Client(), w
		defer body.release()
		if refusal := g.receive(r, body); refusal != nil {
			g.refuse(w, refusal)
			if r.ProtoMajor > 1 && refusal.reason == refusedSlow {
				connection.Close() // a refused stream would leave it open
			}
			return
		}
		if !g.places.take(r.Context(), body.client) {
			g.refuse(w, &gateRefusal{Refusal: TooMany("it is busy"), reason: refusedBusy, keep: true})
			return
		}
		defer g.places.leave(body.client)
		connection.Enter()
		defer connection.Leave()
		r.Body = body
		next.ServeHTTP(w, r)
	})
}

// gateRefusal is the answer to a request that goes no further. The connection is
// closed unless it is to be kept: what was sent need not be read then.
type gateRefusal struct {
	Refusal
	reason refusalReason
	keep   bool
}

func (g *gate) refuse(w http.ResponseWriter, refusal *gateRefusal) {
	g.refused[refusal.reason].Inc()
	if !refusal.keep {
		w.Header().Set("Connection", "close")
	}
	if refusal.Code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	WriteRefusal(w, refusal.Refusal)
}

// TooMany asks for another attempt, which may reach another replica.
func TooMany(why string) Refusal {
	return Refusal{Code: http.StatusTooManyRequests, RetryAfter: 1, Message: "this replica of the operator cannot take the request, " + why + "; try again in a moment"}
}

// receive reads the body.
func (g *gate) receive(r *http.Request, body *heldBody) *gateRefusal {
	invalid := func(code int, message string) *gateRefusal {
		return &gateRefusal{Refusal: Refusal{Code: code, Message: message}, reason: refusedInvalid}
	}
	if r.Method != http.MethodPost {
		return invalid(http.StatusMethodNotAllowed, "a review has to be sent by POST, not "+r.Method)
	}
	if !IsJSON(r.Header.Get("Content-Type")) {
		return invalid(http.StatusUnsupportedMediaType, "a review has to have Content-Type application/json")
	}
	if r.ContentLength > g.limits.Body {
		return &gateRefusal{Refusal: TooLarge(g.limits.Body), reason: refusedTooLarge}
	}
	err := body.fill(r.Body)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errBodyTooLong):
		return &gateRefusal{Refusal: TooLarge(g.limits.Body), reason: refusedTooLarge}
	case errors.Is(err, errHeldTooMuch):
		return &gateRefusal{Refusal: TooMany("it holds too many bytes of other requests"), reason: refusedMemory}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &gateRefusal{Refusal: Refusal{Code: http.StatusRequestTimeout, Message: "the request body did not arrive in time"}, reason: refusedSlow}
	default:
		return invalid(http.StatusBadRequest, "reading the request body: "+err.Error())
	}
}

// inFlight is how many requests are being answered.
func (g *gate) inFlight() int { return g.places.inUse() }

// check panics if no request could ever pass.
func (l Limits) check(group Group) {
	if l.Body <= 0 || l.Active <= 0 || l.Held-l.Held/16 < l.Body+smallBody+segmentSize {
		panic(fmt.Sprintf("limits of %s let nothing through: %+v", group, l))
	}
}
