package registration

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

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// Shards holds the newest known version of each shard, from the watch, and from reads and writes
// of this process. It runs on every replica, and is safe for concurrent use.
type Shards struct {
	informers snapshot.Informers
	live      client.Reader

	mu     sync.Mutex
	known  [podwebhook.Shards]*podwebhook.Shard
	notify []chan<- struct{}
}

// NewShards returns a Shards that follows the shards in the manager's cache, and reads them with
// live. Add it to the manager.
func NewShards(informers snapshot.Informers, live client.Reader) *Shards {
	return &Shards{informers: informers, live: live}
}

// NeedLeaderElection reports false: every replica answers calls by the shards.
func (*Shards) NeedLeaderElection() bool { return false }

// Start follows the shards until ctx ends.
func (s *Shards) Start(ctx context.Context) error {
	_, err := snapshot.Follow(ctx, s.informers, configurations(), func(name string, c, before *admissionregistrationv1.MutatingWebhookConfiguration) {
		switch i, ok := podwebhook.ShardNumber(name); {
		case !ok:
		case c != nil:
			_, _ = s.take(ctx, i, c) // Read has the error
		case before != nil:
			s.gone(i, before.UID)
		}
	})
	return err
}

// All returns the known versions. A shard is nil if its object does not exist, or cannot be read.
func (s *Shards) All() [podwebhook.Shards]*podwebhook.Shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// At returns the known version of a shard; nil if its object does not exist, or cannot be read.
func (s *Shards) At(shard int) *podwebhook.Shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[shard]
}

// Notify makes every later change send on the channel, without waiting for a receiver.
func (s *Shards) Notify(changed chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = append(s.notify, changed)
}

// errNoShard says that the object of a shard does not exist.
var errNoShard = errors.New("the object does not exist")

// Read reads a shard as it is stored at some moment after the call.
func (s *Shards) Read(ctx context.Context, shard int) (*podwebhook.Shard, error) {
	name := podwebhook.ConfigurationName(shard)
	then := s.At(shard)
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	switch err := s.live.Get(ctx, client.ObjectKey{Name: name}, c); {
	case apierrors.IsNotFound(err):
		if then != nil {
			s.gone(shard, then.Object.UID)
		}
		return nil, fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", name, errNoShard)
	case err != nil:
		return nil, fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", name, err)
	}
	return s.take(ctx, shard, c)
}

// take takes in a version that was read or written. If it is older than the known one, Shards
// keeps the known one.
func (s *Shards) take(ctx context.Context, shard int, c *admissionregistrationv1.MutatingWebhookConfiguration) (*podwebhook.Shard, error) {
	read, err := podwebhook.Parse(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known[shard]
	switch {
	case err != nil:
		log.FromContext(ctx).WithName("pod-webhooks").Info("Failed to parse a MutatingWebhookConfiguration", "reason", err.Error())
	case known != nil && known.Version == read.Version:
		s.known[shard] = read // the watch keeps this copy, so the other one can be freed
		return read, nil
	case known != nil && known.Version > read.Version && known.Object.UID == c.UID:
		return read, nil
	}
	s.known[shard] = read
	s.tell()
	return read, err
}

// gone forgets an object, unless a newer one of its name is known.
func (s *Shards) gone(shard int, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.known[shard]; known == nil || known.Object.UID == uid {
		s.known[shard] = nil
		s.tell()
	}
}

func (s *Shards) tell() {
	for _, ch := range s.notify {
		snapshot.Signal(ch)
	}
}

// labelled reports whether an object has the label of the shards.
func labelled(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return c != nil && podwebhook.Labelled().Matches(labels.Set(c.Labels))
}

// configurations returns an empty object of the kind of all shards, for snapshot.Follow.
func configurations() *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	c.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"))
	return c
}

// editor returns the last field manager of a shard's webhooks other than the operator; "" if it
// cannot be read. The watch does not deliver managedFields.
func (s *Shards) editor(ctx context.Context, shard int) (manager string) {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := s.live.Get(ctx, client.ObjectKey{Name: podwebhook.ConfigurationName(shard)}, c); err != nil {
		return ""
	}
	return podwebhook.Editor(c)
}
