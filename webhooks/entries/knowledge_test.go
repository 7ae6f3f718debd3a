package entries_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// call makes a call for a Pod with the label app=<app>, in the background.
func (r *replica) call(ctx context.Context, slot int, number uint64, app string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- r.Ensure(ctx, slot, number, labels.Set{"app": app}) }()
	synctest.Wait()
	return done
}

// soon returns the answer to a call; "waits" if there is none yet, and "" for success.
func soon(done <-chan error) string {
	<-time.After(100 * time.Millisecond) // the pause of the Catalog
	synctest.Wait()
	select {
	case err := <-done:
		if err != nil {
			return err.Error()
		}
		return ""
	default:
		return "waits"
	}
}

// One call for a Pod of SidecarSet log, whose generation 2 is required in slot.
func TestACallReadsWhatItRequires(t *testing.T) {
	log := func(generation int64) *unstructured.Unstructured { return selecting("log", "web", "uid-1", generation) }
	type given struct {
		r      *replica
		slot   int
		number uint64
	}
	review := func(g *given, set *unstructured.Unstructured) { g.slot, g.number = g.r.review(set) }
	tests := map[string]struct {
		before func(g *given)
		reads  []string // of the first call; the SidecarSet is log and the slot is slot
		waits  bool     // until the snapshot has log as it is stored
		again  []string // of the second call, which is the same
	}{
		"the snapshot holds it": {func(g *given) {
			review(g, log(2))
			g.r.learnSlots()
			g.r.store(log(2))
			g.r.learn(watch.Added, g.r.etcd.sets["log"])
		}, nil, false, nil},
		"the snapshot holds it, and the watch of slots is late": {func(g *given) {
			review(g, log(2))
			g.r.store(log(2))
			g.r.learn(watch.Added, g.r.etcd.sets["log"])
		}, []string{"slot"}, false, nil},
		"it is stored, and both watches are late": {func(g *given) {
			g.r.learnSlots() // as they were before
			review(g, log(2))
			g.r.store(log(2))
		}, []string{"log", "slot"}, true, nil},
		"it is stored, and its watch is late": {func(g *given) {
			review(g, log(2))
			g.r.learnSlots()
			g.r.store(log(2))
		}, []string{"log"}, true, nil},
		"the generation before is stored": {func(g *given) {
			g.r.store(log(1))
			g.r.learn(watch.Added, g.r.etcd.sets["log"])
			review(g, log(2))
		}, []string{"log", "slot"}, false, []string{"log"}},
		"it is not stored yet": {func(g *given) {
			review(g, log(2))
			g.r.learnSlots()
		}, []string{"log"}, false, []string{"log"}},
		"it was created anew": {func(g *given) {
			review(g, log(2))
			g.r.learnSlots()
			g.r.store(selecting("log", "web", "uid-2", 1))
		}, []string{"log"}, true, []string{"log"}},
		"it was stored and is gone": {func(g *given) {
			review(g, log(2))
			g.r.learnSlots()
			g.r.store(log(2))
			g.r.learn(watch.Added, g.r.etcd.sets["log"])
			g.r.learn(watch.Deleted, g.r.etcd.sets["log"])
			g.r.remove(log(2))
		}, nil, false, nil},
		"another entry of the slot requires what is not stored": {func(g *given) {
			review(g, log(2))
			g.r.store(log(2))
			g.r.learn(watch.Added, g.r.etcd.sets["log"])
			review(g, selecting("other", besides(g.r.t, "web"), "uid-3", 1))
			g.r.learnSlots()
		}, nil, false, nil},
		"two of a name are on their way": {func(g *given) {
			review(g, log(2))
			review(g, selecting("log", "web", "uid-2", 1))
			g.r.learnSlots()
		}, []string{"log"}, false, []string{"log"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withReplica(t, func(t *testing.T, r *replica) {
				g := &given{r: r}
				tc.before(g)
				<-time.After(time.Second) // the snapshot is up to date with its watch
				done := r.call(t.Context(), g.slot, g.number, "web")
				answer := soon(done)
				if tc.waits {
					if answer != "waits" {
						t.Fatalf("before the snapshot has it: %q", answer)
					}
					r.learn(watch.Added, r.etcd.sets["log"])
					answer = soon(done)
				}
				if answer != "" {
					t.Fatalf("the call is answered %q", answer)
				}
				reads := func() []string {
					all := r.etcd.reads()
					for i := range all {
						all[i] = strings.Replace(all[i], entry.ConfigurationName(g.slot), "slot", 1)
					}
					return all
				}
				if diff := cmp.Diff(tc.reads, reads()); diff != "" {
					t.Errorf("the call reads (-want +got):\n%s", diff)
				}
				if answer := soon(r.call(t.Context(), g.slot, g.number, "web")); answer != "" {
					t.Errorf("the next call is answered %q", answer)
				}
				if diff := cmp.Diff(tc.again, reads()); diff != "" {
					t.Errorf("the next call reads (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// That a SidecarSet is not stored is a verdict about one call.
func TestACallDoesNotRelyOnAVerdictAboutAnEarlierOne(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, number := r.review(selecting("log", "web", "uid-1", 1))
		r.learnSlots()
		if answer := soon(r.call(t.Context(), slot, number, "web")); answer != "" {
			t.Fatalf("while it is not stored: %q", answer)
		}
		r.store(selecting("log", "web", "uid-1", 1))
		done := r.call(t.Context(), slot, number, "web")
		if answer := soon(done); answer != "waits" {
			t.Fatalf("when it is stored: %q", answer)
		}
		r.learn(watch.Added, r.etcd.sets["log"])
		if answer := soon(done); answer != "" || !r.catalog.Current().Has("log") {
			t.Errorf("when the snapshot has it: %q", answer)
		}
	})
}

// A read that began before a call came may show what is not true any more.
func TestACallSharesOnlyReadsThatBeginLater(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, number := r.review(selecting("log", "web", "uid-1", 1))
		r.learnSlots()
		hold := make(chan struct{})
		r.etcd.hold = hold
		first := r.call(t.Context(), slot, number, "web") // its read shows nothing
		r.store(selecting("log", "web", "uid-1", 1))
		var later []<-chan error
		for range 50 {
			later = append(later, r.call(t.Context(), slot, number, "web"))
		}
		r.etcd.hold = nil
		close(hold)
		if answer := soon(first); answer != "" {
			t.Errorf("the first call: %q", answer)
		}
		if reads := r.etcd.reads(); len(reads) != 2 {
			t.Errorf("%d reads for 51 calls, want 2", len(reads))
		}
		for _, done := range later {
			if answer := soon(done); answer != "waits" {
				t.Fatalf("a later call: %q", answer)
			}
		}
		r.learn(watch.Added, r.etcd.sets["log"])
		for _, done := range later {
			if answer := soon(done); answer != "" {
				t.Fatalf("a later call: %q", answer)
			}
		}
	})
}

// The kept number moves up to the newest one, and never back.
func TestCallsUpToTheKeptNumberNeedNoAPIServer(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		set := selecting("log", "web", "uid-1", 1)
		slot, first := r.review(set)
		set.SetGeneration(2)
		_, second := r.review(set)
		r.store(set)
		r.learn(watch.Added, set)
		if answer := soon(r.call(t.Context(), slot, first, "web")); answer != "" {
			t.Fatal(answer)
		}
		r.etcd.err = errors.New("cut off")
		for _, number := range []uint64{first, second, 1} {
			if answer := soon(r.call(t.Context(), slot, number, "web")); answer != "" {
				t.Errorf("number %d: %q", number, answer)
			}
		}
		if answer := soon(r.call(t.Context(), slot, second+1, "web")); !strings.Contains(answer, "cut off") {
			t.Errorf("a newer number: %q", answer)
		}
		ctx, pod := t.Context(), labels.Set{"app": "web"}
		if allocations := testing.AllocsPerRun(100, func() { _ = r.Ensure(ctx, slot, second, pod) }); allocations > 0 {
			t.Errorf("a call up to the kept number allocates %v times", allocations)
		}
	})
}

func TestCallsThatCannotBeKnownFail(t *testing.T) {
	tests := map[string]struct {
		happens func(r *replica, slot int)
		want    string
	}{
		"the slot was reset": {func(r *replica, slot int) {
			c := r.etcd.slots[entry.ConfigurationName(slot)].DeepCopy()
			c.Annotations, c.Webhooks = nil, nil
			r.put(c)
		}, "has serial 0, and the call has"},
		"the slot is deleted": {func(r *replica, slot int) { delete(r.etcd.slots, entry.ConfigurationName(slot)) }, "the object does not exist"},
		"a newer version of the operator has written the slot": {func(r *replica, slot int) {
			c := r.etcd.slots[entry.ConfigurationName(slot)].DeepCopy()
			c.Annotations[entry.AnnotationFormat] = "99"
			r.put(c)
		}, "in a format that this version cannot read"},
		"API servers fail":          {func(r *replica, _ int) { r.etcd.err = errors.New("etcd is away") }, "etcd is away"},
		"API servers do not answer": {func(r *replica, _ int) { r.etcd.hold = make(chan struct{}) }, "context deadline exceeded"},
		"the watch is late":         {func(r *replica, _ int) { r.store(selecting("log", "web", "uid-1", 1)) }, `this replica does not know resourceVersion`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withReplica(t, func(t *testing.T, r *replica) {
				slot, number := r.review(selecting("log", "web", "uid-1", 1))
				tc.happens(r, slot)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := <-r.call(ctx, slot, number, "web"); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %s", err, tc.want)
				}
				<-time.After(time.Minute) // the shared read ends by its own timeout
			})
		})
	}
}

