package operator

import (
	"cmp"
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	k8sevents "k8s.io/client-go/tools/events"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/events"
)

// Events about SidecarSets, which have no namespace, are in namespace default. The
// leader writes what it knows of a SidecarSet, and counts repetitions in the same
// Event. A replica writes what it refuses, too seldom for a repetition. Events about
// Pods are in the namespaces of the Pods, and are not repeated.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups=events.k8s.io,resources=events,namespace=default,verbs=create

// eventSource is the reportingController of the Events about SidecarSets.
const eventSource = "sidecarset-operator"

// eventWriter writes Events at the pace of a Queue. It runs on every replica.
type eventWriter struct {
	recorder k8sevents.EventRecorder
	added    chan struct{} // has capacity 1

	mu    sync.Mutex
	queue *events.Queue
}

func newEventWriter(recorder k8sevents.EventRecorder, limits events.Limits) *eventWriter {
	return &eventWriter{recorder: recorder, added: make(chan struct{}, 1), queue: events.NewQueue(limits)}
}

// RecordEvent has an Event written, if the limits allow it. It does not wait, and is safe
// for concurrent use.
func (w *eventWriter) RecordEvent(e events.Event) {
	w.mu.Lock()
	added := w.queue.Add(e, time.Now())
	w.mu.Unlock()
	if added {
		select {
		case w.added <- struct{}{}:
		default:
		}
	}
}

// NeedLeaderElection reports false.
func (*eventWriter) NeedLeaderElection() bool { return false }

// Start writes Events until ctx ends.
func (w *eventWriter) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.added:
		case <-time.After(w.write()):
		}
	}
}

// write writes what is due, and returns how long nothing is, unless an Event is
// added.
func (w *eventWriter) write() time.Duration {
	for {
		w.mu.Lock()
		e, wait, ok := w.queue.Next(time.Now())
		w.mu.Unlock()
		if !ok {
			return cmp.Or(wait, time.Hour)
		}
		w.recorder.Eventf(regarding(e), nil, e.Type, e.Reason, e.Action, "%s", e.Note)
	}
}

// regarding has no resourceVersion if the Event is about a SidecarSet, so that a
// repetition is recognized. One about a Pod has that of the write it tells of, so that
// there is none.
func regarding(e events.Event) *corev1.ObjectReference {
	if pod := e.Pod; pod != (events.Pod{}) {
		return &corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.Version,
		}
	}
	return &corev1.ObjectReference{
		APIVersion: appsv1beta1.GroupVersion.String(), Kind: appsv1beta1.Kind.Kind, Name: e.About.Name, UID: e.About.UID,
	}
}
