package entries

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/status"
)

var configurationResource = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}

// cluster is a fake API server for a leader. It has configuration objects, the operator's
// Namespace, and the endpoints of replicas. Tests make it fail, hang, edit written objects,
// and go back to older versions, which the fake clients of the libraries cannot do. One test
// makes 36,000 passes over it. In test/integration there is a real API server.
type cluster struct {
	client.Client
	cache.Cache

	store          *configurationStore
	configurations map[string]*admissionregistrationv1.MutatingWebhookConfiguration
	version        int
	writes         int
	replicas       int
	told           []string                                                    // Events, as "<SidecarSet> <reason>"
	undefined      bool                                                        // SidecarSets have no CustomResourceDefinition
	slicesErr      error                                                       // of lists of endpoints
	err            error                                                       // of the next writes
	behind         func() error                                                // why the snapshot may lack a stored SidecarSet
	hangs          func(what any) bool                                         // which requests are not answered
	meddle         func(*admissionregistrationv1.MutatingWebhookConfiguration) // edits an object that was written
	pods           func(ctx context.Context, pod *corev1.Pod) (err error)      // creates Pods
}

// hang waits until ctx ends if requests for an object are not answered.
func (c *cluster) hang(ctx context.Context, what any) error {
	if c.hangs == nil || !c.hangs(what) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if err := c.hang(ctx, into); err != nil {
		return err
	}
	switch into := into.(type) {
	case *metav1.PartialObjectMetadata:
		if into.Kind == "CustomResourceDefinition" && c.undefined {
			return apierrors.NewNotFound(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, key.Name)
		}
		into.Name, into.UID = key.Name, "namespace-1"
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		stored, ok := c.configurations[key.Name]
		if !ok {
			return apierrors.NewNotFound(configurationResource, key.Name)
		}
		stored.DeepCopyInto(into)
	default:
		return fmt.Errorf("reading a %T", into)
	}
	return nil
}

func (c *cluster) List(ctx context.Context, into client.ObjectList, _ ...client.ListOption) error {
	if err := c.hang(ctx, into); err != nil {
		return err
	}
	slices := into.(*discoveryv1.EndpointSliceList)
	slices.Items = []discoveryv1.EndpointSlice{{Endpoints: make([]discoveryv1.Endpoint, c.replicas)}}
	for i := range slices.Items[0].Endpoints {
		slices.Items[0].Endpoints[i].Addresses = []string{"10.1.0.1"}
	}
	return c.slicesErr
}

func (c *cluster) Create(ctx context.Context, object client.Object, _ ...client.CreateOption) error {
	if pod, ok := object.(*corev1.Pod); ok {
		return c.pods(ctx, pod)
	}
	return fmt.Errorf("making a %T", object)
}

func (c *cluster) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	o := (&client.UpdateOptions{}).ApplyOptions(options)
	if err := c.hang(ctx, o); err != nil {
		return err
	}
	stored, ok := c.configurations[object.GetName()]
	if !ok {
		return apierrors.NewNotFound(configurationResource, object.GetName())
	}
	if stored.ResourceVersion != object.GetResourceVersion() {
		return apierrors.NewConflict(configurationResource, object.GetName(), errors.New("somebody else wrote it"))
	}
	if len(o.DryRun) > 0 {
		return c.err
	}
	return c.write(object)
}

func (c *cluster) write(object client.Object) error {
	written := object.(*admissionregistrationv1.MutatingWebhookConfiguration)
	if len(written.Webhooks) > 0 {
		c.writes++
		if c.err != nil {
			return c.err
		}
	}
	c.change(written)
	if c.meddle != nil {
		edited := written.DeepCopy()
		c.meddle(edited)
		c.change(edited)
	}
	return nil
}

func (c *cluster) change(object *admissionregistrationv1.MutatingWebhookConfiguration) {
	c.version++
	object.ResourceVersion = strconv.Itoa(c.version)
	before := c.configurations[object.Name]
	c.configurations[object.Name] = object.DeepCopy()
	c.store.changed(object.Name, c.configurations[object.Name], before)
}

// leading runs a test with a leader and SidecarSet log, in a synctest bubble. The test makes
// the leader's passes. Every API server uses an object as soon as it is written.
func leading(t *testing.T, test func(t *testing.T, l *leader, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{replicas: 1, configurations: map[string]*admissionregistrationv1.MutatingWebhookConfiguration{}, behind: func() error { return nil }}
		proven := map[string]int64{}
		for i := range entryplan.MaxConfigurations + 1 {
			proven[entryplan.ConfigurationName(i)] = math.MaxInt64
		}
		sets := &fixtures.Snapshots{}
		sets.Swap(fixtures.LogSet(1))
		w := &Keeper{
			options: Options{
				Settings:        entryplan.Settings{Namespace: "ours", Service: admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"}},
				Bundle:          func() []byte { return []byte("a CA") },
				Certificate:     func(context.Context) error { return nil },
				Rivals:          NewRivals(nil, "ours", prometheus.NewRegistry()),
				RecordEvent:     func(e events.Event) { c.told = append(c.told, e.About.Name+" "+e.Reason) },
				CatchUp:         func(context.Context) error { return c.behind() },
				AdmissionWindow: 90 * time.Second, Trust: entryplan.Trust,
			},
			cached:  c,
			barrier: &barrier{servers: []*apiServer{{proven: proven}}, asked: time.Now().Add(1000 * time.Hour)},
			m:       newEntryMetrics(prometheus.NewRegistry()),
			pace:    newWidenPace(),
		}
		w.options.Rivals.listed.Store(true)
		l := newLeader(w, sets, c, c)
		w.store = &configurationStore{live: c, writer: c, notify: l.wake}
		c.store = w.store
		for i := range entryplan.MaxConfigurations + 1 {
			c.change(&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{
				Name: entryplan.ConfigurationName(i), UID: types.UID(entryplan.ConfigurationName(i)), Labels: map[string]string{entryplan.LabelConfiguration: "true"},
			}})
		}
		test(t, l, c)
	})
}

// judged makes a pass, and returns the readiness of SidecarSet log after it.
func (l *leader) judged(t *testing.T) status.Readiness {
	t.Helper()
	_, _ = l.pass(t.Context()) // the readiness has the error
	program, _ := l.sets.Current().Get("log")
	said := l.webhooks.board.Of("log", program.Set.UID, 1)
	if said == nil {
		t.Fatal("the leader says nothing")
	}
	return *said
}
