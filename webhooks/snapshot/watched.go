package snapshot

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// watchedKind is the source of one informer. It notes signs of life, and it continues
// watches whose resourceVersion has expired.
//
// An API server answers a watch with 410 (Expired) when the server's own cache has
// started anew: after a restart of the server, and after each change of the
// CustomResourceDefinition's conversion webhook. After a 410 an informer lists again,
// but first it pauses, and its pause doubles with each 410 up to a minute. Meanwhile this
// replica would refuse Pods, because its snapshot lacks what is stored.
//
// Instead of passing the 410 on, the source begins a watch that sends all objects first.
// An informer that receives an object again takes that for a change. Such a watch does
// not tell which objects have been deleted since the old one. So the source remembers
// which objects the informer has. If one of them is not sent, the source passes the 410
// on after all, and the informer lists.
//
// An informer uses one list or watch at a time, and stops a watch before it begins
// another.
type watchedKind struct {
	toolscache.ListerWatcher // the half of the interface without contexts, which informers do not use
	source                   toolscache.ListerWatcherWithContext

	kind     string
	timeline *Timeline
	last     atomic.Pointer[time.Time] // of the last sign of life

	mu     sync.Mutex       // a watch that is stopped may still be sending
	known  sets.Set[string] // keys of the objects that the informer has
	unsent sets.Set[string] // keys in known that a watch of all objects has not sent yet; else nil
}

// touch notes a sign of life. The time has a monotonic reading, so setting the clock
// does not matter.
func (w *watchedKind) touch() { w.last.Store(new(time.Now())) }

// ListWithContext tries to list until it succeeds. A list that succeeds is a sign of life.
func (w *watchedKind) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := persist(ctx, w.kind, func() (runtime.Object, error) { return w.source.ListWithContext(ctx, options) })
	if err != nil {
		return list, err
	}
	w.alive()
	w.see(list)
	w.mu.Lock()
	defer w.mu.Unlock()
	if options.Continue == "" {
		w.startAgain()
	}
	return list, meta.EachListItem(list, func(object runtime.Object) error {
		w.note(watch.Added, keyOf(object))
		return nil
	})
}

// IsWatchListSemanticsUnSupported returns the answer of the source, so that an informer reads
// it in the same way as without watchedKind.
func (w *watchedKind) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(w.ListerWatcher)
}

// alive notes that a list was read, or that a watch has begun.
func (w *watchedKind) alive() {
	w.touch()
	Signal(w.timeline.reconnected)
}

// startAgain notes that the informer replaces all that it has.
func (w *watchedKind) startAgain() { w.known, w.unsent = sets.New[string](), nil }

// note updates known and unsent for an object, or a deletion, that the informer has received.
func (w *watchedKind) note(event watch.EventType, key string) {
	switch event {
	case watch.Added, watch.Modified:
		w.known.Insert(key)
		w.unsent.Delete(key)
	case watch.Deleted:
		w.known.Delete(key)
		w.unsent.Delete(key)
	}
}

// keyOf is namespace/name; "" if object has no metadata.
func keyOf(object runtime.Object) string {
	key, err := toolscache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return ""
	}
	return key
}

// see reports to the Timeline the version of a list of SidecarSets, or of a SidecarSet or
// bookmark of a watch. Other kinds do not matter to it.
func (w *watchedKind) see(object runtime.Object) {
	if w.kind != appsv1beta1.Kind.Kind {
		return
	}
	if versioned, err := meta.CommonAccessor(object); err == nil {
		w.timeline.See(versioned.GetResourceVersion())
	}
}

// errHalfSent makes an informer list. Its last watch ended when it had sent only a part of
// all objects. So a watch from the resourceVersion of the last one would not tell which
// objects were deleted before.
var errHalfSent error = apierrors.NewResourceExpired("the last watch ended before it had sent all objects")

