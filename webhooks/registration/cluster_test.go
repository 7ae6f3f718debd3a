package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/internal/status"
)

var configurationResource = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}

// ours is the UID of the operator's Namespace.
const ours types.UID = "namespace-1"

// cluster is a fake cluster for a Registrar and a leader: what is stored, and the API servers that
// use it. Tests make it fail, hang, edit written objects, and go back to older versions, which the
// fake clients of the libraries cannot do. In test/integration there is a real API server.
type cluster struct {
	client.Client
	api    *proberCluster // its API servers use each version of a shard that is written
	sets   *snapshots
	shards *Shards

	mu             sync.Mutex
	configurations map[string]*admissionregistrationv1.MutatingWebhookConfiguration
	stored         map[string]*appsv1beta1.SidecarSet
	version        int
	writes         int
	replicas       int
	lags           bool      // API servers continue using the shards that they use
	namespace      types.UID // of the operator's Namespace
	anew           types.UID // that it has now, if the watch does not know yet
	slicesErr      error     // of lists of endpoints

	writing func(*admissionregistrationv1.MutatingWebhookConfiguration) error // before a write or a dry-run
	meddle  func(*admissionregistrationv1.MutatingWebhookConfiguration)       // edits an object that was written
	reading func(ctx context.Context, name string) error                      // when a SidecarSet or a shard was read, before the answer
}

// GetInformer returns an informer that tells nothing.
func (*cluster) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return &lateWatch{}, nil
}

func (c *cluster) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	c.mu.Lock()
	err := c.get(key.Name, into)
	c.mu.Unlock()
	kind := into.GetObjectKind().GroupVersionKind().Kind
	if c.reading != nil && kind != "Namespace" && kind != "CustomResourceDefinition" {
		if failed := c.reading(ctx, key.Name); failed != nil {
			return failed
		}
	}
	return err
}

func (c *cluster) get(name string, into client.Object) error {
	set, ok := c.stored[name]
	switch into := into.(type) {
	case *metav1.PartialObjectMetadata:
		switch {
		case into.Kind == appsv1beta1.Kind.Kind && !ok:
			return apierrors.NewNotFound(appsv1beta1.Resource.GroupResource(), name)
		case into.Kind == appsv1beta1.Kind.Kind:
			into.ResourceVersion = set.ResourceVersion
		}
		into.Name, into.UID = name, c.namespace
	case *unstructured.Unstructured:
		if !ok {
			return apierrors.NewNotFound(appsv1beta1.Resource.GroupResource(), name)
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
		into.Object = object
		return err
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		stored, ok := c.configurations[name]
		if !ok {
			return apierrors.NewNotFound(configurationResource, name)
		}
		stored.DeepCopyInto(into)
	default:
		return fmt.Errorf("reading a %T", into)
	}
	return nil
}

func (c *cluster) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	switch list := into.(type) {
	case *discoveryv1.EndpointSliceList:
		for range c.replicas {
			list.Items = append(list.Items, discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}}})
		}
		return c.slicesErr
	case *metav1.PartialObjectMetadataList:
		list.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "ours", UID: cmp.Or(c.anew, c.namespace)}}}
		return nil
	}
	return fmt.Errorf("listing a %T", into)
}

func (c *cluster) Update(_ context.Context, object client.Object, options ...client.UpdateOption) error {
	written, ok := object.(*admissionregistrationv1.MutatingWebhookConfiguration)
	if !ok {
		return fmt.Errorf("writing a %T", object)
	}
	dry := len((&client.UpdateOptions{}).ApplyOptions(options).DryRun) > 0
	if !dry {
		c.mu.Lock()
		c.writes++
		c.mu.Unlock()
	}
	if c.writing != nil {
		if err := c.writing(written); err != nil {
			return err
		}
	}
	c.mu.Lock()
	stored, ok := c.configurations[written.Name]
	c.mu.Unlock()
	switch {
	case !ok:
		return apierrors.NewNotFound(configurationResource, written.Name)
	case stored.ResourceVersion != written.ResourceVersion:
		return apierrors.NewConflict(configurationResource, written.Name, errors.New("another program has written it"))
	case dry:
		return nil
	}
	c.change(written)
	if c.meddle != nil {
		edited := written.DeepCopy()
		c.meddle(edited)
		c.change(edited)
	}
	return nil
}

