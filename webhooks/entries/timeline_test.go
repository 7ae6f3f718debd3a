package entries

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// versionedLists is an API server whose etcd is at a version, or does not answer.
type versionedLists struct {
	client.Reader

	mu      sync.Mutex
	version uint64
	err     error
	lists   int
	begins  func() // is called when a list begins
}

// with calls do while it holds the lock.
func (v *versionedLists) with(do func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	do()
}

func (v *versionedLists) count() (lists int) {
	v.with(func() { lists = v.lists })
	return lists
}

func (v *versionedLists) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	list, ok := into.(*metav1.PartialObjectMetadataList)
	if !ok || list.Kind != "SidecarSetList" || o.Limit != mostListed || o.Raw != nil {
		return errors.New("a list of something else, or not a quorum read")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lists++
	version := v.version
	if v.begins != nil {
		v.begins()
	}
	list.ResourceVersion = strconv.FormatUint(version, 10)
	return v.err
}

// checking runs a test beside the checks of a replica, in a synctest bubble.
func checking(t *testing.T, test func(t *testing.T, timeline *snapshot.Timeline, server *versionedLists)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		timeline, server := snapshot.NewTimeline(), &versionedLists{version: 100}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- NewFreshness(server, &knownVersions{}, timeline, entryplan.Trust).Start(ctx)
		}()
		synctest.Wait()
		test(t, timeline, server)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestVersionsThatGoBackwardsAreNoticed(t *testing.T) {
	tests := map[string]struct {
		happens func(*snapshot.Timeline, *versionedLists)
		want    bool
	}{
		"nothing changes":                   {func(*snapshot.Timeline, *versionedLists) {}, false},
		"other objects are written":         {func(_ *snapshot.Timeline, s *versionedLists) { s.version = 200 }, false},
		"a SidecarSet is written and seen":  {func(l *snapshot.Timeline, s *versionedLists) { s.version = 101; l.See("101") }, false},
		"API servers do not answer":         {func(_ *snapshot.Timeline, s *versionedLists) { s.version, s.err = 0, errors.New("connection refused") }, false},
		"versions are no numbers":           {func(l *snapshot.Timeline, _ *versionedLists) { l.See("abc") }, false},
		"the state is from before a list":   {func(_ *snapshot.Timeline, s *versionedLists) { s.version = 99 }, true},
		"the state is from before an event": {func(l *snapshot.Timeline, s *versionedLists) { s.version = 120; l.See("130") }, true},
		"a watch is ahead of a list under way": {func(l *snapshot.Timeline, s *versionedLists) {
			s.begins = func() { l.See("150") } // a watch sends it after the list was read, before the answer
			s.version = 140
		}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			checking(t, func(t *testing.T, timeline *snapshot.Timeline, server *versionedLists) {
				during := false
				server.with(func() { tc.happens(timeline, server); during = server.begins != nil })
				if during {
					reconnect(t, timeline)
					<-time.After(checkPause)
					synctest.Wait()
					server.with(func() { server.begins, server.version = nil, 150 })
				}
				<-time.After(entryplan.Trust / 2)
				err := restored(timeline)
				server.mu.Lock()
				defer server.mu.Unlock()
				if got := err != nil; got != tc.want {
					t.Errorf("it says %v", err)
				}
				var restored *snapshot.RestoredError
				if tc.want && (!errors.As(err, &restored) || restored.Stored != server.version || !strings.Contains(err.Error(), "restored from a backup")) {
					t.Errorf("it says %v", err)
				}
			})
		})
	}
}

// observe returns a source of a kind that reports to the Timeline.
func observe(timeline *snapshot.Timeline, kind string) toolscache.ListerWatcherWithContext {
	return toolscache.ToListerWatcherWithContext(snapshot.NewWatchHealth(timeline).Observe(sidecarSetSource{}, kind))
}

// reconnect begins a watch of Leases.
func reconnect(t *testing.T, timeline *snapshot.Timeline) {
	t.Helper()
	events, err := observe(timeline, "Lease").WatchWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		<-events.ResultChan()
	}
	events.Stop()
}

// A watch that begins anew is the first sign that API servers were away, so the replica checks
// at once.
func TestARestartedWatchCausesACheckAtOnce(t *testing.T) {
	checking(t, func(t *testing.T, timeline *snapshot.Timeline, server *versionedLists) {
		observed := observe(timeline, "SidecarSet")
		<-time.After(checkPause)
		synctest.Wait()
		before := server.count()
		events, err := observed.WatchWithContext(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		synctest.Wait()
		if got := server.count() - before; got != 1 {
			t.Errorf("%d lists", got)
		}
		for range 2 {
			<-events.ResultChan()
		}
		if got := timeline.Newest(); got != 170 {
			t.Errorf("after an object of version 160 and a bookmark of 170 the newest is %d", got)
		}
		if _, err := observed.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil || timeline.Newest() != 180 {
			t.Errorf("after a list of version 180 the newest is %d; %v", timeline.Newest(), err)
		}
		server.with(func() { server.version = 300 }) // for lists after the test
	})
}

// Objects of other kinds may be in another etcd, so their versions do not count.
func TestVersionsOfOtherKindsAreNotCompared(t *testing.T) {
	timeline := snapshot.NewTimeline()
	observed := observe(timeline, "Lease")
	if _, err := observed.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil || timeline.Newest() != 0 {
		t.Errorf("the newest version is %d; %v", timeline.Newest(), err)
	}
}

func TestWatchesThatKeepRestartingCauseOneCheckASecond(t *testing.T) {
	checking(t, func(t *testing.T, timeline *snapshot.Timeline, server *versionedLists) {
		before := server.count()
		for range 1000 {
			reconnect(t, timeline)
			<-time.After(10 * time.Millisecond)
		}
		if got := server.count() - before; got < 9 || got > 11 {
			t.Errorf("%d lists in 10 s", got)
		}
	})
}

// sidecarSetSource has a list of version 180, and a watch with an object of version
// 160 and a bookmark of 170.
type sidecarSetSource struct{}

func (sidecarSetSource) List(metav1.ListOptions) (runtime.Object, error) {
	list := &unstructured.UnstructuredList{}
	list.SetResourceVersion("180")
	return list, nil
}

func (sidecarSetSource) Watch(metav1.ListOptions) (watch.Interface, error) {
	events := watch.NewFakeWithChanSize(2, false)
	for version, kind := range map[string]watch.EventType{"160": watch.Modified, "170": watch.Bookmark} {
		object := &metav1.PartialObjectMetadata{}
		object.SetResourceVersion(version)
		events.Action(kind, object)
	}
	return events, nil
}
