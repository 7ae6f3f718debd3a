package webhooks

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/propagation"
)

// freshTimeout bounds how long a Pod waits for the snapshot to catch up. It
// leaves room within the 5 s that the API server waits for us.
const freshTimeout = 3 * time.Second

// freshness makes sure that the snapshot holds every SidecarSet that is stored:
// it asks the API server for the newest, and waits for the Catalog to have seen
// it. Requests share the question: one is under way at most, and one waits that
// answers all who came meanwhile, since only a list that began after a request
// came can speak for it. It is safe for concurrent use.
type freshness struct {
	live    client.Reader
	catalog versionWaiter

	mu      sync.Mutex
	running bool
	next    *listing
}

// versionWaiter is the part of a Catalog that freshness needs.
type versionWaiter interface {
	// WaitFor returns once the snapshot holds SidecarSets in these versions or
	// later ones, or an error when ctx ends before.
	WaitFor(ctx context.Context, stored Versions) error
}

// Versions are resourceVersions of SidecarSets, by name. One does not stand for
// another: a watch that begins anew with a list tells of them in any order.
type Versions map[string]uint64

// listing is a list of SidecarSets that several requests wait for.
type listing struct {
	done   chan struct{}
	stored Versions // of all SidecarSets; read it when done is closed
	err    error
}

func newFreshness(live client.Reader, catalog versionWaiter) *freshness {
	return &freshness{live: live, catalog: catalog}
}

// ensure returns nil once the snapshot holds every SidecarSet that was stored
// when ensure was called. Otherwise it cannot be told what selects a Pod.
func (f *freshness) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	stored, err := f.stored(ctx)
	if err != nil {
		return fmt.Errorf("asking for the newest SidecarSets, try again: %w", err)
	}
	if err := f.catalog.WaitFor(ctx, stored); err != nil {
		return fmt.Errorf("waiting for this replica of the operator to know the newest SidecarSets, try again: %w", err)
	}
	return nil
}

// stored returns the versions of the SidecarSets that are stored.
func (f *freshness) stored(ctx context.Context) (Versions, error) {
	l := f.join(ctx)
	select {
	case <-l.done:
		return l.stored, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// join returns the list that has not begun yet, and sees to it that it begins.
func (f *freshness) join(ctx context.Context) *listing {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = &listing{done: make(chan struct{})}
	}
	l := f.next
	if !f.running {
		f.running = true
		go f.run(context.WithoutCancel(ctx)) // others wait for it as well
	}
	return l
}

// run makes lists until nobody waits for one.
func (f *freshness) run(ctx context.Context) {
	for {
		f.mu.Lock()
		l := f.next
		f.next = nil
		f.running = l != nil
		f.mu.Unlock()
		if l == nil {
			return
		}
		l.stored, l.err = f.list(ctx)
		close(l.done)
	}
}

// list reads the metadata of all SidecarSets as they are stored now.
func (f *freshness) list(ctx context.Context) (Versions, error) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(appsv1beta1.GroupVersion.WithKind(appsv1beta1.Kind.Kind + "List"))
	if err := f.live.List(ctx, list); err != nil {
		return nil, err
	}
	stored := make(Versions, len(list.Items))
	for i := range list.Items {
		version, err := propagation.ParseVersion(list.Items[i].ResourceVersion)
		if err != nil {
			return nil, fmt.Errorf("reading SidecarSet %s: %w", list.Items[i].Name, err)
		}
		stored[list.Items[i].Name] = version
	}
	return stored, nil
}