// change stores an object. The watch delivers it.
func (c *cluster) change(object *admissionregistrationv1.MutatingWebhookConfiguration) {
	c.changeUnseen(object)
	shard, _ := podwebhook.ShardNumber(object.Name)
	_, _ = c.shards.take(context.Background(), shard, object.DeepCopy()) // Read has the error
}

// changeUnseen stores an object. The watch does not deliver it yet.
func (c *cluster) changeUnseen(object *admissionregistrationv1.MutatingWebhookConfiguration) {
	c.mu.Lock()
	c.version++
	object.ResourceVersion = strconv.Itoa(c.version)
	c.configurations[object.Name] = object.DeepCopy()
	lags := c.lags
	c.mu.Unlock()
	if s, err := podwebhook.Parse(object.DeepCopy()); err == nil && !lags {
		c.api.uses(s)
	}
}

// edit changes every shard that has webhooks, as another program.
func (c *cluster) edit(change func(*admissionregistrationv1.MutatingWebhookConfiguration)) {
	for i := range podwebhook.Shards {
		if stored := c.configurations[podwebhook.ConfigurationName(i)]; stored != nil && len(stored.Webhooks) > 0 {
			edited := stored.DeepCopy()
			change(edited)
			c.change(edited)
		}
	}
}

// remove deletes the object of a shard.
func (c *cluster) remove(shard int) {
	name := podwebhook.ConfigurationName(shard)
	stored := c.configurations[name]
	delete(c.configurations, name)
	c.shards.gone(shard, stored.UID)
}

// apply makes the object of a shard as the manifests have it.
func (c *cluster) apply(shard int) {
	name := podwebhook.ConfigurationName(shard)
	c.change(&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(fmt.Sprint(name, "-", c.version)), Labels: map[string]string{podwebhook.LabelConfiguration: "true"},
	}})
}

