package webhooks_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/sidecarset/operator/internal/propagation"
	"github.com/sidecarset/operator/webhooks"
)

var leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// leases is an API server that stores one Lease.
type leases struct {
	client.Writer

	mu      sync.Mutex
	stored  *coordinationv1.Lease
	version int
	writes  []time.Time
	err     error // of the next writes
	lost    bool  // the answers to the next writes are
}

func (l *leases) write(lease *coordinationv1.Lease, refuse func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes = append(l.writes, time.Now())
	if l.err != nil && !l.lost {
		return l.err
	}
	if err := refuse(); err != nil {
		return err
	}
	l.version++
	l.stored = lease.DeepCopy()
	l.stored.ResourceVersion = strconv.Itoa(l.version)
	if l.lost {
		return l.err
	}
	lease.ResourceVersion = l.stored.ResourceVersion
	return nil
}

func (l *leases) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	return l.write(object.(*coordinationv1.Lease), func() error {
		if l.stored != nil {
			return apierrors.NewAlreadyExists(leaseResource, object.GetName())
		}
		return nil
	})
}

func (l *leases) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	if patch.Type() != types.MergePatchType || object.GetResourceVersion() != "" {
		return errors.New("a patch that something may stand in the way of")
	}
	return l.write(object.(*coordinationv1.Lease), func() error {
		if l.stored == nil {
			return apierrors.NewNotFound(leaseResource, object.GetName())
		}
		return nil
	})
}

func (l *leases) Delete(_ context.Context, object client.Object, _ ...client.DeleteOption) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stored == nil {
		return apierrors.NewNotFound(leaseResource, object.GetName())
	}
	l.stored = nil
	return nil
}

// do changes what is stored behind the replica's back, or how the server behaves.
func (l *leases) do(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// known is what the replica has published; false if nothing is stored.
func (l *leases) known(t *testing.T) (propagation.Replica, bool) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stored == nil {
		return propagation.Replica{}, false
	}
	replica, err := propagation.ParseLease(l.stored)
	if err != nil {
		t.Fatalf("ParseLease: %v", err)
	}
	return replica, true
}

func (l *leases) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.writes)
}

// replica is a Publisher that runs in a bubble of its own time.
type replica struct {
	*webhooks.Publisher
	server  *leases
	changed chan struct{}
	stop    func()

	mu            sync.Mutex
	version, said uint64
	notReady      error
	behind        error // why it cannot catch up
	catchUps      []propagation.Replica
}

// catchUp notes what others knew of the replica by then.
func (r *replica) catchUp(t *testing.T) error {
	known, _ := r.server.known(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.catchUps = append(r.catchUps, known)
	return r.behind
}

func (r *replica) fallBehind(behind error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behind = behind
	r.catchUps = nil
}

func (r *replica) learn(version uint64, news bool) {
	r.mu.Lock()
	r.version = version
	if news {
		r.said = version
	}
	r.mu.Unlock()
	if news {
		r.changed <- struct{}{}
	}
}

func (r *replica) become(notReady error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notReady = notReady
}

// inBubble runs a test with a Publisher whose first write is due now.
func inBubble(t *testing.T, test func(t *testing.T, r *replica)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &replica{server: &leases{}, changed: make(chan struct{}, 1), version: 7, said: 7}
		r.Publisher = webhooks.NewPublisher(webhooks.PublisherOptions{
			Name: "pod-abcde", Namespace: "ours", Writer: r.server, Changed: r.changed,
			Observed: func() (uint64, uint64) { r.mu.Lock(); defer r.mu.Unlock(); return r.version, r.said },
			CatchUp:  func(context.Context) error { return r.catchUp(t) },
			Ready: []healthz.Checker{healthz.Ping, func(*http.Request) error {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.notReady
			}},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		r.stop = func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the publisher ended with %v", err)
			}
		}
		r.become(errors.New("no certificate yet"))
		if r.NeedLeaderElection() {
			t.Error("only the leader publishes")
		}
		go func() { done <- r.Start(ctx) }()
		test(t, r)
		r.stop()
	})
}

