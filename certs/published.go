package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Published watches, on every replica, the objects that tell API servers which CAs to trust, and keeps their content in memory. It
// is a manager.Runnable that needs no leader. All methods are safe for concurrent use. Only Start does I/O.
type Published struct {
	client client.WithWatch
	hosts  []string // the names under which API servers call this operator
	views  []*view  // one of each target

	mu      sync.Mutex
	changed chan struct{}
}

// view is what has been observed of one Target. A reflector stores in it what it reads. It is
// not an informer: an informer would keep whole objects, which are large while there are many
// SidecarSets, would not report an empty list, and would choose its pauses between attempts
// itself. Nor is it the manager's cache: the client of this package reads the clock of API
// servers, and the watch must not wait for other informers.
type view struct {
	published *Published
	target    Target

	// Guarded by published.mu.
	synced  bool
	err     error // of the last attempt to list or watch, nil if that worked
	objects map[string]*object
}

// newPublished returns a Published for the targets. It considers only entries that call one of the names in subject. The client
// must not read from a cache.
func newPublished(c client.WithWatch, subject Subject, targets ...Target) *Published {
	p := &Published{client: c, hosts: subject.hosts(), changed: make(chan struct{})}
	for _, target := range targets {
		p.views = append(p.views, &view{published: p, target: target})
	}
	return p
}

// NeedLeaderElection has a manager start it on every replica.
func (p *Published) NeedLeaderElection() bool { return false }

// Start watches the targets until ctx ends. It waits for objects that do not exist yet, or that it may not read yet.
func (p *Published) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("published")
	var wg sync.WaitGroup
	for _, v := range p.views {
		reflector := cache.NewReflectorWithOptions(v.listWatch(), nil, v, cache.ReflectorOptions{
			Name:            v.target.String(),
			TypeDescription: v.target.kind.Kind,
			Logger:          &logger,
			// Retry every half second at first, and every ten seconds later: a role that is granted late delays the start.
			Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 6, Cap: 10 * time.Second},
		})
		wg.Go(func() { reflector.RunWithContext(ctx) })
	}
	<-ctx.Done()
	wg.Wait()
	return nil
}

// Changed returns a channel that is closed at the next observation. Get the channel before looking, so that no change is missed.
func (p *Published) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Verify checks that every API server accepts the certificate: all targets have been observed, and each clientConfig in them that
// has a bundle trusts the certificate for the host that it calls. The error names everything that is wrong.
//
// A missing object is not an error. No API server calls the operator because of it, so it says nothing about this replica. It is
// missing for all replicas: if they became un-ready, the calls that other objects cause would fail too. A clientConfig without a
// bundle is not an error either, unless no clientConfig has one. If all entries of an object of the manifests call another server,
// this replica is misconfigured, and that is an error.
func (p *Published) Verify(cert *tls.Certificate, now time.Time) error {
	s := p.snapshot()
	accepted, refused, empty := s.verify(cert, now)
	errs := append(s.unobserved, refused...)
	if accepted == 0 {
		errs = append(errs, empty...)
	}
	return errors.Join(append(errs, s.elsewhere...)...)
}

// Accepted checks that at least one API server accepts the certificate, if any has a bundle. The error names those that do not.
func (p *Published) Accepted(cert *tls.Certificate, now time.Time) error {
	accepted, refused, _ := p.snapshot().verify(cert, now)
	if accepted > 0 {
		return nil
	}
	return errors.Join(refused...)
}

// verify returns how many bundles accept the certificate, and the problems of bundles that refuse it and of bundles that are empty.
func (s snapshot) verify(cert *tls.Certificate, now time.Time) (accepted int, refused, empty []error) {
	for _, t := range s.trusts() {
		if t.bundle == "" {
			empty = append(empty, fmt.Errorf("checking %s: its caBundle is empty until the leader writes it", t.place()))
		} else if err := Verify(cert, []byte(t.bundle), t.host, now); err != nil {
			refused = append(refused, fmt.Errorf("checking the serving certificate as %s does: %w", t.place(), err))
		} else {
			accepted++
		}
	}
	return accepted, refused, empty
}

// carries checks that every clientConfig has the CA in its bundle. A missing or empty bundle is not an error: no API server calls
// the operator through it, so none can lose trust. A target that has not been observed is an error.
func (p *Published) carries(ca *x509.Certificate) error {
	s := p.snapshot()
	errs := s.unobserved
	for _, t := range s.trusts() {
		certs, _ := ParseBundle([]byte(t.bundle))
		if t.bundle != "" && !slices.ContainsFunc(certs, ca.Equal) {
			errs = append(errs, fmt.Errorf("waiting for %s to hold the next CA", t.place()))
		}
	}
	return errors.Join(errs...)
}

// refuses returns an error if there is a clientConfig that trusts current but not next, or if that cannot be known yet.
func (p *Published) refuses(next, current *tls.Certificate, now time.Time) error {
	s := p.snapshot()
	errs := s.unobserved
	for _, t := range s.trusts() {
		if Verify(current, []byte(t.bundle), t.host, now) != nil {
			continue
		}
		if err := Verify(next, []byte(t.bundle), t.host, now); err != nil {
			errs = append(errs, fmt.Errorf("waiting for %s to trust the next serving certificate: %w", t.place(), err))
		}
	}
	return errors.Join(errs...)
}

// accepts reports whether any clientConfig trusts the certificate.
func (p *Published) accepts(cert *tls.Certificate, now time.Time) bool {
	accepted, _, _ := p.snapshot().verify(cert, now)
	return accepted > 0
}