// prepare gives a shard its probe webhook, as the first pass of a leader does.
func (c *cluster) prepare(t *testing.T, shard int, settings podwebhook.Settings, change func(*admissionregistrationv1.MutatingWebhookConfiguration)) {
	t.Helper()
	s, err := podwebhook.Parse(c.configurations[podwebhook.ConfigurationName(shard)].DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	settings.Bundle = []byte("a CA")
	change(s.Reconcile(nil, nil, false, &settings).Next)
}

// keep makes these the stored SidecarSets. The leader's snapshot does not have them yet.
func (c *cluster) keep(sets ...*appsv1beta1.SidecarSet) {
	c.stored = map[string]*appsv1beta1.SidecarSet{}
	for _, set := range sets {
		c.stored[set.Name] = set
	}
}

// have makes these the stored SidecarSets, and those of the leader's snapshot.
func (c *cluster) have(sets ...*appsv1beta1.SidecarSet) {
	c.keep(sets...)
	c.sets.Swap(sets...)
}

// webhook returns the webhook of a SidecarSet, and its shard; nil if there is no webhook.
func (c *cluster) webhook(t *testing.T, set *appsv1beta1.SidecarSet) (*admissionregistrationv1.MutatingWebhook, *podwebhook.Shard) {
	t.Helper()
	e := webhookOf(t, set)
	s := c.shards.At(e.Shard(ours))
	if s != nil {
		for i := range s.Object.Webhooks {
			if w := &s.Object.Webhooks[i]; w.Name == e.Name {
				return w, s
			}
		}
	}
	return nil, s
}

// dependencies returns the generations of the dependencies of a SidecarSet's UID on the webhook of its selectors.
func (c *cluster) dependencies(t *testing.T, set *appsv1beta1.SidecarSet) (generations []int64) {
	t.Helper()
	w, s := c.webhook(t, set)
	if w == nil {
		return nil
	}
	for _, n := range s.Dependencies[w.Name] {
		if n.Is(podwebhook.DependencyOf(set)) {
			generations = append(generations, n.Generation)
		}
	}
	return generations
}

// snapshots is a store that a test fills.
type snapshots struct {
	fixtures.Snapshots
	seen map[string]bool
}

func (s *snapshots) Swap(sets ...*appsv1beta1.SidecarSet) {
	for _, set := range sets {
		s.seen[set.Name+" "+podwebhook.ShortUID(set.UID)] = true
	}
	s.Snapshots.Swap(sets...)
}

func (s *snapshots) HasObserved(n podwebhook.Dependency) bool {
	compiled, ok := s.Current().Get(n.Name)
	if ok && n.Is(podwebhook.DependencyOf(compiled.Set)) {
		return compiled.Set.Generation >= n.Generation
	}
	return s.Seen(n)
}

func (s *snapshots) Seen(n podwebhook.Dependency) bool { return s.seen[n.Name+" "+n.UID] }

// leading runs a test with a leader, its Registrar, and SidecarSet log, in a synctest bubble with two
// API servers. The test makes the leader's passes.
func leading(t *testing.T, test func(t *testing.T, l *leader, c *cluster)) {
	t.Helper()
	t.Parallel()
	inCluster(t, []string{addressA, addressB}, func(t *testing.T, p *prober, api *proberCluster) {
		c := &cluster{
			api: api, sets: &snapshots{seen: map[string]bool{}}, replicas: 1, namespace: ours,
			configurations: map[string]*admissionregistrationv1.MutatingWebhookConfiguration{},
		}
		c.shards = NewShards(nil, c)
		c.have(fixtures.LogSet(1))
		registry := prometheus.NewRegistry()
		k := newRegistrar(c.shards, c.sets, c, c, p, Options{
			Settings:    podwebhook.Settings{Namespace: "ours", Service: admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"}},
			Bundle:      func() []byte { return []byte("a CA") },
			Certificate: func(context.Context) error { return nil },
			Injectors:   NewInjectors(nil, "ours", registry),
			Registry:    registry,
		})
		k.options.Injectors.listed.Store(true)
		settings, err := k.settings(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range podwebhook.Shards {
			c.apply(i)
			c.prepare(t, i, *settings, c.change)
		}
		test(t, newLeader(k, c), c)
	})
}

// judged makes a pass, asks API servers, makes another pass, and returns the readiness of SidecarSet
// log after it.
func (l *leader) judged(t *testing.T) status.Readiness {
	t.Helper()
	_, _ = l.pass(t.Context()) // the readiness has the error
	_, _ = l.askUnpropagated(t.Context())
	_, _ = l.pass(t.Context())
	compiled, ok := l.store.Current().Get("log")
	if !ok {
		return status.Readiness{}
	}
	said := l.board.Of("log", compiled.Set.UID, compiled.Set.Generation)
	if said == nil {
		t.Fatal("the leader says nothing")
	}
	return *said
}

// begin runs the leader until end is called.
func (l *leader) begin(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Start(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// reviewed returns a SidecarSet as in an AdmissionReview.
func reviewed(name string) *appsv1beta1.SidecarSet {
	set := fixtures.LogSet(1)
	set.Name, set.UID = name, types.UID("uid-"+name)
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	return set
}

func webhookOf(t *testing.T, set *appsv1beta1.SidecarSet) podwebhook.Webhook {
	t.Helper()
	e, err := podwebhook.Of(set)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// besides returns a SidecarSet with another webhook in the shard of a SidecarSet's webhook.
func besides(t *testing.T, set *appsv1beta1.SidecarSet) *appsv1beta1.SidecarSet {
	t.Helper()
	e := webhookOf(t, set)
	for i := 0; ; i++ {
		other := reviewed(fmt.Sprint("other-", i))
		if is := webhookOf(t, other); is.Shard(ours) == e.Shard(ours) {
			return other
		}
	}
}

// review registers for a SidecarSet as the webhook does.
func (c *cluster) review(t *testing.T, l *leader, set *appsv1beta1.SidecarSet) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), reviewTimeout)
	defer cancel()
	return l.registrar.Register(ctx, set)
}
