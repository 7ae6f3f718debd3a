package snapshot_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/sidecarset/operator/test/rounds"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// watchServer is an API server with one list and watch, of Namespaces. The test can compact
// its history and end its watches.
type watchServer struct {
	t         *testing.T
	mu        sync.Mutex
	objects   map[string]*corev1.Namespace
	history   []watch.Event // of each change, in order of versions
	version   int
	oldest    int           // a watch from an earlier version has expired
	changed   chan struct{} // closed when the next change is stored
	end       chan struct{} // closed when the watches end
	cutAfter  int           // a watch that sends all objects ends after that many; 0 is never
	listsOnly bool          // the server refuses watches that send all objects
	lists     int
}

func newWatchServer(t *testing.T) *watchServer {
	return &watchServer{t: t, objects: map[string]*corev1.Namespace{}, changed: make(chan struct{}), end: make(chan struct{})}
}

// change stores a Namespace in a new version, or deletes it.
func (s *watchServer) change(kind watch.EventType, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	object := namespace(name, strconv.Itoa(s.version))
	if kind == watch.Deleted {
		delete(s.objects, name)
	} else {
		s.objects[name] = object
	}
	s.history = append(s.history, watch.Event{Type: kind, Object: object})
	close(s.changed)
	s.changed = make(chan struct{})
}

// restart ends all watches and compacts the history, so that watches from earlier versions
// have expired.
func (s *watchServer) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.end)
	s.end, s.oldest = make(chan struct{}), s.version
}

// endWatches ends all watches; the history stays.
func (s *watchServer) endWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.end)
	s.end = make(chan struct{})
}

func (s *watchServer) List(metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	list := &corev1.NamespaceList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		list.Items = append(list.Items, *s.objects[name])
	}
	return list, nil
}

func (s *watchServer) Watch(options metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	var first []watch.Event
	from, cut := s.version, false
	if options.SendInitialEvents != nil {
		if s.listsOnly {
			return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
		}
		for name := range maps.Keys(s.objects) { // in any order
			first = append(first, watch.Event{Type: watch.Added, Object: s.objects[name]})
		}
		end := namespace("", strconv.Itoa(s.version))
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		first = append(first, watch.Event{Type: watch.Bookmark, Object: end})
		if cut = s.cutAfter > 0 && s.cutAfter < len(first); cut {
			first = first[:s.cutAfter]
		}
	} else {
		var err error
		if from, err = strconv.Atoi(options.ResourceVersion); err != nil {
			s.t.Errorf("a watch from %q", options.ResourceVersion)
		}
		if from < s.oldest {
			expired := apierrors.NewResourceExpired("too old resource version")
			first, cut = []watch.Event{{Type: watch.Error, Object: &expired.ErrStatus}}, true
		}
	}
	go s.serve(w.StopChan(), events, first, from, cut, s.end)
	return w, nil
}

// serve sends the first events, and then what changes after a version.
func (s *watchServer) serve(stopped <-chan struct{}, events chan<- watch.Event, first []watch.Event, from int, cut bool, end chan struct{}) {
	defer close(events)
	for {
		for _, event := range first {
			select {
			case events <- event:
			case <-stopped:
				return
			}
		}
		if cut {
			return
		}
		select {
		case <-end: // changes of the same moment are not sent
			return
		default:
		}
		s.mu.Lock()
		changed := s.changed
		first, from = slices.Clone(s.history[from:]), len(s.history)
		s.mu.Unlock()
		if len(first) > 0 {
			continue
		}
		select {
		case <-stopped:
			return
		case <-end:
			return
		case <-changed:
		}
	}
}

func (*watchServer) IsWatchListSemanticsUnSupported() bool { return true }

// follow runs an informer that is observed, within a bubble, and stops it when the test ends.
func (s *watchServer) follow(t *testing.T) toolscache.SharedIndexInformer {
	informer := snapshot.NewWatchHealth(snapshot.NewTimeline()).
		NewInformer(s, &corev1.Namespace{TypeMeta: metav1.TypeMeta{Kind: "Namespace"}}, 0, toolscache.Indexers{})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go informer.RunWithContext(ctx)
	<-time.After(100 * time.Millisecond)
	if !informer.HasSynced() {
		t.Fatal("the informer has not synced")
	}
	return informer
}

