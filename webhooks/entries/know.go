package entries

import (
	"context"
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

const (
	// mostRead is the largest number of SidecarSets that are read for a Pod; for more,
	// a list is cheaper.
	mostRead = 8
	// byNameTimeout leaves time for a list.
	byNameTimeout = time.Second
)

// A replica reads the recorded names, and SidecarSets by name. In the hardened layout its
// only other right on webhook configurations is to list and watch them.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-pods-provisional,verbs=get
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=apps.kruise.io,resources=sidecarsets,verbs=get

// Know returns nil once the snapshot holds every SidecarSet that was stored when Know
// was called. It reads the recorded names of SidecarSets that were between admission
// and storage recently, and reads those whose recorded content differs from the
// snapshot. The last check has proven that the snapshot holds all older ones. If the
// recorded names are incomplete, Know calls CatchUp.
func (f *Freshness) Know(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	if read := f.knowByName(ctx); read != "" {
		f.looks.WithLabelValues(read).Inc()
		return nil
	}
	f.looks.WithLabelValues("list").Inc()
	return f.CatchUp(ctx)
}

// knowByName tries to prove by recorded names that the snapshot is complete. It returns
// the kind of look-up that it used, and "" if the proof failed.
func (f *Freshness) knowByName(ctx context.Context) (read string) {
	if !f.Trusted() {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, byNameTimeout)
	defer cancel()
	reads := reads{}
	if guess := f.guess.Load(); guess != nil {
		f.read(ctx, reads, *guess)
	}
	object, err := f.recent.Get(ctx, struct{}{})
	// The leader removes a name when a window has passed since it was recorded. So the
	// replica must still trust its snapshot after it has read the names.
	if err != nil || !f.Trusted() {
		return ""
	}
	contents, ok := entryplan.Recent(object.Annotations)
	if !ok {
		f.guess.Store(nil)
		return ""
	}
	var unknown []string
	for name, content := range contents {
		if content == "" || f.catalog.Content(name) != content {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > mostRead {
		return ""
	}
	f.guess.Store(&unknown)
	if len(unknown) == 0 {
		return "names"
	}
	f.read(ctx, reads, unknown)
	if f.wait(ctx, reads, unknown) != nil {
		return ""
	}
	return "sidecarsets"
}

// reads are live reads of SidecarSets that are under way, by name.
type reads map[string]chan stored

// stored is the stored resourceVersion of a SidecarSet; 0 if it is not stored.
type stored struct {
	version uint64
	err     error
}

// read starts live reads of SidecarSets, unless one is under way.
func (f *Freshness) read(ctx context.Context, r reads, names []string) {
	for _, name := range names {
		if r[name] == nil {
			answer := make(chan stored, 1)
			r[name] = answer
			go func() {
				version, err := f.sets.Get(ctx, name)
				answer <- stored{version, err}
			}()
		}
	}
}

// wait waits until the snapshot holds the SidecarSets in the versions that the reads
// returned.
func (f *Freshness) wait(ctx context.Context, r reads, names []string) error {
	versions := snapshot.Versions{}
	for _, name := range names {
		answer := <-r[name]
		if answer.err != nil {
			return fmt.Errorf("reading SidecarSet %s: %w", name, answer.err)
		}
		if answer.version > 0 {
			versions[name] = answer.version
		}
	}
	if name, held := f.catalog.Ahead(versions, math.MaxUint64); name != "" {
		return fmt.Errorf("SidecarSet %s is stored in an older version than %d, which this replica has seen", name, held)
	}
	return f.catalog.WaitFor(ctx, versions)
}

// readRecent reads the metadata of the object that has names recorded, as it is stored
// now.
func (f *Freshness) readRecent(ctx context.Context, _ struct{}) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, byNameTimeout)
	defer cancel()
	object := snapshot.Metadata(configurationKind)
	if err := f.live.Get(ctx, client.ObjectKey{Name: entryplan.ConfigurationName(entryplan.Provisional)}, object); err != nil {
		return nil, err
	}
	version, err := podstate.ParseVersion(object.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if seen := f.recorded.Load(); version < seen { // etcd was restored; CatchUp will report it
		return nil, fmt.Errorf("%s has resourceVersion %d, but this replica has seen %d", object.Name, version, seen)
	}
	f.recorded.Store(version) // only one readRecent runs at a time
	return object, nil
}

// readVersion reads in which version a SidecarSet is stored now; 0 if it is not.
func (f *Freshness) readVersion(ctx context.Context, name string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, byNameTimeout)
	defer cancel()
	set := snapshot.Metadata(appsv1beta1.Kind)
	if err := f.live.Get(ctx, client.ObjectKey{Name: name}, set); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	return podstate.ParseVersion(set.ResourceVersion)
}
