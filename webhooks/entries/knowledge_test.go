package entries

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sidecarset/operator/internal/entry"
)

// call makes a call for a Pod with the label app=web, in the background.
func (r *replica) call(ctx context.Context, slot int, number uint64) <-chan error {
	done := make(chan error, 1)
	go func() { done <- r.Ensure(ctx, slot, number, labels.Set{"app": "web"}) }()
	synctest.Wait()
	return done
}

// answerOf returns the answer to a call; "waits" if there is none yet, and "" for success.
func answerOf(done <-chan error) string {
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
	type given struct {
		*replica
		slot   int
		number uint64
	}
	// The SidecarSet is reviewed, and maybe stored and delivered.
	reviewed := func(g *given) { g.slot, g.number = g.review(logSet("uid-1", 2)) }
	stored := func(g *given) { reviewed(g); g.store(logSet("uid-1", 2)) }
	learned := func(g *given) { stored(g); g.learn() }
	tests := map[string]struct {
		before func(g *given)
		reads  string // of the first call; the SidecarSet is log and the slot is slot
		waits  bool   // until the snapshot has log as it is stored
		again  string // of the second call, which is the same
	}{
		"the snapshot holds it":                                 {func(g *given) { learned(g); g.learnSlots() }, "", false, ""},
		"the snapshot holds it, and the watch of slots is late": {learned, "slot", false, ""},
		"it is stored, and both watches are late":               {stored, "log slot", true, ""},
		"the generation before is stored": {func(g *given) {
			g.store(logSet("uid-1", 1))
			g.learn()
			reviewed(g)
		}, "log slot", false, "log"},
		"it is not stored yet": {func(g *given) { reviewed(g); g.learnSlots() }, "log", false, "log"},
		"it was created anew": {func(g *given) {
			reviewed(g)
			g.learnSlots()
			g.store(logSet("uid-2", 1))
		}, "log", true, "log"},
		"it was stored and is gone": {func(g *given) {
			learned(g)
			g.learnSlots()
			g.hear(watch.Deleted, g.cluster.stored["log"])
			delete(g.cluster.stored, "log")
		}, "", false, ""},
		"another entry of the slot requires what is not stored": {func(g *given) {
			learned(g)
			g.slot, g.number = g.review(besides(g.t, logSet("uid-1", 2)))
			g.learnSlots()
		}, "", false, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withReplica(t, func(t *testing.T, r *replica) {
				g := &given{replica: r}
				tc.before(g)
				<-time.After(time.Second) // the snapshot is up to date with its watch
				done := r.call(t.Context(), g.slot, g.number)
				answer := answerOf(done)
				if tc.waits {
					if answer != "waits" {
						t.Fatalf("before the snapshot has it: %q", answer)
					}
					r.learn()
					answer = answerOf(done)
				}
				reads := func() string { return strings.Replace(r.reads(), entry.ConfigurationName(g.slot), "slot", 1) }
				if got := reads(); answer != "" || got != tc.reads {
					t.Fatalf("the call is answered %q after it has read %q, want %q", answer, got, tc.reads)
				}
				answer = answerOf(r.call(t.Context(), g.slot, g.number))
				if got := reads(); answer != "" || got != tc.again {
					t.Errorf("the next call is answered %q after it has read %q, want %q", answer, got, tc.again)
				}
			})
		})
	}
}

// A read that began before a call came may show what is not true any more. And that a SidecarSet
// is not stored is a verdict about one call.
func TestACallSharesOnlyReadsThatBeginLater(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, number := r.review(logSet("uid-1", 1))
		r.learnSlots()
		hold := make(chan struct{})
		r.hold = hold
		first := r.call(t.Context(), slot, number) // its read shows nothing
		r.store(logSet("uid-1", 1))
		var later []<-chan error
		for range 50 {
			later = append(later, r.call(t.Context(), slot, number))
		}
		r.hold = nil
		close(hold)
		if answer := answerOf(first); answer != "" {
			t.Errorf("the first call: %q", answer)
		}
		later = append(later, r.call(t.Context(), slot, number))
		if reads := r.reads(); reads != "log log log" {
			t.Errorf("51 calls and one after them read %q", reads)
		}
		for _, done := range later {
			if answer := answerOf(done); answer != "waits" {
				t.Fatalf("a later call: %q", answer)
			}
		}
		r.learn()
		for _, done := range later {
			if answer := answerOf(done); answer != "" {
				t.Fatalf("a later call: %q", answer)
			}
		}
	})
}