// certificates returns all published certificates. It returns false while a target has not been observed.
func (p *Published) certificates() ([]*x509.Certificate, bool) {
	s := p.snapshot()
	var certs []*x509.Certificate
	for _, t := range s.trusts() {
		parsed, _ := ParseBundle([]byte(t.bundle)) // clients cannot trust what does not parse
		certs = append(certs, parsed...)
	}
	return certs, len(s.unobserved) == 0
}

// snapshot is what was observed at one moment.
type snapshot struct {
	objects    []*object // in order of targets, then of names
	unobserved []error   // errors of targets that have not been observed
	missing    []error   // errors of targets that should exist and do not, or that lack a webhook; applying the manifests again restores them
	elsewhere  []error   // errors of the operator's targets in which every entry calls another server
	foreign    int       // number of entries that call another server
}

func (p *Published) snapshot() snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	var s snapshot
	for _, v := range p.views {
		target := v.target
		named := v.objects[target.name]
		switch {
		case !v.synced && v.err != nil:
			s.unobserved = append(s.unobserved, fmt.Errorf("reading the CA bundle of %s: %w", target, v.err))
		case !v.synced:
			s.unobserved = append(s.unobserved, fmt.Errorf("reading the CA bundle of %s: not done yet", target))
		case target.optional:
		case target.name != "" && named == nil:
			s.missing = append(s.missing, fmt.Errorf("reading the CA bundle of %s: it does not exist, apply it", target))
		case target.name != "" && len(named.others) > 0:
			for _, c := range named.others {
				s.missing = append(s.missing, fmt.Errorf("reading the CA bundle of %s: %s calls %s, which is not this operator; apply it again if it should be", target, c.entry, c.host))
			}
		case target.name != "" && len(named.clients) == 0 && target.kind.without != "":
			s.missing = append(s.missing, fmt.Errorf("reading the CA bundle of %s: it %s, apply it again", target, target.kind.without))
		}
		if named != nil && !target.kind.contested && len(named.clients) == 0 && len(named.others) > 0 {
			s.elsewhere = append(s.elsewhere, fmt.Errorf("checking %s: it calls %s, and this operator is %s; apply the manifests again, or set --webhook-service and --webhook-san to what they say",
				target, named.others[0].host, strings.Join(p.hosts, ", ")))
		}
		first := len(s.objects)
		for _, o := range v.objects {
			s.objects = append(s.objects, o)
			s.foreign += len(o.others)
		}
		slices.SortFunc(s.objects[first:], func(a, b *object) int { return strings.Compare(a.name, b.name) })
	}
	return s
}

// trust is a bundle and a host of some clientConfig. If several clientConfigs have the same, it is the first of them.
type trust struct {
	clientConfig
	object *object
}

func (t trust) place() string { return t.object.String() + ", " + t.entry }

// trusts returns the different pairs of bundle and host. They are few, however many entries there are.
func (s snapshot) trusts() []trust {
	type pair struct{ host, bundle string }
	seen := map[pair]bool{}
	var trusts []trust
	for _, o := range s.objects {
		for _, c := range o.clients {
			if key := (pair{c.host, c.bundle}); !seen[key] {
				seen[key] = true
				trusts = append(trusts, trust{c, o})
			}
		}
	}
	return trusts
}

// update changes the view and closes the channel of Changed.
func (v *view) update(change func()) {
	v.published.mu.Lock()
	defer v.published.mu.Unlock()
	change()
	close(v.published.changed)
	v.published.changed = make(chan struct{})
}

// listThenWatch makes a reflector list first and then watch, because there are only a few objects.
type listThenWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported tells the reflector not to use WatchList.
func (listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// listWatch lists and watches the target.
func (v *view) listWatch() cache.ListerWatcher {
	target, reader := v.target, v.published.client
	return listThenWatch{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, opts := target.kind.list(), target.listOptions()
			opts.Raw = &options
			err := reader.List(ctx, list, opts)
			v.note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			opts := target.listOptions()
			opts.Raw = &options
			w, err := reader.Watch(ctx, target.kind.list(), opts)
			v.note(err)
			return w, err
		},
	}}
}

// note records why the target cannot be watched, for readiness.
func (v *view) note(err error) {
	v.published.mu.Lock()
	defer v.published.mu.Unlock()
	v.err = err
}

// Add records a new object.
func (v *view) Add(obj any) error { return v.Update(obj) }

// Update records a changed object.
func (v *view) Update(obj any) error {
	if o, ok := obj.(client.Object); ok && v.target.selects(o) {
		seen := v.target.observe(o, v.published.hosts)
		v.update(func() { v.objects[seen.name] = seen })
	}
	return nil
}

// Delete removes an object that was deleted, or that lost the labels.
func (v *view) Delete(obj any) error {
	if o, ok := obj.(client.Object); ok {
		v.update(func() { delete(v.objects, o.GetName()) })
	}
	return nil
}

// Replace records the complete list.
func (v *view) Replace(list []any, _ string) error {
	objects := map[string]*object{}
	for _, obj := range list {
		if o, ok := obj.(client.Object); ok && v.target.selects(o) {
			objects[o.GetName()] = v.target.observe(o, v.published.hosts)
		}
	}
	v.update(func() { v.synced, v.objects = true, objects })
	return nil
}

// Resync does nothing: everything is kept.
func (v *view) Resync() error { return nil }
