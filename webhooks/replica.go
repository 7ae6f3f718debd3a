package webhooks

import (
	"context"
	"errors"
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

// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=coordination.k8s.io,resources=leases,namespace=sidecarset-system,verbs=create;update;delete

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
	// Clock is the time, the real one if nil; Registry takes the metrics, which
	// are not exposed if it is nil.
	Clock    clock.WithTicker
	Registry prometheus.Registerer
}

// Publisher tells the leader, by a Lease, that this replica answers Pods and up
// to which version it knows SidecarSets. It runs on every replica that answers
// webhooks, and begins once the replica is ready. Doubt is safe for concurrent
// use.
type Publisher struct {
	options PublisherOptions
	renewed atomic.Int64 // when the last write that worked began, in ns; 0 before the first
	lease   *coordinationv1.Lease
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

// age is how long ago the last write that worked began; 0 before the first.
func (p *Publisher) age() time.Duration {
	if renewed := p.renewed.Load(); renewed != 0 {
		return p.options.Clock.Since(time.Unix(0, renewed))
	}
	return 0
}

// Doubt reports whether others may have stopped waiting for this replica, since
// it could not renew its Lease, or never wrote one. What the replica knows may
// then be older than what users were told that everybody knows.
func (p *Publisher) Doubt() bool {
	return p.renewed.Load() == 0 || p.age() > propagation.ReplicaDoubt
}

// Start publishes until ctx ends, then takes the Lease back.
func (p *Publisher) Start(ctx context.Context) error {
	logger := logf.FromContext(ctx).WithName("replica")
	ticker := p.options.Clock.NewTicker(propagation.MinPublishInterval)
	defer ticker.Stop()
	var told uint64 // the change that has been published
	for {
		if version, changed := p.options.Observed(); p.due(ctx, changed > told) {
			if err := p.publish(ctx, version); err == nil {
				told = changed
			} else if ctx.Err() == nil {
				logger.Info("Could not publish what this replica knows", "reason", err.Error())
			}
		}
		select {
		case <-ctx.Done():
			p.withdraw(ctx)
			return nil
		case <-p.options.Changed:
		case <-ticker.C():
		}
	}
}

// due says whether to write now: something is new, or it is time to renew. The
// first time, the replica has to be ready.
func (p *Publisher) due(ctx context.Context, news bool) bool {
	if p.renewed.Load() != 0 {
		age := p.age()
		return news && age >= propagation.MinPublishInterval || age >= propagation.RenewInterval
	}
	request := (&http.Request{Method: http.MethodGet}).WithContext(ctx)
	for _, check := range p.options.Ready {
		if check(request) != nil {
			return false
		}
	}
	return true
}

// publishTimeout bounds one write.
const publishTimeout = 5 * time.Second

func (p *Publisher) publish(ctx context.Context, observed uint64) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	began := p.options.Clock.Now()
	lease := propagation.Replica{Name: p.options.Name, Observed: observed, Renewed: began}.Lease(p.options.Namespace)
	var err error
	if p.lease == nil {
		err = p.options.Writer.Create(ctx, lease)
	} else {
		lease.ResourceVersion = p.lease.ResourceVersion
		err = p.options.Writer.Update(ctx, lease)
	}
	if apierrors.IsConflict(err) { // the name is ours alone: whatever this is, it is in the way
		err = errors.Join(err, p.options.Writer.Delete(ctx, p.lease))
	}
	if err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			p.lease = nil
		}
		return fmt.Errorf("writing Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	p.lease = lease
	p.renewed.Store(began.UnixNano())
	return nil
}

// withdraw deletes the Lease, so that nobody waits for a replica that has ended.
// What still comes is answered with a live look-up.
func (p *Publisher) withdraw(ctx context.Context) {
	p.renewed.Store(0)
	if p.lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	if err := client.IgnoreNotFound(p.options.Writer.Delete(ctx, p.lease)); err != nil {
		logf.FromContext(ctx).Info("Could not take the replica's Lease back; it will be forgotten", "reason", err.Error())
	}
}
