package controllers

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tracker"
)

// podPageSize bounds the Pods that are held whole at a time where the API server
// has no WatchList: 500 of 40 KB are 20 MB.
const podPageSize = 500

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods,verbs=list;watch

// newProtobufClient reads objects in protobuf: decoding an event costs a third of what JSON costs,
// and is most of what the controller does.
func newProtobufClient(config *rest.Config, httpClient *http.Client) (*corev1client.CoreV1Client, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return corev1client.NewForConfigAndClient(config, httpClient)
}

// newPodListerWatcher lists and watches all Pods.
// Pages of a list are turned into summaries as they arrive.
func newPodListerWatcher(config *rest.Config, httpClient *http.Client) (cache.ListerWatcher, error) {
	client, err := newProtobufClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	pods := client.Pods(metav1.NamespaceAll)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" {
				o.ResourceVersion = "" // with "0" an API server answers with all Pods in one answer, whatever the limit
			}
			page, err := pods.List(ctx, o)
			if err != nil {
				return nil, err
			}
			return summariesOf(page), nil
		},
		WatchFuncWithContext: pods.Watch,
	}, nil
}

func summariesOf(page *corev1.PodList) runtime.Object {
	summaries := &metainternalversion.List{ListMeta: page.ListMeta, Items: make([]runtime.Object, len(page.Items))}
	for i := range page.Items {
		summaries.Items[i] = listedSummary{podstate.FromPod(&page.Items[i])}
	}
	return summaries
}

// listedSummary makes a summary an element of a list.
type listedSummary struct{ *podstate.Summary }

// GetObjectKind returns none; a summary has no kind on the wire.
func (listedSummary) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the summary itself, which is immutable.
func (l listedSummary) DeepCopyObject() runtime.Object { return l }

// summaryOf returns the summary of an object that a reflector passes on. The summary of
// a summary is itself, so a second transformation changes nothing.
func summaryOf(obj any) (*podstate.Summary, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return podstate.FromPod(o), nil
	case *podstate.Summary:
		return o, nil
	case listedSummary:
		return o.Summary, nil
	}
	return nil, fmt.Errorf("reading a Pod: unexpected %T", obj)
}

// podStore is where the reflector puts Pods. It keeps none: each becomes a
// summary immediately and goes to the tracker's goroutine, and a full queue there makes
// the reflector wait.
type podStore struct {
	// do has the tracker's owner run a function, for as long as the watch runs.
	do     func(func(*tracker.Tracker)) error
	synced func() // run by the owner after the first list
	events *prometheus.CounterVec
	// version is the resourceVersion that the watch has reached. The reflector's
	// goroutine owns it.
	version uint64
}

var (
	_ cache.TransformingStore      = (*podStore)(nil)
	_ cache.ResourceVersionUpdater = (*podStore)(nil)
)

// Transformer makes the reflector's own store, where it collects the initial
// Pods of a WatchList, keep summaries instead of Pods.
func (s *podStore) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return summaryOf(obj) }
}

// Add takes a Pod that is new to the watch.
func (s *podStore) Add(obj any) error { return s.pass(obj, "added", (*tracker.Tracker).Set) }

// Update takes a Pod that changed.
func (s *podStore) Update(obj any) error { return s.pass(obj, "updated", (*tracker.Tracker).Set) }

// Delete takes a Pod that was deleted. A reflector passes on the events of the watch, and no
// tombstones: the next Replace shows a deletion that the watch missed.
func (s *podStore) Delete(obj any) error { return s.pass(obj, "deleted", (*tracker.Tracker).Delete) }

func (s *podStore) pass(obj any, event string, to func(*tracker.Tracker, *podstate.Summary)) error {
	record, err := summaryOf(obj)
	if err != nil {
		return err
	}
	s.events.WithLabelValues(event).Inc()
	var version uint64 // that the watch has reached; 0 if the object does not show it
	if pod, ok := obj.(*corev1.Pod); ok {
		version, _ = podstate.ParseVersion(pod.ResourceVersion)
		s.version = version
	}
	return s.do(func(t *tracker.Tracker) {
		to(t, record)
		t.Watched(version)
	})
}

// UpdateResourceVersion receives the resourceVersion that the watch has reached, also
// without an event.
func (s *podStore) UpdateResourceVersion(resourceVersion string) {
	version, err := podstate.ParseVersion(resourceVersion)
	if err != nil || version == s.version {
		return // the last event had this version
	}
	s.version = version
	_ = s.do(func(t *tracker.Tracker) { t.Watched(version) }) // it fails when the watch ends
}

// Replace takes a complete list of Pods. With the first list the counters are
// complete.
func (s *podStore) Replace(list []any, resourceVersion string) error {
	summaries := make([]*podstate.Summary, len(list))
	for i, obj := range list {
		record, err := summaryOf(obj)
		if err != nil {
			return err
		}
		summaries[i] = record
	}
	s.events.WithLabelValues("listed").Inc()
	version, _ := podstate.ParseVersion(resourceVersion)
	return s.do(func(t *tracker.Tracker) {
		t.Replace(summaries)
		t.Watched(version)
		s.synced()
	})
}

// Resync does nothing: the tracker has kept every summary.
func (s *podStore) Resync() error { return nil }
