package certs

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// answersKept is how many answers of API servers a ServerClock goes by. It takes the one in the middle, so that one API server of
// three whose clock is wrong changes nothing.
const answersKept = 5

// ServerClock compares the clock of this process with that of the API servers, which check our certificates by theirs: every answer
// says in its Date header when it was given. The clocks differ if that time is more than maxSkew before the request was sent or after
// the answer came. While they differ, At gives the API servers' time.
//
// What an answer said is kept as a point of the monotonic clock, which does not follow when the wall clock is set. So a clock that is
// set wrong is known to be wrong before the next answer comes, and so is one that is set right. The methods are safe for concurrent
// use; those of a nil ServerClock know of no difference.
type ServerClock struct {
	local clock.PassiveClock

	mu       sync.Mutex
	answers  []answer // at most answersKept, the oldest first
	reported bool
}

// answer is what one answer said.
type answer struct {
	date time.Time     // in whole seconds, the rest was cut off
	took time.Duration // from the request to the answer
	at   time.Time     // when it came, with a monotonic reading
}

// NewServerClock returns a ServerClock that has heard no answer yet. A nil clock is the real one.
func NewServerClock(local clock.PassiveClock) *ServerClock {
	if local == nil {
		local = clock.RealClock{}
	}
	return &ServerClock{local: local}
}

// Wrap returns a RoundTripper that takes down when API servers answer.
func (c *ServerClock) Wrap(next http.RoundTripper) http.RoundTripper {
	return &datedTransport{next: next, clock: c}
}

// datedTransport is what Wrap returns.
type datedTransport struct {
	next  http.RoundTripper
	clock *ServerClock
}

// RoundTrip is that of the wrapped transport.
func (d *datedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	begun := time.Now()
	response, err := d.next.RoundTrip(r)
	if err != nil {
		return response, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		d.clock.Answered(date, time.Since(begun))
	}
	return response, nil
}

// WrappedRoundTripper is for client-go, which closes idle connections through it.
func (d *datedTransport) WrappedRoundTripper() http.RoundTripper { return d.next }

// Answered takes down an answer that came just now, took so long, and says that it was given at date.
func (c *ServerClock) Answered(date time.Time, took time.Duration) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = append(c.answers, answer{date.Truncate(time.Second), took, time.Now()})
	c.answers = c.answers[max(0, len(c.answers)-answersKept):]
}

// Reading is what a clock showed at a moment.
type Reading struct {
	shown time.Time
	at    time.Time // the moment, by the monotonic clock
}

// ReadClock reads a clock once.
func ReadClock(local clock.PassiveClock) Reading { return Reading{local.Now(), time.Now()} }

// Ahead says by how much the local clock is ahead of the API servers' at least; it is negative if the clock is behind. It is zero while
// no answer has been heard.
func (c *ServerClock) Ahead() time.Duration {
	if c == nil {
		return 0
	}
	return c.aheadAt(ReadClock(c.local))
}

func (c *ServerClock) aheadAt(r Reading) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := r.shown.Round(0)
	var ahead []time.Duration
	for _, a := range c.answers {
		since := r.at.Sub(a.at)
		earliest := a.date.Add(since)                       // given as the answer came
		latest := earliest.Add(a.took).Add(time.Second - 1) // given as the request was sent; a second is what Date cuts off
		ahead = append(ahead, cmp.Or(max(now.Sub(latest), 0), min(now.Sub(earliest), 0)))
	}
	if len(ahead) == 0 {
		return 0
	}
	slices.Sort(ahead)
	return ahead[(len(ahead)-1)/2]
}

// Differs returns a *ClockError while the clocks differ by more than API servers and replicas may.
func (c *ServerClock) Differs() error {
	if c == nil {
		return nil
	}
	_, err := c.At(ReadClock(c.local))
	return err
}

// At returns what API servers' clocks showed when the local one was read, and a *ClockError if the two differed then. While they agree
// it returns what the local clock showed. Both results are about the reading, also if the clock has been set since: a time that was
// read from a clock that was wrong never passes for one that is right. It has no monotonic reading: corrected, that would be wrong.
func (c *ServerClock) At(r Reading) (time.Time, error) {
	if c == nil {
		return r.shown.Round(0), nil
	}
	if ahead := c.aheadAt(r); ahead.Abs() > maxSkew {
		return r.shown.Round(0).Add(-ahead), &ClockError{ahead}
	}
	return r.shown.Round(0), nil
}

// heard says whether an answer has told the time.
func (c *ServerClock) heard() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.answers) > 0
}

// report says in the log when the clocks begin to differ, and when they agree again, and sets the metric.
func (c *ServerClock) report(logger logr.Logger) {
	if c == nil {
		return
	}
	clockAhead.Set(c.Ahead().Seconds())
	err := c.Differs()
	c.mu.Lock()
	before := c.reported
	c.reported = err != nil
	c.mu.Unlock()
	switch {
	case err != nil && !before:
		logger.Error(err, "The clock is wrong, so the CA Secret is not written")
	case err == nil && before:
		logger.Info("The clock agrees with the API servers' again")
	}
}

// ClockError says that the clock of this process differs from the API servers'.
type ClockError struct {
	// Ahead is by how much this process is ahead; it is negative if it is behind.
	Ahead time.Duration
}

func (e *ClockError) Error() string {
	which := "ahead of"
	if e.Ahead < 0 {
		which = "behind"
	}
	return fmt.Sprintf("the clock of this process is %s %s the API server's; set the clock of this node, or of the control plane, right: until then no certificate is written",
		e.Ahead.Abs().Round(time.Minute), which) // roughly, so that the message stays the same
}
