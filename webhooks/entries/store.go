package entries

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/podstate"
)

// configurationStore holds the newest known state of the configuration objects, from the
// watch and from this process's own writes. It is safe for concurrent use.
type configurationStore struct {
	live   client.Reader
	writer client.Client
	notify func()

	mu     sync.Mutex
	layout entryplan.Layout
	serial int64 // the highest serial that this process has seen
}

// current returns the objects that exist, except those in a format that this version of the
// operator cannot read.
func (s *configurationStore) current() entryplan.Layout { return s.all().Readable() }

// recordable returns the same as current. If the store does not know the object in which
// names are recorded, it first reads that object: if it exists, names have to be recorded.
func (s *configurationStore) recordable(ctx context.Context) (entryplan.Layout, error) {
	if s.all()[entryplan.Provisional] == nil {
		if err := s.refresh(ctx, entryplan.Provisional); err != nil {
			return entryplan.Layout{}, err
		}
	}
	return s.current(), nil
}

// all returns the objects that exist, also those that this version cannot read.
func (s *configurationStore) all() entryplan.Layout {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.layout
}

// minSerial is the lowest serial for a write at a time. It is above all serials that were
// seen, even if the clock of their writer was ahead: an API server may still use such an
// object, and a serial must not be used twice.
func (s *configurationStore) minSerial(now time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(now.UnixMilli(), s.serial+1)
}

// changed takes in an event of the watch; c is nil if the object is deleted. If the watch
// sends an older object than before, the cluster's state was restored, and the store takes
// the older one. Objects without the label are not the operator's.
func (s *configurationStore) changed(_ string, c, before *admissionregistrationv1.MutatingWebhookConfiguration) {
	switch is, was := labelled(c), labelled(before); {
	case is && was && newer(before, c):
		s.observeInstead(c, s.all())
	case is:
		s.observe(c)
	case was:
		s.gone(before)
	}
}

// labelled reports whether an object has the label of the objects with entries.
func labelled(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return c != nil && entryplan.Labelled().Matches(labels.Set(c.Labels))
}

// configurationKind is the kind of all objects with entries.
var configurationKind = admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration")

// configurations returns an empty object of that kind, for snapshot.Follow.
func configurations() *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	c.SetGroupVersionKind(configurationKind)
	return c
}

func (s *configurationStore) observe(c *admissionregistrationv1.MutatingWebhookConfiguration) {
	s.observeInstead(c, entryplan.Layout{})
}

// observeInstead stores an object if it is newer than the known one, or if the known one has
// not changed since then.
func (s *configurationStore) observeInstead(c *admissionregistrationv1.MutatingWebhookConfiguration, then entryplan.Layout) {
	i, ok := entryplan.Index(c.Name)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial = max(s.serial, entryplan.Serial(c))
	known := s.layout[i]
	switch {
	case known == nil || known == then[i] && known.ResourceVersion != c.ResourceVersion || newer(c, known):
		s.layout[i] = c
		s.notify()
	case known.ResourceVersion == c.ResourceVersion:
		s.layout[i] = c // the watch keeps this copy, so the other one can be freed
	}
}

// gone forgets an object, unless a newer one of its name is known.
func (s *configurationStore) gone(c *admissionregistrationv1.MutatingWebhookConfiguration) {
	i, ok := entryplan.Index(c.Name)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.layout[i]; known != nil && known.UID == c.UID {
		s.layout[i] = nil
		s.notify()
	}
}

func newer(a, b metav1.Object) bool {
	va, errA := podstate.ParseVersion(a.GetResourceVersion())
	vb, errB := podstate.ParseVersion(b.GetResourceVersion())
	return errA != nil || errB != nil || va > vb
}

// write carries out a change, if the object is the one that the change was planned from.
// Otherwise it reports stale, after the store has read the present object.
func (s *configurationStore) write(ctx context.Context, change entryplan.Change) (stale bool, err error) {
	object := change.Object.DeepCopy()
	switch err = s.writer.Update(ctx, object); {
	case err == nil:
		s.observe(object)
		return false, nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return true, s.refresh(ctx, change.Index)
	default:
		return false, fmt.Errorf("writing MutatingWebhookConfiguration %s: %w", entryplan.ConfigurationName(change.Index), err)
	}
}

// refresh reads one object as it is stored now. The store takes it whatever its version
// is, unless a newer one has become known meanwhile.
func (s *configurationStore) refresh(ctx context.Context, i int) error {
	then, name := s.all(), entryplan.ConfigurationName(i)
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	switch err := s.live.Get(ctx, client.ObjectKey{Name: name}, c); {
	case apierrors.IsNotFound(err):
		if known := then[i]; known != nil {
			s.gone(known)
		}
		return nil
	case err != nil:
		return fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", name, err)
	}
	s.observeInstead(c, then)
	return nil
}

// editor returns the last field manager of an object's webhooks besides the operator; "" if it
// cannot be read. The watch does not deliver managedFields.
func (s *configurationStore) editor(ctx context.Context, name string) (manager string) {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := s.live.Get(ctx, client.ObjectKey{Name: name}, c); err != nil {
		return ""
	}
	var last metav1.Time
	for _, f := range c.ManagedFields {
		if f.Time != nil && !f.Time.Before(&last) && !strings.HasPrefix(f.Manager, "sidecarset-operator") && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:webhooks"`) {
			manager, last = f.Manager, *f.Time
		}
	}
	return manager
}
