package entries

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
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// A replica reads slots and SidecarSets by name.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-pods-0;sidecarset-pods-1;sidecarset-pods-2;sidecarset-pods-3;sidecarset-pods-4;sidecarset-pods-5;sidecarset-pods-6;sidecarset-pods-7;sidecarset-pods-8;sidecarset-pods-9;sidecarset-pods-10;sidecarset-pods-11;sidecarset-pods-12;sidecarset-pods-13;sidecarset-pods-14;sidecarset-pods-15,verbs=get
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=apps.kruise.io,resources=sidecarsets,verbs=get

const (
	// readTimeout bounds one live read, so that the next one may succeed instead. It is longer
	// than a call waits: a call ends by its own deadline.
	readTimeout = 10 * time.Second
	// readsOfOneCall bounds the SidecarSets that one call reads at a time.
	readsOfOneCall = 16
)

// Knowledge knows what a call requires a replica to know. It keeps for each slot the newest
// number whose needs the snapshot holds; calls up to that number need nothing else. A call with
// another number looks at the slot, and reads the SidecarSets whose needs the snapshot does not
// hold. What such reads show is a verdict about that call, so the kept number does not move: a
// SidecarSet that is not stored now may be stored a moment later.
//
// Calls share reads, but only those that begin after the call came. Calls end with their
// contexts. A Knowledge is safe for concurrent use.
type Knowledge struct {
	slots   *Slots
	catalog *snapshot.Catalog
	health  *snapshot.Health
	live    client.Reader

	kept  [entry.Slots]atomic.Uint64
	reads *snapshot.Shared[int, *entry.Slot] // of slots
	sets  *snapshot.Shared[string, uint64]   // the version of a SidecarSet; 0 if it is not stored

	nothingRead, slotRead, setsRead prometheus.Counter
}

// NewKnowledge returns a Knowledge of a replica's slots and snapshot. It tells health what its
// reads show.
func NewKnowledge(slots *Slots, catalog *snapshot.Catalog, health *snapshot.Health, live client.Reader, registry prometheus.Registerer) *Knowledge {
	k := &Knowledge{slots: slots, catalog: catalog, health: health, live: live}
	k.reads = snapshot.NewShared(entry.Slots, k.readSlot)
	k.sets = snapshot.NewShared(math.MaxInt, k.readVersion) // readsOfOneCall bounds them, and the seats of Pods
	looks := promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_pod_webhook_lookups_total",
		Help: "Calls for Pods by what they made this replica read: nothing, slot (a slot's webhook entries), sidecarsets (some of them by name).",
	}, []string{"read"})
	k.nothingRead, k.slotRead, k.setsRead = looks.WithLabelValues("nothing"), looks.WithLabelValues("slot"), looks.WithLabelValues("sidecarsets")
	return k
}

// Ensure returns nil once the snapshot holds what a call with that number of a slot requires for a
// Pod with these labels. It returns an error if this is not known before ctx ends.
func (k *Knowledge) Ensure(ctx context.Context, slot int, number uint64, pod labels.Labels) error {
	if number <= k.kept[slot].Load() {
		k.nothingRead.Inc()
		return nil
	}
	s, read := k.slots.At(slot), k.nothingRead
	if s == nil || s.PathSerial < number || s.Serial < number {
		read = k.slotRead
		var err error
		if s, err = k.reads.Get(ctx, slot); err != nil {
			read.Inc()
			return fmt.Errorf("asking which SidecarSets the call requires, try again: %w", err)
		}
	}
	unheld, err := k.unheld(s, number, pod)
	if err == nil && len(unheld) > 0 {
		read = k.setsRead
		err = k.know(ctx, unheld)
	}
	read.Inc()
	return err
}

// unheld returns the SidecarSets that a call requires and that the snapshot does not hold. If
// it holds all of the slot, the slot's number is kept.
func (k *Knowledge) unheld(s *entry.Slot, number uint64, pod labels.Labels) (names []string, err error) {
	if s.Serial < number {
		return nil, fmt.Errorf("MutatingWebhookConfiguration %s has serial %d, and the call has %d: another program has reset it; try again when the leader has written it",
			s.Object.Name, s.Serial, number)
	}
	if len(s.Unheld(nil, k.catalog.Holds)) == 0 {
		k.keep(s)
		return nil, nil
	}
	for _, n := range s.Unheld(pod, k.catalog.Holds) {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil // one name may have several UIDs
}

func (k *Knowledge) keep(s *entry.Slot) {
	kept := &k.kept[s.Index]
	for {
		known := kept.Load()
		if s.PathSerial <= known || kept.CompareAndSwap(known, s.PathSerial) {
			return
		}
	}
}

// Know reads SidecarSets by name, and returns nil once the snapshot holds what the reads showed.
func (k *Knowledge) Know(ctx context.Context, names []string) error {
	k.setsRead.Inc()
	return k.know(ctx, names)
}

func (k *Knowledge) know(ctx context.Context, names []string) error {
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
	if err := k.catalog.WaitFor(ctx, stored); err != nil {
		return fmt.Errorf("waiting for this replica of the operator to know the newest SidecarSets, try again: %w", err)
	}
	return nil
}

func (k *Knowledge) readSlot(ctx context.Context, slot int) (*entry.Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return k.slots.Read(ctx, slot)
}

// readVersion reads in which version a SidecarSet is stored now; 0 if it is not.
func (k *Knowledge) readVersion(ctx context.Context, name string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	seen, stored := k.catalog.Version(name), true
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
