package registration

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// A replica reads shards and SidecarSets by name.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-pods-0;sidecarset-pods-1;sidecarset-pods-2;sidecarset-pods-3;sidecarset-pods-4;sidecarset-pods-5;sidecarset-pods-6;sidecarset-pods-7;sidecarset-pods-8;sidecarset-pods-9;sidecarset-pods-10;sidecarset-pods-11;sidecarset-pods-12;sidecarset-pods-13;sidecarset-pods-14;sidecarset-pods-15,verbs=get
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=apps.kruise.io,resources=sidecarsets,verbs=get

const (
	// readTimeout bounds one live read, so that the next one may succeed instead. It is longer
	// than a call waits: a call ends by its own deadline.
	readTimeout = 10 * time.Second
	// readsOfOneCall bounds the SidecarSets that one call reads at a time.
	readsOfOneCall = 16
)

// Freshness knows what a call requires a replica to know. It keeps for each shard the newest
// number whose dependencies the snapshot has observed; calls up to that number need nothing else. A call with
// another number looks at the shard, and reads the SidecarSets whose dependencies the snapshot does not
// hold. What such reads show is a verdict about that call, so the observed serial does not move: a
// SidecarSet that is not stored now may be stored a moment later.
//
// Calls share reads, but only those that begin after the call came. Calls end with their
// contexts. A Freshness is safe for concurrent use.
type Freshness struct {
	shards *Shards
	store  *snapshot.Store
	health *snapshot.Health
	live   client.Reader

	kept  [podwebhook.Shards]atomic.Uint64
	reads *snapshot.Shared[int, *podwebhook.Shard] // of shards
	sets  *snapshot.Shared[string, uint64]         // the version of a SidecarSet; 0 if it is not stored

	nothingRead, shardRead, setsRead prometheus.Counter
}

// NewFreshness returns a Freshness of a replica's shards and snapshot. It tells health what its
// reads show.
func NewFreshness(shards *Shards, store *snapshot.Store, health *snapshot.Health, live client.Reader, registry prometheus.Registerer) *Freshness {
	k := &Freshness{shards: shards, store: store, health: health, live: live}
	k.reads = snapshot.NewShared(podwebhook.Shards, k.readShard)
	k.sets = snapshot.NewShared(math.MaxInt, k.readVersion) // readsOfOneCall bounds them, and the seats of Pods
	looks := promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_pod_webhook_lookups_total",
		Help: "Calls for Pods by what they made this replica read: nothing, shard (a shard's Pod webhooks), sidecarsets (some of them by name).",
	}, []string{"read"})
	k.nothingRead, k.shardRead, k.setsRead = looks.WithLabelValues("nothing"), looks.WithLabelValues("shard"), looks.WithLabelValues("sidecarsets")
	return k
}

// Ensure returns nil once the snapshot has observed what a call with that number of a shard requires for a
// Pod with these labels. It returns an error if this is not known before ctx ends.
func (k *Freshness) Ensure(ctx context.Context, shard int, number uint64, pod labels.Labels) error {
	if number <= k.kept[shard].Load() {
		k.nothingRead.Inc()
		return nil
	}
	s, read := k.shards.At(shard), k.nothingRead
	if s == nil || s.RequiredSerial < number || s.Serial < number {
		read = k.shardRead
		var err error
		if s, err = k.reads.Get(ctx, shard); err != nil {
			read.Inc()
			return fmt.Errorf("asking which SidecarSets the call requires, try again: %w", err)
		}
	}
	unobserved, err := k.unobserved(s, number, pod)
	if err == nil && len(unobserved) > 0 {
		read = k.setsRead
		err = k.check(ctx, unobserved)
	}
	read.Inc()
	return err
}

// unobserved returns the SidecarSets that a call requires and that the snapshot has not observed. If
// it holds all of the shard, the shard's serial is observed.
func (k *Freshness) unobserved(s *podwebhook.Shard, number uint64, pod labels.Labels) (names []string, err error) {
	if s.Serial < number {
		return nil, fmt.Errorf("MutatingWebhookConfiguration %s has serial %d, and the call has %d: another program has reset it; try again when the leader has written it",
			s.Object.Name, s.Serial, number)
	}
	if len(s.Unobserved(nil, k.store.HasObserved)) == 0 {
		k.keep(s)
		return nil, nil
	}
	for _, n := range s.Unobserved(pod, k.store.HasObserved) {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil // one name may have several UIDs
}

func (k *Freshness) keep(s *podwebhook.Shard) {
	kept := &k.kept[s.Index]
	for {
		known := kept.Load()
		if s.RequiredSerial <= known || kept.CompareAndSwap(known, s.RequiredSerial) {
			return
		}
	}
}

// Check reads SidecarSets by name, and returns nil once the snapshot has observed what the reads showed.
func (k *Freshness) Check(ctx context.Context, names []string) error {
	k.setsRead.Inc()
	return k.check(ctx, names)
}

func (k *Freshness) check(ctx context.Context, names []string) error {
	var mu sync.Mutex
	stored := snapshot.Versions{}
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(readsOfOneCall)
	for _, name := range names {
		group.Go(func() error {
			version, err := k.sets.Get(reading, name)
			if err != nil {
				return fmt.Errorf("reading SidecarSet %s, try again: %w", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if version > 0 {
				stored[name] = version
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := k.store.WaitFor(ctx, stored); err != nil {
		return fmt.Errorf("waiting for this replica of the operator to know the newest SidecarSets, try again: %w", err)
	}
	return nil
}

func (k *Freshness) readShard(ctx context.Context, shard int) (*podwebhook.Shard, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return k.shards.Read(ctx, shard)
}

// readVersion reads in which version a SidecarSet is stored now; 0 if it is not.
func (k *Freshness) readVersion(ctx context.Context, name string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	seen, stored := k.store.Version(name), true
	version, err := snapshot.Confirmed(ctx, seen, func(ctx context.Context) (uint64, error) {
		set := snapshot.Metadata(appsv1beta1.Kind)
		if err := k.live.Get(ctx, client.ObjectKey{Name: name}, set); err != nil {
			stored = false
			return math.MaxUint64, client.IgnoreNotFound(err)
		}
		stored = true
		return podstate.ParseVersion(set.ResourceVersion)
	})
	switch {
	case err != nil || !stored:
		return 0, err
	case version < seen:
		return 0, k.health.Restored("SidecarSet "+name, seen, version)
	}
	return version, nil
}
