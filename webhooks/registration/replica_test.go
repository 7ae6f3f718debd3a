package registration

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// lateWatch is the informer of a kind: its list is empty, and its watch delivers what the test says.
type lateWatch struct {
	cache.Informer
	unlisted atomic.Bool // the list has no answer yet
	handlers []toolscache.ResourceEventHandler
}

func (l *lateWatch) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	l.handlers = append(l.handlers, handler)
	return l, nil
}

func (l *lateWatch) HasSynced() bool { return !l.unlisted.Load() }

func (l *lateWatch) deliver(event watch.EventType, object runtime.Object) {
	for _, handler := range l.handlers {
		if object := object.DeepCopyObject(); event == watch.Deleted {
			handler.OnDelete(object)
		} else {
			handler.OnAdd(object, false)
		}
	}
	synctest.Wait()
}

// replica is a replica whose watches are as late as the test likes. Its reads show what is stored.
type replica struct {
	*cluster
	*Freshness
	t            *testing.T
	sets, shards *lateWatch

	mu    sync.Mutex
	asked []string      // what was read
	err   error         // of reads
	hold  chan struct{} // reads answer when it is closed; nil does not hold
}

func (r *replica) GetInformer(_ context.Context, object client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	switch object.GetObjectKind().GroupVersionKind().Kind {
	case "SidecarSet":
		return r.sets, nil
	case "MutatingWebhookConfiguration":
		return r.shards, nil
	}
	return &lateWatch{}, nil
}

// wait notes a read that has been made, and holds its answer back.
func (r *replica) wait(ctx context.Context, what string) error {
	r.mu.Lock()
	r.asked = append(r.asked, what)
	hold, err := r.hold, r.err
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// reads returns and forgets what was read.
func (r *replica) reads() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.asked)
	asked := strings.Join(r.asked, " ")
	r.asked = nil
	return asked
}

// withReplica runs a test with a replica of a cluster with shards without webhooks, in a bubble.
func withReplica(t *testing.T, test func(t *testing.T, r *replica)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		r := &replica{
			t: t, sets: &lateWatch{}, shards: &lateWatch{},
			cluster: &cluster{
				api: &proberCluster{}, version: 10,
				stored: map[string]*appsv1beta1.SidecarSet{}, configurations: map[string]*admissionregistrationv1.MutatingWebhookConfiguration{},
			},
		}
		r.reading = r.wait
		shards, health := NewShards(r, r), snapshot.NewHealth("")
		r.Freshness = NewFreshness(shards, snapshot.NewStore(r, nil), health, r, prometheus.NewRegistry())
		go func() { _ = r.store.Start(ctx) }()
		if err := shards.Start(ctx); err != nil {
			t.Fatal(err)
		}
		for i := range podwebhook.Shards {
			name := podwebhook.ConfigurationName(i)
			r.changeUnseen(&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{
				Name: name, UID: types.UID(name), Labels: map[string]string{podwebhook.LabelConfiguration: "true"},
			}})
			r.prepare(t, i, podwebhook.Settings{Namespace: "ours"}, r.changeUnseen)
		}
		synctest.Wait() // the watches have begun
		test(t, r)
	})
}

// logSet is a generation of SidecarSet log, for Pods with the label app=web.
func logSet(uid types.UID, generation int64) *appsv1beta1.SidecarSet {
	set := reviewed("web")
	set.Name, set.UID, set.Generation = "log", uid, generation
	return set
}

// review writes the dependency of a SidecarSet, as its validating webhook does, and returns the shard and
// the number that calls have from now on.
func (r *replica) review(set *appsv1beta1.SidecarSet) (shard int, number uint64) {
	r.t.Helper()
	e := webhookOf(r.t, set)
	s, err := podwebhook.Parse(r.stands(e.Shard(ours)))
	if err != nil {
		r.t.Fatal(err)
	}
	next, refused := s.Review([]podwebhook.Webhook{e}, func(string, podwebhook.Dependency) bool { return false }, 0, &podwebhook.Settings{Namespace: "ours", Bundle: []byte("a CA")})
	if len(refused) > 0 {
		r.t.Fatal(refused)
	}
	r.changeUnseen(next)
	if s, err = podwebhook.Parse(next); err != nil {
		r.t.Fatal(err)
	}
	return s.Index, s.RequiredSerial
}

// stands returns a copy of the object of a shard, as it is stored.
func (r *replica) stands(shard int) *admissionregistrationv1.MutatingWebhookConfiguration {
	return r.configurations[podwebhook.ConfigurationName(shard)].DeepCopy()
}

// putSet stores a SidecarSet.
func (r *replica) putSet(set *appsv1beta1.SidecarSet) {
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	r.version++
	set.ResourceVersion = strconv.Itoa(r.version)
	r.stored[set.Name] = set
}

// learn delivers SidecarSet log as it is stored.
func (r *replica) learn() { r.hear(watch.Added, r.stored["log"]) }

func (r *replica) hear(event watch.EventType, set *appsv1beta1.SidecarSet) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set)
	if err != nil {
		r.t.Fatal(err)
	}
	r.sets.deliver(event, &unstructured.Unstructured{Object: object})
}

// learnShards delivers all shards as they are stored.
func (r *replica) learnShards() {
	for _, c := range r.configurations {
		r.shards.deliver(watch.Modified, c)
	}
}
