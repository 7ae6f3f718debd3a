package webhooks

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/propagation"
)

// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=create;patch;delete

// PublisherOptions is what a Publisher needs.
type PublisherOptions struct {
	// Name is unique among replicas, of this process and earlier ones.
	Name, Namespace string
	// Writer writes Leases.
	Writer client.Writer
	// Observed says how far the snapshot has come, and since which version it
	// has said something new.
	Observed func() (version, changed uint64)
	// Changed is sent to when there is a new snapshot.
	Changed <-chan struct{}
	// Ready says whether the replica can answer, by its readiness checks.
	Ready []healthz.Checker
	// CatchUp returns nil once the snapshot holds every SidecarSet that was stored
	// when it was called.
	CatchUp func(context.Context) error
	// Clock is the time, the real one if nil; Registry takes the metrics, which
	// are not exposed if it is nil.
	Clock    clock.Clock
	Registry prometheus.Registerer
}

// Publisher tells the leader, by a Lease, that this replica answers Pods and up
// to which version it knows SidecarSets. It runs on every replica that answers
// webhooks, and begins once the replica is ready. Doubt is safe for concurrent
// use.
type Publisher struct {
	options PublisherOptions
	renewed atomic.Pointer[time.Time] // when the last write that worked began; nil while others do not wait for it
	trusted atomic.Bool               // the snapshot held all that was stored after others had begun to wait for it
	lease   *coordinationv1.Lease     // as it was written last; nil if there is none
	joined  bool                      // a write has worked since the replica was in doubt
	tried   time.Time                 // when the last write began
}

// NewPublisher returns a Publisher. Add it to the manager.
func NewPublisher(options PublisherOptions) *Publisher {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	p := &Publisher{options: options}
	if options.Registry != nil {
		options.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidecarset_replica_lease_age_seconds",
			Help: "Time since this replica last told the leader what it knows; while it is over 20, Pods wait for a live look-up.",
		}, func() float64 { return p.age().Seconds() }))
	}
	return p
}

// NeedLeaderElection reports false: every replica publishes.
func (*Publisher) NeedLeaderElection() bool { return false }

// age is how long ago the last write that worked began; 0 before the first. The
// wall clock may be set, and the other stands still while the machine does: the
// one that says more counts.
func (p *Publisher) age() time.Duration {
	renewed := p.renewed.Load()
	if renewed == nil {
		return 0
	}
	now := p.options.Clock.Now()
	return max(now.Sub(*renewed), now.Round(0).Sub(renewed.Round(0)))
}

// Doubt reports whether others may have stopped waiting for this replica, since
// it could not renew its Lease, or never wrote one; and for as long after that as
// it has not caught up. What the replica knows may then be older than what users
// were told that everybody knows.
func (p *Publisher) Doubt() bool {
	return !p.trusted.Load() || p.late()
}

// late says whether others may have stopped waiting.
func (p *Publisher) late() bool { return p.age() > propagation.ReplicaDoubt }

// Start publishes until ctx ends, then takes the Lease back.
func (p *Publisher) Start(ctx context.Context) error {
	logger := logf.FromContext(ctx).WithName("replica")
	var told uint64 // the change that has been published
	for {
		version, changed := p.options.Observed()
		pause := p.pause(ctx, changed > told)
		if pause <= 0 {
			if err := p.publish(ctx, version); err == nil {
				told = changed
			} else if ctx.Err() == nil {
				logger.Info("Could not publish what this replica knows", "reason", err.Error())
			}
			continue
		}
		timer := p.options.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			p.withdraw(ctx)
			return nil
		case <-p.options.Changed:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// pause is how long to wait before the next write, if nothing happens; 0 if it is
// due: something is new, or it is time to renew. While others do not wait for the
// replica, it has to be ready first.
func (p *Publisher) pause(ctx context.Context, news bool) time.Duration {
	if since := p.options.Clock.Since(p.tried); since < propagation.MinPublishInterval {
		return propagation.MinPublishInterval - max(since, 0)
	}
	switch {
	case p.renewed.Load() != nil && (news || !p.trusted.Load()):
		return 0
	case p.renewed.Load() != nil:
		return max(propagation.RenewInterval-p.age(), 0)
	case !p.ready(ctx):
		return propagation.MinPublishInterval
	}
	return 0
}

func (p *Publisher) ready(ctx context.Context) bool {
	request := (&http.Request{Method: http.MethodGet}).WithContext(ctx)
	for _, check := range p.options.Ready {
		if check(request) != nil {
			return false
		}
	}
	return true
}

// publishTimeout bounds one write, leaveTimeout the last one of a process that
// should not go on.
const (
	publishTimeout = 5 * time.Second
	leaveTimeout   = time.Second
)

func (p *Publisher) publish(ctx context.Context, observed uint64) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if p.late() {
		p.distrust()
	}
	p.tried = p.options.Clock.Now()
	began := p.tried
	lease := propagation.Replica{Name: p.options.Name, Observed: observed, Renewed: began}.Lease(p.options.Namespace)
	err := p.write(ctx, lease)
	if err == nil {
		p.lease = lease
		p.renewed.Store(&began)
		return p.catchUp(ctx)
	}
	if apierrors.IsNotFound(err) {
		p.lose()
	}
	return fmt.Errorf("writing Lease %s/%s: %w", lease.Namespace, lease.Name, err)
}

// write puts the Lease in place, whatever stands there: the name is ours alone, so
// that somebody edited it, or the answer to an earlier write was lost.
func (p *Publisher) write(ctx context.Context, lease *coordinationv1.Lease) error {
	if p.lease == nil {
		if err := p.options.Writer.Create(ctx, lease); !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return p.options.Writer.Patch(ctx, lease, client.Merge)
}

// catchUp ends the doubt. What others said that all replicas know, while they did
// not wait for this one, may not have reached its snapshot yet, and nobody takes
// it back. So the snapshot has to hold what is stored now. That is asked after the
// second write: by then, a second later, everybody has seen the first.
func (p *Publisher) catchUp(ctx context.Context) error {
	if p.trusted.Load() {
		return nil
	}
	if !p.joined {
		p.joined = true
		return nil
	}
	if err := p.options.CatchUp(ctx); err != nil {
		return fmt.Errorf("catching up: %w", err)
	}
	p.trusted.Store(true)
	return nil
}

// distrust begins the doubt.
func (p *Publisher) distrust() {
	p.trusted.Store(false)
	p.joined = false
}

// lose forgets the Lease. Until there is another one, nobody waits for the replica.
func (p *Publisher) lose() {
	p.distrust()
	p.renewed.Store(nil)
	p.lease = nil
}

// Leave deletes the Lease of a process that is about to end without its manager.
// It may be called while Start runs.
func (p *Publisher) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	lease := propagation.Replica{Name: p.options.Name}.Lease(p.options.Namespace)
	return client.IgnoreNotFound(p.options.Writer.Delete(ctx, lease))
}

// withdraw deletes the Lease, so that nobody waits for a replica that has ended.
// What still comes is answered with a live look-up.
func (p *Publisher) withdraw(ctx context.Context) {
	p.distrust()
	p.renewed.Store(nil)
	if p.lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	if err := client.IgnoreNotFound(p.options.Writer.Delete(ctx, p.lease)); err != nil {
		logf.FromContext(ctx).Info("Could not take the replica's Lease back; it will be forgotten", "reason", err.Error())
	}
}
