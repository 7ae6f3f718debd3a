package operator

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	k8sevents "k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"

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

// eventWriter writes Events within Limits. It runs on every replica. It is safe for concurrent use.
type eventWriter struct {
	recorder k8sevents.EventRecorder
	limits   events.Limits
	pace     *rate.Limiter
	due      workqueue.TypedDelayingInterface[events.Event] // what subjectOf returns
	told     *utilcache.LRUExpireCache                      // toldEvent by subject, for Limits.Again

	mu      sync.Mutex
	waiting map[events.Event]events.Event // by subject
}

// toldEvent is the last Event about a subject.
type toldEvent struct {
	reason string
	at     time.Time
}

// maxTold is more than are written in Limits.Again.
const maxTold = 4096

func newEventWriter(recorder k8sevents.EventRecorder, limits events.Limits) *eventWriter {
	return &eventWriter{
		recorder: recorder, limits: limits, pace: rate.NewLimiter(rate.Every(limits.Between), max(limits.Burst, 1)),
		due: workqueue.NewTypedDelayingQueue[events.Event](), told: utilcache.NewLRUExpireCache(maxTold), waiting: map[events.Event]events.Event{},
	}
}

// subjectOf is the object and the Action of an Event. An Event replaces one of the same subject that waits.
func subjectOf(e events.Event) events.Event {
	return events.Event{About: e.About, Pod: e.Pod, Action: e.Action}
}

// RecordEvent queues an Event, if the limits allow it. It does not wait.
func (w *eventWriter) RecordEvent(e events.Event) {
	subject, wait := subjectOf(e), w.limits.Settle
	w.mu.Lock()
	defer w.mu.Unlock()
	if told, again := w.told.Get(subject); again {
		last := told.(toldEvent)
		if last.reason == e.Reason {
			delete(w.waiting, subject)
			return
		}
		wait = max(wait, time.Until(last.at.Add(w.limits.Again)))
	}
	if _, waits := w.waiting[subject]; waits || len(w.waiting) < w.limits.Waiting {
		w.waiting[subject] = e
		w.due.AddAfter(subject, wait) // or when it is due already
	}
}

// NeedLeaderElection reports false.
func (*eventWriter) NeedLeaderElection() bool { return false }

// Start writes Events until ctx ends.
func (w *eventWriter) Start(ctx context.Context) error {
	context.AfterFunc(ctx, w.due.ShutDown)
	for {
		subject, ended := w.due.Get()
		if ended {
			return nil
		}
		if err := w.pace.Wait(ctx); err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		w.mu.Lock()
		e, waits := w.waiting[subject]
		if waits {
			delete(w.waiting, subject)
			w.told.Add(subject, toldEvent{e.Reason, time.Now()}, w.limits.Again)
		}
		w.mu.Unlock()
		w.due.Done(subject)
		if waits {
			w.recorder.Eventf(regarding(e), nil, e.Type, e.Reason, e.Action, "%s", e.Note)
		}
	}
}

// regarding has no resourceVersion if the Event is about a SidecarSet, so that a
// repetition is recognized. An Event about a Pod has the resourceVersion of the write, so that
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
