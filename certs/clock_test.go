package certs_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/conformance"
)

// hourly returns lifetimes of four hours during which a CA signs, and of twenty minutes during
// which a leaf serves.
func hourly() certs.Options {
	opts := options()
	opts.CALifetime, opts.LeafLifetime, opts.Poll = 6*time.Hour, 30*time.Minute, time.Minute
	return opts
}

// skewed is a leader whose clock can be set, and a follower whose clock is right.
type skewed struct {
	server           client.WithWatch
	clock            *conformance.Clock
	leader, follower *replica
	events           *reasons
}

// newSkewed starts both. If told is true, they learn the time from the answers of API servers.
func newSkewed(t *testing.T, told bool) *skewed {
	s := &skewed{server: newAPIServer(t, manifests()...), clock: &conformance.Clock{}, events: &reasons{}}
	opts := hourly()
	opts.Clock, opts.Events = s.clock, s.events
	s.leader = newReplica(t, s.server, telling(told, opts), targets()...)
	s.follower = newReplica(t, s.server, telling(told, hourly()), targets()...)
	s.leader.start(t)
	s.follower.start(t)
	s.leader.lead(t)
	pass(time.Minute)
	for _, r := range []*replica{s.leader, s.follower} {
		checkError(t, r.readiness.Ready(t.Context()), "")
	}
	return s
}

func telling(told bool, opts certs.Options) certs.Options {
	if told {
		opts.ServerClock = certs.NewServerClock(opts.Clock)
	}
	return opts
}

// healed checks that all replicas are ready, and a replica that starts now.
func (s *skewed) healed(t *testing.T) {
	t.Helper()
	fresh := newReplica(t, s.server, telling(true, hourly()), targets()...)
	fresh.start(t)
	pass(5 * time.Minute)
	for name, r := range map[string]*replica{"leader": s.leader, "follower": s.follower, "new replica": fresh} {
		if err := r.readiness.Ready(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// By the right clock, whatever the replica's own clock shows.
		checkError(t, r.published.Verify(serving(t, r), time.Now()), "")
	}
}

// wrong is a clock that is ahead after some time, for some time.
type wrong struct{ after, ahead, lasts time.Duration }

// aheadBy returns the ways in which a clock that is ahead has destroyed a CA: two of them with
// -short.
func aheadBy() map[string]wrong {
	ways := map[string]wrong{
		"by more than the CA has left":     {time.Hour, 7 * time.Hour, 15 * time.Minute},
		"by as much as it takes to be due": {150 * time.Minute, 2 * time.Hour, 30 * time.Minute},
		"by a little, for long":            {time.Hour, 20 * time.Minute, 40 * time.Minute},
		"it is behind, by a day":           {210 * time.Minute, -24 * time.Hour, 40 * time.Minute},
	}
	if testing.Short() {
		delete(ways, "by as much as it takes to be due")
		delete(ways, "by a little, for long")
	}
	return ways
}

// The leader's clock is wrong for a while, and it learns that from API servers. No call
// fails, the leader writes nothing, and an Event informs the administrator.
func TestClockThatIsWrongWritesNothing(t *testing.T) {
	for name, tc := range aheadBy() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSkewed(t, true)
				pass(tc.after)
				before := getSecret(t, s.server)
				s.clock.Set(tc.ahead)
				callers := apiServers{checked: map[string]bool{}}
				called := func(lasts time.Duration) {
					for end := time.Now().Add(lasts); time.Now().Before(end) && !t.Failed(); {
						pass(time.Minute)
						callers.forget()
						callers.observe(t, s.server)
						clear(callers.checked) // a leaf that was accepted before may have expired
						for name, r := range map[string]*replica{"leader": s.leader, "follower": s.follower} {
							if err := callers.call(serving(t, r)); err != nil {
								t.Errorf("%s, %s: %v", time.Now(), name, err)
							}
							if err := r.readiness.Ready(t.Context()); err != nil { // its calls can be answered
								t.Errorf("%s, %s: %v", time.Now(), name, err)
							}
						}
					}
				}
				called(tc.lasts)
				if now := getSecret(t, s.server); now.ResourceVersion != before.ResourceVersion {
					t.Error("the Secret was written")
				}
				if got := s.events.count(certs.ReasonClockDiffers); got != 1 {
					t.Errorf("%d events %s, want 1", got, certs.ReasonClockDiffers)
				}
				fresh := newReplica(t, s.server, s.opts(), targets()...)
				fresh.start(t)
				pass(5 * time.Second)
				checkError(t, fresh.readiness.Ready(t.Context()), "the clock of this process is "+tc.ahead.Abs().String())
				checkError(t, fresh.published.Verify(serving(t, fresh), time.Now()), "") // but API servers would accept its leaf

				s.clock.Set(0)
				pass(time.Second)
				checkError(t, fresh.readiness.Ready(t.Context()), "")
				called(40 * time.Minute)
				s.healed(t)
			})
		})
	}
}