// WatchWithContext tries to begin a watch until it succeeds. That is a sign of life, and so
// is each event.
func (w *watchedKind) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w.mu.Lock()
	if sendsAll(options) {
		w.startAgain()
	}
	halfSent := w.unsent != nil
	w.mu.Unlock()

	ctx, stop := context.WithCancel(ctx)
	again := func() (watch.Interface, error) { return w.sendAll(ctx, options) }
	events, err := watch.Interface(nil), errHalfSent
	if !halfSent {
		if events, err = w.connect(ctx, options); apierrors.IsResourceExpired(err) && !sendsAll(options) {
			if next, failed := again(); failed == nil {
				events, err = next, nil
			}
		}
	}
	if err != nil {
		stop()
		return nil, err
	}
	w.alive()
	informer := &watched{events: make(chan watch.Event), stop: stop}
	go w.pass(ctx, events, informer, again)
	return informer, nil
}

func (w *watchedKind) connect(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return persist(ctx, w.kind, func() (watch.Interface, error) { return w.source.WatchWithContext(ctx, options) })
}

// sendsAll reports whether a watch with these options sends all objects first.
func sendsAll(options metav1.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents || options.ResourceVersion == "" || options.ResourceVersion == "0"
}

// sendAll begins a watch like one that has expired. It sends all objects as they are
// now, and marks their end with a bookmark.
func (w *watchedKind) sendAll(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.SendInitialEvents, options.AllowWatchBookmarks = new(true), true
	options.ResourceVersion, options.ResourceVersionMatch = "", metav1.ResourceVersionMatchNotOlderThan
	events, err := w.connect(ctx, options)
	if err != nil {
		return nil, err // an old API server may not support such a watch
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsent = w.known.Clone()
	return events, nil
}

// pass passes events on until the watch ends or is stopped. It continues a watch that has
// expired.
func (w *watchedKind) pass(ctx context.Context, events watch.Interface, informer *watched, again func() (watch.Interface, error)) {
	defer close(informer.events)
	defer informer.stop()
	defer func() { events.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-events.ResultChan():
			if !ok {
				return
			}
			w.touch()
			if event.Type != watch.Error {
				w.see(event.Object)
			} else if next := w.continued(event, again); next != nil {
				events.Stop()
				events = next
				w.alive()
				continue
			}
			if !w.send(ctx, event, informer) {
				return
			}
		}
	}
}

// continued returns the watch that continues one that has ended with an error; nil if
// none does.
func (w *watchedKind) continued(event watch.Event, again func() (watch.Interface, error)) watch.Interface {
	w.mu.Lock()
	sending := w.unsent != nil
	w.mu.Unlock()
	if sending || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		return nil
	}
	next, _ := again() // nil if it fails
	return next
}

// send sends an event to the informer, and reports whether to go on. It holds the lock
// meanwhile, so that known and unsent always fit the events that the informer has received.
func (w *watchedKind) send(ctx context.Context, event watch.Event, informer *watched) bool {
	key := keyOf(event.Object)
	w.mu.Lock()
	defer w.mu.Unlock()
	allSent := event.Type == watch.Bookmark && endsInitialEvents(event.Object)
	lost := allSent && w.unsent.Len() > 0
	if lost {
		expired := apierrors.NewResourceExpired(fmt.Sprintf("%s was deleted since the last watch", sets.List(w.unsent)[0]))
		event = watch.Event{Type: watch.Error, Object: &expired.ErrStatus}
	}
	select {
	case <-ctx.Done():
		return false
	case informer.events <- event:
	}
	if lost {
		return false // the informer lists again
	}
	if allSent {
		w.unsent = nil
	}
	w.note(event.Type, key)
	return true
}

func endsInitialEvents(object runtime.Object) bool {
	bookmark, err := meta.Accessor(object)
	return err == nil && bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

// watched is the watch that an informer sees.
type watched struct {
	events chan watch.Event
	stop   context.CancelFunc
}

func (w *watched) ResultChan() <-chan watch.Event { return w.events }

func (w *watched) Stop() { w.stop() }
