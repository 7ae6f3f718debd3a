package entries_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/webhooks/entries"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// lateWatch is a list that is empty, and a watch that delivers what the test says.
type lateWatch struct {
	mu      sync.Mutex
	watches []*watch.FakeWatcher
}

func (*lateWatch) List(metav1.ListOptions) (runtime.Object, error) {
	list := &unstructured.UnstructuredList{}
	list.SetResourceVersion("1")
	return list, nil
}

func (l *lateWatch) Watch(metav1.ListOptions) (watch.Interface, error) {
	w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1000})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watches = append(l.watches, w)
	return w, nil
}

func (*lateWatch) IsWatchListSemanticsUnSupported() bool { return true }

func (l *lateWatch) deliver(event watch.EventType, object runtime.Object) {
	l.mu.Lock()
	l.watches[len(l.watches)-1].Action(event, object.DeepCopyObject())
	l.mu.Unlock()
	synctest.Wait()
}

func (l *lateWatch) begun() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.watches)
}

// etcd is what is stored. Reads by a client show it at once; the watches of the replica show it
// when the test delivers it.
type etcd struct {
	client.Reader

	mu      sync.Mutex
	version int
	sets    map[string]*unstructured.Unstructured
	slots   map[string]*admissionregistrationv1.MutatingWebhookConfiguration
	err     error
	asked   []string
	hold    chan struct{} // reads answer when it is closed; nil does not hold
}

func (e *etcd) next() string {
	e.version++
	return strconv.Itoa(e.version)
}

// wait notes a read that has been made, and holds its answer back.
func (e *etcd) wait(ctx context.Context, what string) error {
	e.mu.Lock()
	e.asked = append(e.asked, what)
	hold, err := e.hold, e.err
	e.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (e *etcd) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	missing := apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	e.mu.Lock()
	set, slot := e.sets[key.Name], e.slots[key.Name]
	e.mu.Unlock()
	if err := e.wait(ctx, key.Name); err != nil {
		return err
	}
	switch into := into.(type) {
	case *metav1.PartialObjectMetadata:
		if into.GroupVersionKind() != appsv1beta1.Kind {
			return fmt.Errorf("reading kind %s", into.GroupVersionKind())
		}
		if set == nil {
			return missing
		}
		into.Name, into.ResourceVersion = key.Name, set.GetResourceVersion()
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		if slot == nil {
			return missing
		}
		slot.DeepCopyInto(into)
	default:
		return fmt.Errorf("reading a %T", into)
	}
	return nil
}

func (e *etcd) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	list, ok := into.(*metav1.PartialObjectMetadataList)
	if !ok || list.Kind != "SidecarSetList" || o.Limit == 0 || o.Raw != nil {
		return errors.New("a list of something else, or not a quorum read")
	}
	e.mu.Lock()
	list.ResourceVersion = strconv.Itoa(e.version)
	for name, set := range e.sets {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: set.GetResourceVersion()}})
	}
	e.mu.Unlock()
	return e.wait(ctx, "all")
}

// reads returns and forgets what was read.
func (e *etcd) reads() (asked []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	asked, e.asked = e.asked, nil
	slices.Sort(asked)
	return asked
}

// replica is a replica whose watches are as late as the test likes.
type replica struct {
	*entries.Knowledge
	t       *testing.T
	etcd    *etcd
	health  *snapshot.Health
	catalog *snapshot.Catalog
	slots   *entries.Slots
	kinds   map[string]*lateWatch // by the kind that is watched

	mu        sync.Mutex
	informers map[string]toolscache.SharedIndexInformer
}

func (r *replica) GetInformer(ctx context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if r.informers[kind] == nil {
		r.kinds[kind] = &lateWatch{}
		r.informers[kind] = r.health.NewInformer(r.kinds[kind], object, 0, toolscache.Indexers{})
		go r.informers[kind].RunWithContext(ctx)
	}
	return r.informers[kind], nil
}

const (
	setKind  = "SidecarSet"
	slotKind = "MutatingWebhookConfiguration"
)

