package entries

import (
	"context"
	"errors"
	"fmt"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// Slots holds the newest known version of each slot, from the watch, and from reads and writes
// of this process. It runs on every replica, and is safe for concurrent use.
type Slots struct {
	informers snapshot.Informers
	live      client.Reader

	mu     sync.Mutex
	known  [entry.Slots]*entry.Slot
	notify []chan<- struct{}
}

// NewSlots returns a Slots that follows the slots in the manager's cache, and reads them with
// live. Add it to the manager.
func NewSlots(informers snapshot.Informers, live client.Reader) *Slots {
	return &Slots{informers: informers, live: live}
}

// NeedLeaderElection reports false: every replica answers calls by the slots.
func (*Slots) NeedLeaderElection() bool { return false }

// Start follows the slots until ctx ends.
func (s *Slots) Start(ctx context.Context) error {
	_, err := snapshot.Follow(ctx, s.informers, configurations(), func(name string, c, before *admissionregistrationv1.MutatingWebhookConfiguration) {
		switch i, ok := entry.Index(name); {
		case !ok:
		case c != nil:
			_, _ = s.take(ctx, i, c) // Read has the error
		case before != nil:
			s.gone(i, before.UID)
		}
	})
	return err
}

// All returns the known versions. A slot is nil if its object does not exist, or cannot be read.
func (s *Slots) All() [entry.Slots]*entry.Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// At returns the known version of a slot; nil if its object does not exist, or cannot be read.
func (s *Slots) At(slot int) *entry.Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[slot]
}

// Notify makes every later change send on the channel, without waiting for a receiver.
func (s *Slots) Notify(changed chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = append(s.notify, changed)
}

// errNoSlot says that the object of a slot does not exist.
var errNoSlot = errors.New("the object does not exist")

// Read reads a slot as it is stored at some moment after the call.
func (s *Slots) Read(ctx context.Context, slot int) (*entry.Slot, error) {
	name := entry.ConfigurationName(slot)
	then := s.At(slot)
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	switch err := s.live.Get(ctx, client.ObjectKey{Name: name}, c); {
	case apierrors.IsNotFound(err):
		if then != nil {
			s.gone(slot, then.Object.UID)
		}
		return nil, fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", name, errNoSlot)
	case err != nil:
		return nil, fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", name, err)
	}
	return s.take(ctx, slot, c)
}

// take takes in a version that was read or written. If it is older than the known one, Slots
// keeps the known one.
func (s *Slots) take(ctx context.Context, slot int, c *admissionregistrationv1.MutatingWebhookConfiguration) (*entry.Slot, error) {
	read, err := entry.Parse(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known[slot]
	switch {
	case err != nil:
		log.FromContext(ctx).WithName("pod-webhooks").Info("Cannot read a slot", "reason", err.Error())
	case known != nil && known.Version == read.Version:
		s.known[slot] = read // the watch keeps this copy, so the other one can be freed
		return read, nil
	case known != nil && known.Version > read.Version && known.Object.UID == c.UID:
		return read, nil
	}
	s.known[slot] = read
	s.tell()
	return read, err
}

// gone forgets an object, unless a newer one of its name is known.
func (s *Slots) gone(slot int, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.known[slot]; known == nil || known.Object.UID == uid {
		s.known[slot] = nil
		s.tell()
	}
}

func (s *Slots) tell() {
	for _, ch := range s.notify {
		snapshot.Signal(ch)
	}
}

// labelled reports whether an object has the label of the slots.
func labelled(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return c != nil && entry.Labelled().Matches(labels.Set(c.Labels))
}

// configurations returns an empty object of the kind of all slots, for snapshot.Follow.
func configurations() *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	c.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"))
	return c
}

// editor returns the last field manager of a slot's webhooks besides the operator; "" if it
// cannot be read. The watch does not deliver managedFields.
func (s *Slots) editor(ctx context.Context, slot int) (manager string) {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := s.live.Get(ctx, client.ObjectKey{Name: entry.ConfigurationName(slot)}, c); err != nil {
		return ""
	}
	return entry.Editor(c)
}
