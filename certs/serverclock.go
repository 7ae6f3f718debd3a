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

// answersKept is how many answers of API servers a ServerClock keeps. It uses the median, so if one API server of three has a wrong
// clock, nothing changes.
const answersKept = 5

// ServerClock compares the clock of this process with the clocks of the API servers, which check the operator's certificates by
// their own clocks. Every answer has the API server's time in its Date header. The clocks differ if that time is more than maxSkew
// before the request was sent or after the answer came. While they differ, At returns the API servers' time.
//
// An answer's time is kept as a point of the monotonic clock, which does not change when the wall clock is set. So ServerClock
// knows at once, before the next answer, that the wall clock was set to a wrong or to the right time. The methods are safe for
// concurrent use. Before the first answer they find no difference.
type ServerClock struct {
	local clock.PassiveClock

	mu       sync.Mutex
	answers  []answer // at most answersKept, the oldest first
	reported bool
}

// answer is the time of one answer.
type answer struct {
	date time.Time     // in whole seconds, rounded down
	took time.Duration // from the request to the answer
	at   time.Time     // when it came, with a monotonic reading
}

// NewServerClock returns a ServerClock without any answer. If local is nil, it uses the real clock.
func NewServerClock(local clock.PassiveClock) *ServerClock {
	return &ServerClock{local: cmp.Or[clock.PassiveClock](local, clock.RealClock{})}
}

// Wrap returns a RoundTripper that records the time of API servers' answers.
func (c *ServerClock) Wrap(next http.RoundTripper) http.RoundTripper {
	return &datedTransport{next: next, clock: c}
}

// datedTransport is the RoundTripper that Wrap returns.
type datedTransport struct {
	next  http.RoundTripper
	clock *ServerClock
}

// RoundTrip calls the wrapped transport and records the time of the answer.
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

// WrappedRoundTripper returns the wrapped transport. client-go closes idle connections through it.
func (d *datedTransport) WrappedRoundTripper() http.RoundTripper { return d.next }

// Answered records an answer that came just now, with the duration of its request and its Date.
func (c *ServerClock) Answered(date time.Time, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = append(c.answers, answer{date.Truncate(time.Second), took, time.Now()})
	c.answers = c.answers[max(0, len(c.answers)-answersKept):]
}

// Reading is the time of a clock at one moment.
type Reading struct {
	shown time.Time
	at    time.Time // the moment, by the monotonic clock
}

// Read reads the local clock once.
func (c *ServerClock) Read() Reading { return Reading{c.local.Now(), time.Now()} }

// Now returns the time, by the API servers' clocks if the local clock is wrong. It is for comparisons with certificates, not for
// durations.
func (c *ServerClock) Now() time.Time {
	now, _ := c.At(c.Read()) // a caller that writes checks whether the clocks differ
	return now
}

// Ahead returns by how much the local clock is at least ahead of the API servers' clocks. It is negative if the local clock is
// behind, and zero before the first answer.
func (c *ServerClock) Ahead() time.Duration {
	return c.aheadAt(c.Read())
}

func (c *ServerClock) aheadAt(r Reading) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := r.shown.Round(0)
	var ahead []time.Duration
	for _, a := range c.answers {
		since := r.at.Sub(a.at)
		earliest := a.date.Add(since)                       // if the Date was taken when the answer came
		latest := earliest.Add(a.took).Add(time.Second - 1) // if it was taken when the request was sent; Date is rounded down by up to a second
		ahead = append(ahead, cmp.Or(max(now.Sub(latest), 0), min(now.Sub(earliest), 0)))
	}
	if len(ahead) == 0 {
		return 0
	}
	slices.Sort(ahead)
	return ahead[(len(ahead)-1)/2]
}

// Differs returns a *ClockError while the clocks differ by more than API servers' and replicas' clocks may.
func (c *ServerClock) Differs() error {
	_, err := c.At(c.Read())
	return err
}

// At returns the time of the API servers' clocks when the local clock was read, and a *ClockError if the two differed then. While
// they agree, it returns the time of the local clock. Both results are about the reading, even if the clock has been set since: a
// time that was read from a wrong clock never counts as correct. The result has no monotonic reading, which would be wrong after
// the correction.
func (c *ServerClock) At(r Reading) (time.Time, error) {
	if ahead := c.aheadAt(r); ahead.Abs() > maxSkew {
		return r.shown.Round(0).Add(-ahead), &ClockError{ahead}
	}
	return r.shown.Round(0), nil
}

// heard reports whether there was an answer with a time.
func (c *ServerClock) heard() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.answers) > 0
}

// report logs when the clocks begin to differ, and when they agree again, and sets the metric.
func (c *ServerClock) report(logger logr.Logger) {
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
	// Ahead is by how much this process's clock is ahead. It is negative if the clock is behind.
	Ahead time.Duration
}

func (e *ClockError) Error() string {
	which := "ahead of"
	if e.Ahead < 0 {
		which = "behind"
	}
	return fmt.Sprintf("the clock of this process is %s %s the API server's; correct the clock of this node, or of the control plane; until then no certificate is written",
		e.Ahead.Abs().Round(time.Minute), which) // rounded, so that the message stays the same
}
