package entries

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// freshTimeout bounds one attempt to make the snapshot catch up. A request that waits
// for it ends earlier if its API server does.
const freshTimeout = 3 * time.Second

// Freshness makes sure that the snapshot holds every stored SidecarSet. It lists their
// versions live, and waits until the Catalog holds these. Requests share the list. If this
// check succeeds, the replica trusts its snapshot for a time. It is safe for concurrent use.
type Freshness struct {
	live     client.Reader
	catalog  versionWaiter
	timeline *snapshot.Timeline
	lists    *snapshot.Shared[struct{}, snapshot.Versions]             // of all SidecarSets
	recent   *snapshot.Shared[struct{}, *metav1.PartialObjectMetadata] // the object that has names recorded
	sets     *snapshot.Shared[string, uint64]                          // the version of a SidecarSet; 0 if it is not stored
	trust    time.Duration

	checked  atomic.Pointer[time.Time] // when the newest check that succeeded began; nil before the first
	recorded atomic.Uint64             // the newest version of the object in recent that was seen
	guess    atomic.Pointer[[]string]  // the SidecarSets that were read for the last Pod
	looks    *prometheus.CounterVec
}

// versionWaiter is the part of a Catalog that Freshness needs.
type versionWaiter interface {
	// WaitFor returns once the snapshot holds SidecarSets in these versions or
	// later ones, or an error when ctx ends before.
	WaitFor(ctx context.Context, stored snapshot.Versions) error
	// Ahead returns a SidecarSet that the snapshot holds in a later version than
	// the stored one, but not later than the list; "" if there is none.
	Ahead(stored snapshot.Versions, list uint64) (name string, held uint64)
	// Content is the entryplan.Content of a SidecarSet as the snapshot holds it; "" if it
	// does not hold it.
	Content(name string) string
}

// NewFreshness returns a Freshness that trusts the snapshot for the time trust after each
// check. Add it to the manager.
func NewFreshness(live client.Reader, catalog versionWaiter, timeline *snapshot.Timeline, trust time.Duration) *Freshness {
	f := &Freshness{live: live, catalog: catalog, timeline: timeline, trust: trust}
	f.lists = snapshot.NewShared(1, f.list)
	f.recent = snapshot.NewShared(1, f.readRecent)
	f.sets = snapshot.NewShared(4*mostRead, f.readVersion)
	f.looks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sidecarset_pod_webhook_lookups_total",
		Help: "Live look-ups for Pods and for reviews of SidecarSets, by what they read: names (of the SidecarSets that were on their way), sidecarsets (some of these as well), list (all SidecarSets).",
	}, []string{"read"})
	return f
}

// Expose registers the metrics.
func (f *Freshness) Expose(registry prometheus.Registerer) {
	registry.MustRegister(f.looks, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sidecarset_snapshot_check_age_seconds",
		Help: "Time since the last successful check of this replica's snapshot began; while it is over 20, Pods wait for a live look-up.",
	}, func() float64 {
		monotonic, _ := f.age()
		return monotonic.Seconds()
	}))
}

// Trusted reports whether the replica may answer by its snapshot without a check.
func (f *Freshness) Trusted() bool {
	monotonic, wall := f.age()
	return f.checked.Load() != nil && entryplan.Trusted(monotonic, wall, f.trust)
}

// age is the time since the newest check began, by the monotonic and by the wall clock; 0 if
// there was none.
func (f *Freshness) age() (monotonic, wall time.Duration) {
	checked := f.checked.Load()
	if checked == nil {
		return 0, 0
	}
	now := time.Now()
	return now.Sub(*checked), now.Round(0).Sub(checked.Round(0))
}

// NeedLeaderElection reports false: every replica checks its own snapshot.
func (*Freshness) NeedLeaderElection() bool { return false }

// checkPause is the pause after a check that failed.
const checkPause = time.Second

// Start checks the snapshot until ctx ends: twice in the time that a check is trusted, and
// when a watch has begun anew, since the check also tells whether the cluster's state was
// restored. Watches may be cut many times a second, so checkPause is the least time
// between two checks.
func (f *Freshness) Start(ctx context.Context) error {
	for {
		err := f.CatchUp(ctx)
		due := time.After(f.trust / 2)
		if err != nil && ctx.Err() == nil {
			logf.FromContext(ctx).WithName("freshness").V(1).Info("Could not check the snapshot", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(checkPause):
		}
		if err != nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.timeline.Reconnected():
		case <-due:
		}
	}
}

// CatchUp returns nil once the snapshot holds every SidecarSet that was stored
// when CatchUp was called. If it fails, the replica cannot tell which SidecarSets select a
// Pod.
func (f *Freshness) CatchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	began := time.Now()
	stored, err := f.lists.Get(ctx, struct{}{})
	if err != nil {
		return fmt.Errorf("asking for the newest SidecarSets, try again: %w", err)
	}
	if err := f.catalog.WaitFor(ctx, stored); err != nil {
		return fmt.Errorf("waiting for this replica of the operator to know the newest SidecarSets, try again: %w", err)
	}
	f.certify(began)
	return nil
}

// certify notes a check that succeeded.
func (f *Freshness) certify(began time.Time) {
	for {
		known := f.checked.Load()
		if known != nil && !began.After(*known) || f.checked.CompareAndSwap(known, &began) {
			return
		}
	}
}

// list reads the versions of all SidecarSets as they are stored now. It fails if they are
// older than versions that this process has seen: see snapshot.Timeline.
func (f *Freshness) list(ctx context.Context, _ struct{}) (snapshot.Versions, error) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	newest := f.timeline.Newest()
	list, err := listSidecarSets(ctx, f.live)
	if err != nil {
		return nil, err
	}
	if err := f.timeline.Check(newest, list.ResourceVersion); err != nil {
		return nil, err
	}
	stored := make(snapshot.Versions, len(list.Items))
	for i := range list.Items {
		version, err := podstate.ParseVersion(list.Items[i].ResourceVersion)
		if err != nil {
			return nil, fmt.Errorf("reading SidecarSet %s: %w", list.Items[i].Name, err)
		}
		stored[list.Items[i].Name] = version
	}
	// After a restore, other writes may have brought the list's version up again.
	if at, err := podstate.ParseVersion(list.ResourceVersion); err == nil {
		if name, held := f.catalog.Ahead(stored, at); name != "" {
			return nil, f.timeline.Report(&snapshot.RestoredError{Object: name, Seen: held, Stored: stored[name]})
		}
	}
	return stored, nil
}

// mostListed is more SidecarSets than etcd can hold.
const mostListed = 1_000_000

// listSidecarSets returns the metadata of all SidecarSets as they are stored now. The
// list has a limit because of an API server that builds its cache anew, for instance
// after a write of the CustomResourceDefinition: it answers a list without a limit with
// 429 and "try again in a second", and one with a limit from etcd.
func listSidecarSets(ctx context.Context, live client.Reader) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(appsv1beta1.GroupVersion.WithKind(appsv1beta1.Kind.Kind + "List"))
	if err := live.List(ctx, list, client.Limit(mostListed)); err != nil {
		return nil, err
	}
	if list.Continue != "" {
		return nil, fmt.Errorf("more than %d SidecarSets are stored", mostListed)
	}
	return list, nil
}