// The kept number moves up to the newest one, and never back.
func TestCallsUpToTheKeptNumberNeedNoAPIServer(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, first := r.review(logSet("uid-1", 1))
		_, second := r.review(logSet("uid-1", 2))
		r.store(logSet("uid-1", 2))
		r.learn()
		if answer := answerOf(r.call(t.Context(), slot, first)); answer != "" {
			t.Fatal(answer)
		}
		r.err = errors.New("cut off")
		for _, number := range []uint64{first, second, 1} {
			if answer := answerOf(r.call(t.Context(), slot, number)); answer != "" {
				t.Errorf("number %d: %q", number, answer)
			}
		}
		if answer := answerOf(r.call(t.Context(), slot, second+1)); !strings.Contains(answer, "cut off") {
			t.Errorf("a newer number: %q", answer)
		}

		// A number is kept if the needs of all entries of the slot are held, not those of one Pod only.
		r.err = nil
		other := besides(t, logSet("uid-1", 2))
		_, third := r.review(other)
		if answer := answerOf(r.call(t.Context(), slot, third)); answer != "" {
			t.Errorf("a need of another entry is not held: %q", answer)
		}
		r.err = errors.New("cut off")
		if err := r.Ensure(t.Context(), slot, third, labels.Set(other.Spec.Selector.MatchLabels)); err == nil {
			t.Error("that entry's Pod is answered")
		}
	})
}

func TestCallsThatCannotBeKnownFail(t *testing.T) {
	tests := map[string]struct {
		happens func(r *replica, slot int)
		want    string
	}{
		"the slot was reset": {func(r *replica, slot int) {
			c := r.stands(slot)
			c.Annotations, c.Webhooks = nil, nil
			r.changeUnseen(c)
		}, "has serial 0, and the call has"},
		"the slot is deleted": {func(r *replica, slot int) { delete(r.configurations, entry.ConfigurationName(slot)) }, "the object does not exist"},
		"a newer version of the operator has written the slot": {func(r *replica, slot int) {
			c := r.stands(slot)
			c.Annotations[entry.AnnotationFormat] = "99"
			r.changeUnseen(c)
		}, "in a format that this version cannot read"},
		"API servers fail":          {func(r *replica, _ int) { r.err = errors.New("etcd is away") }, "etcd is away"},
		"API servers do not answer": {func(r *replica, _ int) { r.hold = make(chan struct{}) }, "context deadline exceeded"},
		"the watch is late":         {func(r *replica, _ int) { r.store(logSet("uid-1", 1)) }, `this replica does not know resourceVersion`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withReplica(t, func(t *testing.T, r *replica) {
				slot, number := r.review(logSet("uid-1", 1))
				tc.happens(r, slot)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := <-r.call(ctx, slot, number); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %s", err, tc.want)
				}
				<-time.After(time.Minute) // the shared read ends by its own timeout
			})
		})
	}
}

func TestARestoredSidecarSetEndsTheProcess(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		before := logSet("uid-1", 1)
		r.store(before)
		r.store(logSet("uid-1", 2))
		r.learn()
		<-time.After(time.Second)
		r.cluster.stored["log"] = before
		err := r.Know(t.Context(), []string{"log"})
		if err == nil || !strings.Contains(err.Error(), "restored from a backup: SidecarSet log is of resourceVersion") {
			t.Fatalf("got %v", err)
		}
		if ended := r.health.Run(t.Context(), r); ended == nil {
			t.Error("the process goes on")
		}
	})
}