// settle lets a replica that is ready publish and catch up.
const settle = 2 * propagation.MinPublishInterval

// pass lets time pass, and everything happen that is due by then.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestPublisherBeginsWhenItIsReady(t *testing.T) {
	inBubble(t, func(t *testing.T, r *replica) {
		pass(time.Minute)
		if r.server.count() != 0 || !r.Doubt() {
			t.Fatalf("%d writes before the replica was ready, doubt %v", r.server.count(), r.Doubt())
		}
		r.become(nil)
		pass(settle)
		got, ok := r.server.known(t)
		if !ok || got.Name != "pod-abcde" || got.Observed != 7 || time.Since(got.Renewed) > propagation.MinPublishInterval {
			t.Errorf("published %+v, %v", got, ok)
		}
		if r.Doubt() {
			t.Error("a replica that has just published is in doubt")
		}
		// Others wait for it from now on, ready or not: it has to tell what it knows.
		r.become(errors.New("the watch is silent"))
		pass(time.Minute)
		if r.Doubt() {
			t.Error("it stopped to publish")
		}
	})
}

func TestPublisherRenewsWhileNothingHappens(t *testing.T) {
	inBubble(t, func(t *testing.T, r *replica) {
		r.become(nil)
		pass(settle)
		before := r.server.count()
		r.learn(8, false) // counters in a status
		pass(12 * propagation.RenewInterval)
		if got := r.server.count() - before; got != 12 {
			t.Errorf("%d writes in 12 intervals", got)
		}
		if got, _ := r.server.known(t); got.Observed != 8 {
			t.Errorf("published version %d, want 8", got.Observed)
		}
	})
}

func TestPublisherTellsNewsWithinASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, r *replica) {
		r.become(nil)
		pass(settle)
		pass(2 * time.Second)
		before := r.server.count()
		r.learn(8, true)
		synctest.Wait()
		if got, _ := r.server.known(t); got.Observed != 8 {
			t.Errorf("news after a quiet time wait: %d is published", got.Observed)
		}
		for i := range uint64(100) { // 20 a second
			r.learn(9+i, true)
			pass(50 * time.Millisecond)
		}
		if got := r.server.count() - before; got < 5 || got > 7 {
			t.Errorf("%d writes in 5 s of news", got)
		}
		pass(propagation.MinPublishInterval)
		if got, _ := r.server.known(t); got.Observed != 108 {
			t.Errorf("published version %d, the last is 108", got.Observed)
		}
	})
}

func TestPublisherIsInDoubtWhenItCannotRenew(t *testing.T) {
	inBubble(t, func(t *testing.T, r *replica) {
		r.become(nil)
		pass(settle)
		last, _ := r.server.known(t)
		r.server.do(func() { r.server.err = errors.New("etcd is away") })
		pass(propagation.ReplicaDoubt - time.Since(last.Renewed))
		if r.Doubt() {
			t.Error("in doubt too early")
		}
		pass(time.Millisecond)
		if !r.Doubt() {
			t.Errorf("not in doubt %v after the last write", time.Since(last.Renewed))
		}
		r.server.do(func() { r.server.err = nil })
		pass(settle)
		if r.Doubt() {
			t.Error("still in doubt though it has caught up")
		}
	})
}

// While nobody waited for it, others may have told users that all replicas know
// what this one does not.
func TestPublisherIsInDoubtUntilItHasCaughtUp(t *testing.T) {
	tests := map[string]func(r *replica){
		"when it begins": func(r *replica) {},
		"when it could not renew for long": func(r *replica) {
			pass(settle)
			r.server.do(func() { r.server.err = errors.New("etcd is away") })
			pass(time.Minute)
			r.server.do(func() { r.server.err = nil })
		},
		"when its Lease was deleted": func(r *replica) {
			pass(settle)
			r.server.do(func() { r.server.stored = nil })
			pass(propagation.RenewInterval)
		},
	}
	for name, happens := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *replica) {
				r.become(nil)
				happens(r)
				r.fallBehind(errors.New("the watch hangs"))
				for range 10 {
					pass(propagation.MinPublishInterval)
					if !r.Doubt() {
						t.Fatal("not in doubt though it has not caught up")
					}
				}
				if known, ok := r.server.known(t); !ok || time.Since(known.Renewed) > propagation.MinPublishInterval {
					t.Errorf("others know %+v, %v", known, ok)
				}
				if len(r.catchUps) == 0 || r.catchUps[0].Name == "" {
					t.Errorf("caught up %d times, at first when others knew %+v", len(r.catchUps), r.catchUps)
				}
				r.fallBehind(nil)
				pass(propagation.MinPublishInterval)
				if r.Doubt() {
					t.Error("in doubt though it has caught up")
				}
			})
		})
	}
}