// withReplica runs a test with a replica of a cluster with empty slots, in a bubble.
func withReplica(t *testing.T, test func(t *testing.T, r *replica)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		r := &replica{
			t: t, health: snapshot.NewHealth(), kinds: map[string]*lateWatch{}, informers: map[string]toolscache.SharedIndexInformer{},
			etcd: &etcd{version: 10, sets: map[string]*unstructured.Unstructured{}, slots: map[string]*admissionregistrationv1.MutatingWebhookConfiguration{}},
		}
		r.catalog = snapshot.NewCatalog(r, nil)
		r.slots = entries.NewSlots(r, r.etcd)
		r.Knowledge = entries.NewKnowledge(r.slots, r.catalog, r.health, r.etcd, prometheus.NewRegistry())
		go func() { _ = r.catalog.Start(ctx) }()
		if err := r.slots.Start(ctx); err != nil {
			t.Fatal(err)
		}
		for i := range entry.Slots {
			r.put(&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{
				Name: entry.ConfigurationName(i), UID: types.UID(entry.ConfigurationName(i)), Labels: map[string]string{entry.LabelConfiguration: "true"},
			}})
		}
		synctest.Wait() // the watches have begun
		test(t, r)
	})
}

// put stores an object of a slot.
func (r *replica) put(c *admissionregistrationv1.MutatingWebhookConfiguration) {
	c.ResourceVersion = r.etcd.next()
	r.etcd.slots[c.Name] = c
}

// selecting is a SidecarSet for Pods with the label app=<app>.
func selecting(name, app string, uid types.UID, generation int64) *unstructured.Unstructured {
	set := &unstructured.Unstructured{Object: fixtures.SidecarSet(name).Select("app", app).Container(name, name+":v1").Map()}
	set.SetUID(uid)
	set.SetGeneration(generation)
	return set
}

func entryOf(t *testing.T, set *unstructured.Unstructured) entry.Entry {
	t.Helper()
	typed := &appsv1beta1.SidecarSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(set.Object, typed); err != nil {
		t.Fatal(err)
	}
	e, err := entry.Of(typed)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// besides returns the value of the label app whose entry is another one of the same slot.
func besides(t *testing.T, app string) string {
	t.Helper()
	slot := func(app string) int { e := entryOf(t, selecting("x", app, "u", 1)); return e.Slot() }
	for i := 0; ; i++ {
		if other := fmt.Sprint(app, i); slot(other) == slot(app) {
			return other
		}
	}
}

// review writes the need of a SidecarSet, as its validating webhook does, and returns the number
// that calls have from now on.
func (r *replica) review(set *unstructured.Unstructured) (slot int, number uint64) {
	r.t.Helper()
	e := entryOf(r.t, set)
	s, err := entry.Parse(r.etcd.slots[entry.ConfigurationName(e.Slot())])
	if err != nil {
		r.t.Fatal(err)
	}
	next, refused := s.Review([]entry.Entry{e}, func(string, entry.Need) bool { return false }, 0, &entry.Settings{Namespace: "ours", Bundle: []byte("a CA")})
	if len(refused) > 0 {
		r.t.Fatal(refused)
	}
	r.put(next)
	s, err = entry.Parse(next)
	if err != nil {
		r.t.Fatal(err)
	}
	return s.Index, s.Number
}

// store stores a SidecarSet.
func (r *replica) store(set *unstructured.Unstructured) {
	r.etcd.mu.Lock()
	defer r.etcd.mu.Unlock()
	set.SetResourceVersion(r.etcd.next())
	r.etcd.sets[set.GetName()] = set
}

// remove deletes a SidecarSet.
func (r *replica) remove(set *unstructured.Unstructured) {
	r.etcd.mu.Lock()
	defer r.etcd.mu.Unlock()
	set.SetResourceVersion(r.etcd.next())
	delete(r.etcd.sets, set.GetName())
}

// learn delivers a SidecarSet.
func (r *replica) learn(event watch.EventType, set *unstructured.Unstructured) {
	r.kinds[setKind].deliver(event, set)
}

// learnSlots delivers all slots as they are stored.
func (r *replica) learnSlots() {
	for i := range entry.Slots {
		if c, ok := r.etcd.slots[entry.ConfigurationName(i)]; ok {
			r.kinds[slotKind].deliver(watch.Modified, c)
		}
	}
}