// The time for which API servers have had a CA does not depend on what the clock shows. The CA
// does not sign before they have noticed it, and does not wait until a clock that was set back
// has caught up.
func TestClockThatIsSetChangesNoDuration(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"it was ahead": 20 * time.Minute, "it was behind": -20 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSkewed(t, false)
				pass(time.Hour)
				before := getAuthority(t, s.server, time.Now()).Signing.Certificate
				signs := func() bool { return getAuthority(t, s.server, time.Now()).Signing.Certificate.Equal(before) }
				s.clock.Set(ahead)
				annotateSecret(t, s.server, certs.RotateAnnotation, "now")
				pass(3 * time.Minute) // the leader has seen the CA in every bundle
				if getAuthority(t, s.server, time.Now()).Next == nil {
					t.Fatal("there is no next CA, so this shows nothing")
				}
				s.clock.Set(0)
				pass(6 * time.Minute)
				if !signs() {
					t.Error("the next CA signs before it has been published for ten minutes")
				}
				pass(5 * time.Minute)
				if signs() {
					t.Error("the next CA does not sign when it has been published for ten minutes")
				}
			})
		})
	}
}

// opts are those of a replica beside the leader, on the same machine.
func (s *skewed) opts() certs.Options {
	opts := hourly()
	opts.Clock = s.clock
	return telling(true, opts)
}

// The leader does not learn the time from API servers, so it does what is right by its clock.
// When the clock is right again, all replicas become ready. Replicas whose clock was right
// were not harmed.
func TestClockThatIsWrongDestroysNothing(t *testing.T) {
	for name, tc := range aheadBy() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSkewed(t, false)
				pass(tc.after)
				s.clock.Set(tc.ahead)
				pass(tc.lasts)
				checkError(t, s.follower.readiness.Ready(t.Context()), "")
				checkError(t, s.follower.published.Verify(serving(t, s.follower), time.Now()), "")
				s.clock.Set(0)
				pass(2 * time.Minute)
				checkError(t, s.follower.published.Verify(serving(t, s.follower), time.Now()), "")
				pass(40 * time.Minute)
				s.healed(t)
			})
		})
	}
}

// The first replica makes the CA, and its clock is wrong. If it knows this, it leaves the CA
// to other replicas; if it does not, its CA is replaced.
func TestCAOfAReplicaWhoseClockIsAheadDoesNotLast(t *testing.T) {
	for name, told := range map[string]bool{"and it knows": true, "and it does not know": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, wrong := newAPIServer(t, manifests()...), &conformance.Clock{}
				wrong.Set(400 * day)
				opts := hourly()
				opts.Clock = wrong
				first := newReplica(t, server, telling(told, opts), targets()...)
				first.start(t)
				pass(5 * time.Minute)
				if told {
					checkError(t, first.source.Refresh(t.Context()), "creating CA Secret system/ca: the clock of this process is 9600h0m0s ahead of the API server's")
				}
				second := newReplica(t, server, telling(true, hourly()), targets()...)
				second.start(t)
				second.lead(t)
				pass(5 * time.Minute)
				checkError(t, second.readiness.Ready(t.Context()), "")
				wrong.Set(0)
				pass(5 * time.Minute)
				checkError(t, first.readiness.Ready(t.Context()), "")
				checkError(t, first.published.Verify(serving(t, first), time.Now()), "")
			})
		})
	}
}