func TestPublisherRepairsItsLease(t *testing.T) {
	tests := map[string]func(*leases){
		"that somebody deleted": func(l *leases) { l.stored = nil },
		"that somebody edited":  func(l *leases) { l.stored.ResourceVersion = "edited"; l.stored.Spec.HolderIdentity = new("me") },
	}
	for name, meddle := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *replica) {
				r.become(nil)
				pass(settle)
				r.server.do(func() { meddle(r.server) })
				r.learn(8, true)
				pass(propagation.MinPublishInterval - time.Millisecond)
				if _, stored := r.server.known(t); !stored && !r.Doubt() {
					t.Error("nobody waits for the replica, and it is not in doubt")
				}
				pass(propagation.MinPublishInterval)
				pass(propagation.MinPublishInterval)
				if got, ok := r.server.known(t); !ok || got.Observed != 8 || r.Doubt() {
					t.Errorf("published %+v, %v; doubt %v", got, ok, r.Doubt())
				}
			})
		})
	}
	t.Run("whose creation was never answered", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *replica) {
			r.server.do(func() { r.server.err, r.server.lost = context.DeadlineExceeded, true })
			r.become(nil)
			pass(propagation.MinPublishInterval)
			if r.server.count() == 0 || !r.Doubt() {
				t.Fatalf("%d writes, doubt %v", r.server.count(), r.Doubt())
			}
			r.server.do(func() { r.server.err, r.server.lost = nil, false })
			pass(3 * propagation.MinPublishInterval)
			if got, ok := r.server.known(t); !ok || r.Doubt() {
				t.Errorf("published %+v, %v; doubt %v", got, ok, r.Doubt())
			}
		})
	})
}

// Others wait for a replica as long as its Lease is there.
func TestPublisherIsTrustedThoughAnAnswerWasLost(t *testing.T) {
	inBubble(t, func(t *testing.T, r *replica) {
		r.become(nil)
		pass(settle)
		r.server.do(func() { r.server.err, r.server.lost = context.DeadlineExceeded, true })
		r.learn(8, true)
		pass(propagation.MinPublishInterval)
		r.server.do(func() { r.server.err, r.server.lost = nil, false })
		for range 3 {
			pass(propagation.MinPublishInterval)
			if got, ok := r.server.known(t); !ok || got.Observed != 8 || r.Doubt() {
				t.Errorf("published %+v, %v; doubt %v", got, ok, r.Doubt())
			}
		}
	})
}

func TestPublisherPacesWritesThatFail(t *testing.T) {
	inBubble(t, func(t *testing.T, r *replica) {
		r.server.do(func() { r.server.err = errors.New("forbidden") })
		r.become(nil)
		for i := range uint64(100) {
			r.learn(9+i, true)
			pass(50 * time.Millisecond)
		}
		if got := r.server.count(); got < 4 || got > 6 {
			t.Errorf("%d attempts in 5 s", got)
		}
	})
}

func TestPublisherTakesItsLeaseBack(t *testing.T) {
	inBubble(t, func(t *testing.T, r *replica) {
		r.become(nil)
		pass(settle)
		stop := r.stop
		r.stop = func() {}
		stop()
		if got, ok := r.server.known(t); ok || !r.Doubt() {
			t.Errorf("left %+v; doubt %v", got, r.Doubt())
		}
	})
}