// differs returns how the objects of an informer differ from the stored ones; "" if they are
// equal.
func (s *watchServer) differs(informer toolscache.SharedIndexInformer) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := map[string]string{}
	for _, object := range informer.GetStore().List() {
		held[object.(*corev1.Namespace).Name] = object.(*corev1.Namespace).ResourceVersion
	}
	stored := map[string]string{}
	for name, object := range s.objects {
		stored[name] = object.ResourceVersion
	}
	if maps.Equal(held, stored) {
		return ""
	}
	return fmt.Sprintf("the informer has %v, stored is %v", held, stored)
}

func TestAnExpiredWatchContinuesAtOnce(t *testing.T) {
	// An informer of client-go alone pauses each time the watch expires, and doubles the pause:
	// 0.8 s and up to as much again after the first time, 25.6 s (0.8 s times 2^5) and up to as
	// much again after the sixth.
	const expired = 8
	tests := map[string]struct {
		change func(s *watchServer, i int)
		server func(s *watchServer)
		lists  int // at most; the informer begins with one
		within time.Duration
	}{
		"changed":                            {change: func(s *watchServer, _ int) { s.change(watch.Modified, "a") }, lists: 1, within: 50 * time.Millisecond},
		"another one":                        {change: func(s *watchServer, i int) { s.change(watch.Added, fmt.Sprint("new-", i)) }, lists: 1, within: 50 * time.Millisecond},
		"deleted":                            {change: func(s *watchServer, i int) { s.change(watch.Deleted, fmt.Sprint("old-", i)) }, lists: 1 + expired, within: time.Minute},
		"an API server without such watches": {change: func(s *watchServer, _ int) { s.change(watch.Modified, "a") }, server: func(s *watchServer) { s.listsOnly = true }, lists: 1 + expired, within: time.Minute},
		"streams that are cut":               {change: func(s *watchServer, _ int) { s.change(watch.Modified, "a") }, server: func(s *watchServer) { s.cutAfter = 3 }, lists: 1 + expired, within: time.Minute},
		"deleted, and cut afterwards": {change: func(s *watchServer, i int) {
			s.change(watch.Deleted, fmt.Sprint("old-", i))
			s.change(watch.Modified, "a")
		}, server: func(s *watchServer) { s.cutAfter = 1 }, lists: 1 + expired, within: time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newWatchServer(t)
				if tc.server != nil {
					tc.server(s)
				}
				s.change(watch.Added, "a")
				for i := range expired {
					s.change(watch.Added, fmt.Sprint("old-", i))
				}
				informer := s.follow(t)
				for i := range expired {
					<-time.After(1100 * time.Millisecond) // after a shorter watch without events, an informer pauses
					s.change(watch.Modified, "a")
					tc.change(s, i)
					s.restart()
					<-time.After(tc.within)
					if what := s.differs(informer); what != "" {
						t.Fatalf("%s after the %d. time that the watch expired, %s", tc.within, i+1, what)
					}
				}
				if s.lists > tc.lists {
					t.Errorf("%d lists, want %d at most", s.lists, tc.lists)
				}
			})
		})
	}
}

// After any sequence of changes, ends of watches and expiries, an informer has the stored
// objects.
func TestAnExpiredWatchLosesNothing(t *testing.T) {
	for seed := range uint64(rounds.Of(1000, 100)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			s := newWatchServer(t)
			for i := range 5 {
				s.change(watch.Added, strconv.Itoa(i))
			}
			informer := s.follow(t)
			for range 60 {
				s.mu.Lock()
				s.cutAfter = max(0, random.IntN(8)-3)
				stored := slices.Sorted(maps.Keys(s.objects))
				s.mu.Unlock()
				switch random.IntN(6) {
				case 0:
					s.change(watch.Added, strconv.Itoa(100+random.IntN(100000)))
				case 1, 2:
					if len(stored) > 0 {
						s.change(watch.Deleted, stored[random.IntN(len(stored))])
					}
				case 3:
					if len(stored) > 0 {
						s.change(watch.Modified, stored[random.IntN(len(stored))])
					}
				case 4:
					s.restart()
				case 5:
					s.endWatches()
				}
				<-time.After(time.Duration(random.IntN(30)) * time.Millisecond)
				if random.IntN(3) == 0 {
					<-time.After(time.Duration(random.IntN(60)) * time.Second)
				}
			}
			s.mu.Lock()
			s.cutAfter = 0
			s.mu.Unlock()
			<-time.After(5 * time.Minute) // longer than an informer's pause
			if what := s.differs(informer); what != "" {
				t.Errorf("seed %d: %s", seed, what)
			}
		})
	}
}