// Clocks of API servers differ as well. The API servers that agree decide which clock is
// wrong.
func TestServerClock(t *testing.T) {
	date := func(ago time.Duration) time.Time { return time.Now().Add(-ago) }
	tests := map[string]struct {
		answers func(c *certs.ServerClock)
		want    time.Duration // ahead, to a second
		differs string
	}{
		"knows of no difference at first": {func(*certs.ServerClock) {}, 0, ""},
		"agrees to the second":            {func(c *certs.ServerClock) { c.Answered(date(0), 0) }, 0, ""},
		"is five minutes ahead":           {func(c *certs.ServerClock) { c.Answered(date(5*time.Minute), 0) }, 5 * time.Minute, ""},
		"is six minutes ahead":            {func(c *certs.ServerClock) { c.Answered(date(6*time.Minute), 0) }, 6 * time.Minute, "6m0s ahead"},
		"is six minutes behind":           {func(c *certs.ServerClock) { c.Answered(date(-6*time.Minute), 0) }, -6 * time.Minute, "6m0s behind"},
		"does not blame a slow answer":    {func(c *certs.ServerClock) { c.Answered(date(6*time.Minute), 7*time.Minute) }, 0, ""},
		"goes by two of three": {func(c *certs.ServerClock) {
			for range 3 {
				c.Answered(date(0), 0)
				c.Answered(date(24*time.Hour), 0)
				c.Answered(date(0), 0)
			}
		}, 0, ""},
		"follows when API servers are set right": {func(c *certs.ServerClock) {
			for range 10 {
				c.Answered(date(24*time.Hour), 0)
			}
			for range 3 {
				c.Answered(date(0), 0)
			}
		}, 0, ""},
		"measures the time since an answer": {func(c *certs.ServerClock) {
			c.Answered(date(0), 0)
			pass(24 * time.Hour)
		}, 0, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := certs.NewServerClock(nil)
				pass(300 * time.Millisecond)
				tc.answers(c)
				if off := c.Ahead() - tc.want; off.Abs() > time.Second {
					t.Errorf("it is ahead by %s, want %s", c.Ahead(), tc.want)
				}
				checkError(t, c.Differs(), tc.differs)
				corrected, _ := c.At(c.Read())
				if off := time.Since(corrected) - tc.want; tc.differs != "" && off.Abs() > time.Second {
					t.Errorf("API servers' clocks show %s, want %s before %s", corrected, tc.want, time.Now())
				}
			})
		})
	}
}

// The clock is known to be wrong at once, before the next answer comes.
func TestServerClockNoticesThatTheClockWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := &conformance.Clock{}
		c := certs.NewServerClock(wrong)
		c.Answered(time.Now(), 0)
		pass(time.Hour)
		wrong.Set(-48 * time.Hour)
		checkError(t, c.Differs(), "48h0m0s behind")
		wrong.Set(0)
		checkError(t, c.Differs(), "")
	})
}

// A time that was read while the clock was wrong is wrong, also if the clock is set right
// before the time is used.
func TestServerClockRemembersHowTheClockWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := &conformance.Clock{}
		c := certs.NewServerClock(wrong)
		c.Answered(time.Now(), 0)
		pass(time.Hour)
		wrong.Set(48 * time.Hour)
		reading, then := c.Read(), time.Now()
		pass(time.Second)
		wrong.Set(0)
		c.Answered(time.Now(), 0)
		at, err := c.At(reading)
		checkError(t, err, "48h0m0s ahead")
		if off := at.Sub(then); off.Abs() > 2*time.Second {
			t.Errorf("it was %s, want %s", at, then)
		}
	})
}

func TestServerClockReadsAnswers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
	}))
	defer server.Close()
	c := certs.NewServerClock(nil)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Wrap(http.DefaultTransport).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	checkError(t, c.Differs(), "1h0m0s behind")
}

// reasons keeps the reasons of events.
type reasons struct {
	mu   sync.Mutex
	seen []string
}

// Eventf records an event.
func (r *reasons) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, reason)
}

func (r *reasons) count(reason string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, seen := range r.seen {
		if seen == reason {
			n++
		}
	}
	return n
}
