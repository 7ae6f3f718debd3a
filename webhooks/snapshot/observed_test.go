package snapshot_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// setOf is SidecarSet a with a UID and a generation.
func setOf(uid types.UID, generation int64) *unstructured.Unstructured {
	set := storedSet("a")
	set.SetUID(uid)
	set.SetGeneration(generation)
	return set
}

// knows is what a Store says of a dependency.
type knows struct{ holds, seen bool }

func knowsOf(store *snapshot.Store, uid types.UID, generation int64) knows {
	n := podwebhook.Dependency{Name: "a", UID: podwebhook.ShortUID(uid), Generation: generation}
	return knows{store.HasObserved(n), store.Seen(n)}
}

// inPause runs a test with a Store whose rebuilds wait for the next call of rebuild.
func inPause(t *testing.T, test func(c *fakeCache, store *snapshot.Store, rebuild func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCache()
		for _, s := range []source{c.sets, c.namespaces, c.revisions} {
			t.Cleanup(s.Shutdown)
		}
		store := c.run(t)
		others := 0
		rebuild := func() {
			<-time.After(time.Minute)
			others++
			c.sets.Add(storedSet(fmt.Sprint("other-", others))) // the pause after its rebuild begins
			synctest.Wait()
		}
		rebuild()
		test(c, store, rebuild)
	})
}

func TestStoreHoldsASidecarSetFromItsGenerationOn(t *testing.T) {
	inPause(t, func(c *fakeCache, store *snapshot.Store, rebuild func()) {
		if got := knowsOf(store, "uid-1", 2); got != (knows{}) {
			t.Errorf("before it is stored: %+v", got)
		}
		c.sets.Add(setOf("uid-1", 2))
		synctest.Wait()
		if got := knowsOf(store, "uid-1", 2); got.holds || got.seen {
			t.Errorf("before the snapshot has it: %+v", got)
		}
		rebuild()
		for generation, holds := range map[int64]bool{1: true, 2: true, 3: false} {
			if got := knowsOf(store, "uid-1", generation); got != (knows{holds, true}) {
				t.Errorf("generation %d: %+v", generation, got)
			}
		}
		if got := knowsOf(store, "uid-2", 1); got != (knows{}) {
			t.Errorf("another UID: %+v", got)
		}
	})
}

func TestStoreHoldsASidecarSetThatIsGone(t *testing.T) {
	tests := map[string]func(c *fakeCache, rebuild func()){
		"deleted": func(c *fakeCache, rebuild func()) {
			c.sets.Add(setOf("uid-1", 1))
			rebuild()
			c.sets.Delete(setOf("uid-1", 1))
		},
		"replaced": func(c *fakeCache, rebuild func()) {
			c.sets.Add(setOf("uid-1", 1))
			rebuild()
			c.sets.Modify(setOf("uid-2", 1)) // as after a list
		},
		"come and gone between two rebuilds": func(c *fakeCache, _ func()) {
			c.sets.Add(setOf("uid-1", 1))
			c.sets.Delete(setOf("uid-1", 1))
		},
		"come, gone and created anew between two rebuilds": func(c *fakeCache, _ func()) {
			c.sets.Add(setOf("uid-1", 1))
			c.sets.Delete(setOf("uid-1", 1))
			c.sets.Add(setOf("uid-2", 1))
		},
	}
	for name, happens := range tests {
		t.Run(name, func(t *testing.T) {
			inPause(t, func(c *fakeCache, store *snapshot.Store, rebuild func()) {
				happens(c, rebuild)
				synctest.Wait()
				// The snapshot does not know this yet, so a call for a later generation is not answered.
				if got := knowsOf(store, "uid-1", 9); got.holds {
					t.Errorf("before the rebuild: %+v", got)
				}
				rebuild()
				if got := knowsOf(store, "uid-1", 9); got != (knows{holds: true, seen: true}) {
					t.Errorf("after the rebuild: %+v", got)
				}
			})
		})
	}
}
