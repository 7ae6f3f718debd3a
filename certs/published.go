package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Informers is the part of a manager's cache that this package uses.
type Informers interface {
	GetInformer(ctx context.Context, object client.Object, opts ...cache.InformerGetOption) (cache.Informer, error)
}

// Published follows, on every replica, the objects that tell API servers which CAs to trust. It is a manager.Runnable that needs no
// leader. It is safe for concurrent use.
type Published struct {
	informers Informers
	hosts     []string // the names under which API servers call this operator
	targets   Targets

	mu       sync.Mutex
	observed bool // all kinds
	first    bool // every bundle was empty when all kinds were first observed
	objects  map[objectKey]*object
	changed  chan struct{}
}

func newPublished(informers Informers, subject Subject, targets Targets) *Published {
	return &Published{informers: informers, hosts: subject.hosts(), targets: targets, objects: map[objectKey]*object{}, changed: make(chan struct{})}
}

// NeedLeaderElection has a manager start it on every replica.
func (p *Published) NeedLeaderElection() bool { return false }

// Start follows the targets until ctx ends.
func (p *Published) Start(ctx context.Context) error {
	kinds := []objectKey{{gvk: mutatingKind}, {gvk: validatingKind}, {gvk: definitionKind}}
	var followed []toolscache.ResourceEventHandlerRegistration
	for i, prototype := range p.targets.prototypes() {
		informer, err := p.informers.GetInformer(ctx, prototype, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching kind %s: %w", kinds[i].gvk.Kind, err)
		}
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { p.take(kinds[i], o) },
			UpdateFunc: func(_, o any) { p.take(kinds[i], o) },
			DeleteFunc: func(o any) { p.gone(kinds[i], o) },
		})
		if err != nil {
			return fmt.Errorf("watching kind %s: %w", kinds[i].gvk.Kind, err)
		}
		followed = append(followed, registration)
	}
	for _, registration := range followed {
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return nil
		}
	}
	p.update(func() {
		p.observed, p.first = true, true
		for _, o := range p.objects {
			for _, c := range o.clients {
				p.first = p.first && c.bundle == ""
			}
		}
	})
	<-ctx.Done()
	return nil
}

func (p *Published) take(key objectKey, o any) {
	read, ok := o.(client.Object)
	if !ok {
		return
	}
	key.name = read.GetName()
	if has, shard := p.targets.has(key); has {
		seen := observe(key, shard, read, p.hosts)
		p.update(func() { p.objects[key] = seen })
	}
}

func (p *Published) gone(key objectKey, o any) {
	if name, err := toolscache.DeletionHandlingObjectToName(o); err == nil {
		key.name = name.Name
		p.update(func() { delete(p.objects, key) })
	}
}

// update changes what is known, and closes the channel of Changed.
func (p *Published) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Changed returns a channel that is closed at the next observation. Get the channel before looking, so that no change is missed.
func (p *Published) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// view is what was observed at one moment.
type view struct {
	objects  []*object // in order of kinds and names
	observed bool
	first    bool
	hosts    []string
	names    []objectKey
}

func (p *Published) view() view {
	p.mu.Lock()
	defer p.mu.Unlock()
	objects := slices.Collect(maps.Values(p.objects))
	slices.SortFunc(objects, func(a, b *object) int { return strings.Compare(a.String(), b.String()) })
	return view{objects, p.observed, p.first, p.hosts, p.targets.names()}
}

// notObserved is an error while not all kinds have been observed.
func (v view) notObserved() error {
	if v.observed {
		return nil
	}
	return errors.New("reading the CA bundles of the webhook configurations and the CustomResourceDefinition: not done yet")
}

// missing says which objects of the manifests do not exist, have lost their webhooks, or call another server.
func (v view) missing() (errs []error) {
	for _, name := range v.names {
		switch at := slices.IndexFunc(v.objects, func(o *object) bool { return o.objectKey == name }); {
		case at < 0:
			errs = append(errs, fmt.Errorf("%s does not exist, apply it", name))
		case len(v.objects[at].clients) == 0 && len(v.objects[at].others) == 0:
			errs = append(errs, fmt.Errorf("%s calls no webhook, apply it again", name))
		default:
			for _, c := range v.objects[at].others {
				errs = append(errs, fmt.Errorf("%s: %s calls %s, which is not this operator; apply it again if it should be", name, c.webhook, c.host))
			}
		}
	}
	return errs
}

// elsewhere is an error if all webhooks of a webhook configuration of the manifests call another server: this replica is
// misconfigured. The CustomResourceDefinition may be used by another program instead.
func (v view) elsewhere() error {
	for _, o := range v.objects {
		if !o.shard && o.gvk != definitionKind && len(o.clients) == 0 && len(o.others) > 0 {
			return fmt.Errorf("checking %s: it calls %s, and this operator is %s; apply the manifests again, or set --webhook-service and --webhook-san to what they say",
				o, o.others[0].host, strings.Join(v.hosts, ", "))
		}
	}
	return nil
}

// trust is a bundle that is not empty, and a host of some clientConfig. If several clientConfigs have the same, it is the first.
type trust struct {
	clientConfig
	object *object
}

// trusts returns the different pairs of bundle and host. They are few, however many webhooks there are.
func (v view) trusts() []trust {
	type pair struct{ host, bundle string }
	seen := map[pair]bool{}
	var trusts []trust
	for _, o := range v.objects {
		for _, c := range o.clients {
			if key := (pair{c.host, c.bundle}); c.bundle != "" && !seen[key] {
				seen[key] = true
				trusts = append(trusts, trust{c, o})
			}
		}
	}
	return trusts
}

// about returns how many bundles accept a leaf, and why others refuse it.
func (v view) about(leaf *tls.Certificate, now time.Time) (accepted int, refused []error) {
	for _, t := range v.trusts() {
		if err := Verify(leaf, []byte(t.bundle), t.host, now); err != nil {
			refused = append(refused, fmt.Errorf("checking the serving certificate as %s, %s does: %w", t.object, t.webhook, err))
		} else {
			accepted++
		}
	}
	return accepted, refused
}

// bundles are the certificates of the bundles that are not empty.
func (v view) bundles() [][]*x509.Certificate {
	var bundles [][]*x509.Certificate
	for _, t := range v.trusts() {
		parsed, _ := ParseBundle([]byte(t.bundle)) // clients cannot trust what does not parse
		bundles = append(bundles, parsed)
	}
	return bundles
}