// API servers wait for a second at least, which is shorter than the time after which a watch is
// late.
func TestALateWatchOfSidecarSetsBeginsAnew(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		<-time.After(time.Minute)
		slot, number := r.review(selecting("log", "web", "uid-1", 1))
		r.store(selecting("log", "web", "uid-1", 1))
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := <-r.call(ctx, slot, number, "web"); err == nil {
				t.Error("a call is answered")
			}
			cancel()
		}
		<-time.After(snapshot.WatchLate)
		if begun := r.kinds[setKind].begun(); begun < 2 || begun > 20/2+2 {
			t.Errorf("%d watches began while one was late for 20 s", begun)
		}
		if begun := r.kinds[slotKind].begun(); begun != 1 {
			t.Errorf("%d watches of slots began", begun)
		}
	})
}

func TestARestoredSidecarSetEndsTheProcess(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		log := selecting("log", "web", "uid-1", 1)
		r.store(log)
		before := log.DeepCopy()
		log.SetGeneration(2)
		r.store(log)
		r.learn(watch.Added, log)
		<-time.After(time.Second)
		if err := r.Know(t.Context(), []string{"log"}); err != nil {
			t.Fatal(err)
		}
		r.etcd.sets["log"] = before
		err := r.Know(t.Context(), []string{"log"})
		if err == nil || !strings.Contains(err.Error(), "restored from a backup: SidecarSet log is of resourceVersion") {
			t.Errorf("got %v", err)
		}
		if ended := r.health.Run(t.Context(), r.etcd); ended == nil {
			t.Error("the process goes on")
		}
	})
}

// The validating webhook compares a SidecarSet with all others.
func TestCatchUpWaitsForAllThatIsStored(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		names := []string{"a", "b", "c"}
		for _, name := range names {
			r.store(selecting(name, name, "uid-1", 1))
		}
		done := make(chan error, 1)
		go func() { done <- r.CatchUp(t.Context()) }()
		for _, name := range names {
			if answer := soon(done); answer != "waits" {
				t.Fatalf("before the snapshot has %s: %q", name, answer)
			}
			r.learn(watch.Added, r.etcd.sets[name])
		}
		if answer := soon(done); answer != "" {
			t.Error(answer)
		}
		if reads := r.etcd.reads(); !slices.Equal(reads, []string{"all"}) {
			t.Errorf("it reads %v", reads)
		}
		r.etcd.err = errors.New("etcd is away")
		if err := r.CatchUp(t.Context()); err == nil || !strings.Contains(err.Error(), "asking for the newest SidecarSets, try again: etcd is away") {
			t.Errorf("got %v", err)
		}
	})
}
