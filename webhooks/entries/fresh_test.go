package entries

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// slowLists is an API server whose lists wait until the test answers them.
type slowLists struct {
	client.Reader
	answers chan listAnswer
	version string // of the lists

	mu           sync.Mutex
	began        int
	running, top int // at the same time
}

type listAnswer struct {
	versions []string
	err      error
}

func (s *slowLists) List(ctx context.Context, into client.ObjectList, _ ...client.ListOption) error {
	s.mu.Lock()
	s.began++
	s.running++
	s.top = max(s.top, s.running)
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.running--; s.mu.Unlock() }()
	list, ok := into.(*metav1.PartialObjectMetadataList)
	if !ok || list.Kind != "SidecarSetList" || list.APIVersion != "apps.kruise.io/v1beta1" {
		return errors.New("a list of something else, or of more than metadata")
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case answer := <-s.answers:
		list.ResourceVersion = s.version
		for i, version := range answer.versions {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "set-" + string(rune('a'+i)), ResourceVersion: version}})
		}
		return answer.err
	}
}

func (s *slowLists) lists() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began
}

// knownVersions is a versionWaiter that remembers the versions that it was asked for.
type knownVersions struct {
	mu    sync.Mutex
	asked []snapshot.Versions
	hangs bool
	ahead string // a SidecarSet held in a later version than the stored one
	// contents are those of the SidecarSets that are held.
	contents map[string]string
}

func (k *knownVersions) WaitFor(ctx context.Context, stored snapshot.Versions) error {
	k.mu.Lock()
	k.asked = append(k.asked, stored)
	k.mu.Unlock()
	if k.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (k *knownVersions) Ahead(snapshot.Versions, uint64) (string, uint64) { return k.ahead, 30 }

func (k *knownVersions) Content(name string) string { return k.contents[name] }

func (k *knownVersions) versions() []snapshot.Versions {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

// asking makes requests to a Freshness.
type asking struct {
	*Freshness
	server  *slowLists
	catalog *knownVersions
}

func inFreshBubble(t *testing.T, test func(t *testing.T, a *asking)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &asking{server: &slowLists{answers: make(chan listAnswer)}, catalog: &knownVersions{}}
		a.Freshness = NewFreshness(a.server, a.catalog, snapshot.NewTimeline(), entryplan.Trust)
		test(t, a)
	})
}

// request calls CatchUp in the background.
func (a *asking) request(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- a.CatchUp(ctx) }()
	synctest.Wait()
	return done
}

// answer answers the list that is under way.
func (a *asking) answer(versions ...string) {
	a.server.answers <- listAnswer{versions: versions}
	synctest.Wait()
}

func answered(done <-chan error) bool { return len(done) == 1 }

func TestFreshWaitsForAllThatIsStored(t *testing.T) {
	inFreshBubble(t, func(t *testing.T, a *asking) {
		done := a.request(t.Context())
		a.answer("7", "12", "9")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		done = a.request(t.Context())
		a.answer() // no SidecarSet is stored
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		want := []snapshot.Versions{{"set-a": 7, "set-b": 12, "set-c": 9}, {}}
		if diff := cmp.Diff(want, a.catalog.versions()); diff != "" {
			t.Errorf("waited for (-want +got):\n%s", diff)
		}
	})
}

// A request needs a list that began after the request came.
func TestFreshRequestsShareTheNextList(t *testing.T) {
	inFreshBubble(t, func(t *testing.T, a *asking) {
		first := a.request(t.Context())
		var late []<-chan error
		for range 50 {
			late = append(late, a.request(t.Context()))
		}
		if got := a.server.lists(); got != 1 {
			t.Fatalf("%d lists while one is under way", got)
		}
		a.answer("1")
		if !answered(first) {
			t.Error("the request that began the list still waits")
		}
		for _, done := range late {
			if answered(done) {
				t.Fatal("a request was answered by a list that had begun before it")
			}
		}
		if got := a.server.lists(); got != 2 {
			t.Fatalf("%d lists, want the second for all who came meanwhile", got)
		}
		a.answer("2")
		for _, done := range late {
			if !answered(done) {
				t.Fatal("a request waits for a third list")
			}
		}
		if got := a.catalog.versions(); len(got) != 51 || got[0]["set-a"] != 1 || got[1]["set-a"] != 2 || got[50]["set-a"] != 2 {
			t.Errorf("waited for %v", got)
		}
		if a.server.top != 1 || a.server.lists() != 2 {
			t.Errorf("%d lists, %d at the same time", a.server.lists(), a.server.top)
		}
	})
}

func TestFreshListOutlivesTheRequestThatBeganIt(t *testing.T) {
	inFreshBubble(t, func(t *testing.T, a *asking) {
		ctx, hangUp := context.WithCancel(t.Context())
		first := a.request(ctx)
		gone := a.request(ctx)
		other := a.request(t.Context())
		hangUp()
		for _, done := range []<-chan error{first, gone} {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("a request whose client hung up got %v", err)
			}
		}
		a.answer("1")
		a.answer("2")
		if err := <-other; err != nil {
			t.Errorf("another request got %v", err)
		}
	})
}

func TestFreshTellsWhyItCannot(t *testing.T) {
	tests := map[string]struct {
		happens func(*asking)
		want    string
	}{
		"the list fails":              {func(a *asking) { a.server.answers <- listAnswer{err: errors.New("etcd is away")} }, "asking for the newest SidecarSets, try again: etcd is away"},
		"a version that is no number": {func(a *asking) { a.answer("1", "x") }, `reading SidecarSet set-b: resourceVersion "x" is not a number`},
		"the list takes too long":     {func(*asking) {}, "asking for the newest SidecarSets, try again: context deadline exceeded"},
		"this replica is behind":      {func(a *asking) { a.catalog.hangs = true; a.answer("1") }, "waiting for this replica of the operator to know the newest SidecarSets, try again: context deadline exceeded"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inFreshBubble(t, func(t *testing.T, a *asking) {
				start := time.Now()
				done := a.request(t.Context())
				tc.happens(a)
				err := <-done
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %s", err, tc.want)
				}
				if took := time.Since(start); took > freshTimeout {
					t.Errorf("a Pod waits for %v", took)
				}
				synctest.Wait()
				// Later requests do not get the error.
				a.catalog.hangs = false
				done = a.request(t.Context())
				a.answer("5")
				if err := <-done; err != nil {
					t.Errorf("the next request got %v", err)
				}
			})
		})
	}
}

// restored returns the error by which the Timeline ends the process; nil if there is none.
func restored(timeline *snapshot.Timeline) error {
	synctest.Wait()
	select {
	case err := <-timeline.Restored():
		return err
	default:
		return nil
	}
}

// CatchUp fails until the process has ended, so that Pods on the fresh path and SidecarSets
// are refused.
func TestFreshRefusesWhatIsOlderThanWhatWasSeen(t *testing.T) {
	inFreshBubble(t, func(t *testing.T, a *asking) {
		a.timeline.See("50")
		a.server.version = "40"
		done := a.request(t.Context())
		a.answer("7")
		if err := <-done; !errors.As(err, new(*snapshot.RestoredError)) {
			t.Errorf("a request got %v", err)
		}
		if err := restored(a.timeline); err == nil {
			t.Error("the process goes on")
		}
	})
}

// After the restore, other writes have made the version of lists high again.
func TestFreshRefusesASidecarSetThatIsOlderThanTheOneItHolds(t *testing.T) {
	inFreshBubble(t, func(t *testing.T, a *asking) {
		a.catalog.ahead = "set-a"
		a.server.version = "60"
		done := a.request(t.Context())
		a.answer("7")
		if err := <-done; !errors.As(err, new(*snapshot.RestoredError)) {
			t.Errorf("a request got %v", err)
		}
		if err := restored(a.timeline); err == nil {
			t.Error("the process goes on")
		}
	})
}

// A replica trusts its snapshot only after a successful check, from the beginning of that
// check on.
func TestTrustLastsFromTheBeginningOfACheck(t *testing.T) {
	inFreshBubble(t, func(t *testing.T, a *asking) {
		if a.Trusted() {
			t.Fatal("a replica trusts what it never checked")
		}
		done := a.request(t.Context())
		<-time.After(freshTimeout / 2) // the API server answers late
		a.answer("1")
		if err := <-done; err != nil || !a.Trusted() {
			t.Fatalf("after a check, which ended with %v, the replica trusts: %v", err, a.Trusted())
		}
		<-time.After(entryplan.Trust - freshTimeout/2)
		if !a.Trusted() {
			t.Error("the replica doubts too early")
		}
		a.catalog.hangs = true // a check that fails changes nothing
		done = a.request(t.Context())
		a.answer("2")
		if err := <-done; err == nil || a.Trusted() {
			t.Errorf("the check ended with %v; the replica trusts: %v", err, a.Trusted())
		}
	})
}

// A check that began earlier and ended later does not shorten the trust.
func TestTrustIsThatOfTheNewestCheck(t *testing.T) {
	inFreshBubble(t, func(t *testing.T, a *asking) {
		now := time.Now()
		a.certify(now)
		a.certify(now.Add(-entryplan.Trust))
		<-time.After(entryplan.Trust)
		if !a.Trusted() {
			t.Error("an older check counts")
		}
	})
}

func TestReplicasKeepChecking(t *testing.T) {
	inFreshBubble(t, func(t *testing.T, a *asking) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Start(ctx) }()
		synctest.Wait()
		a.answer("1")
		for range 10 {
			<-time.After(entryplan.Trust / 2)
			synctest.Wait()
			if !a.Trusted() {
				t.Fatal("the replica doubts between two checks")
			}
			a.answer("1")
		}
		<-time.After(entryplan.Trust / 2)
		synctest.Wait()
		a.server.answers <- listAnswer{err: errors.New("etcd is away")}
		synctest.Wait()
		<-time.After(checkPause) // then the replica checks again
		synctest.Wait()
		a.answer("1")
		<-time.After(entryplan.Trust/2 - time.Second)
		if !a.Trusted() {
			t.Error("the replica doubts after a check that followed one that failed")
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
