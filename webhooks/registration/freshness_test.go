package registration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// call makes a call for a Pod with the label app=web, in the background.
func (r *replica) call(ctx context.Context, shard int, number uint64) <-chan error {
	done := make(chan error, 1)
	go func() { done <- r.Ensure(ctx, shard, number, labels.Set{"app": "web"}) }()
	synctest.Wait()
	return done
}

// answerOf returns the answer to a call; "waits" if there is none yet, and "" for success.
func answerOf(done <-chan error) string {
	<-time.After(100 * time.Millisecond) // the pause of the Store
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

// One call for a Pod of SidecarSet log, whose generation 2 is required in shard.
func TestACallReadsWhatItRequires(t *testing.T) {
	type given struct {
		*replica
		shard  int
		number uint64
	}
	// The SidecarSet is reviewed, and maybe stored and delivered.
	reviewed := func(g *given) { g.shard, g.number = g.review(logSet("uid-1", 2)) }
	stored := func(g *given) { reviewed(g); g.putSet(logSet("uid-1", 2)) }
	learned := func(g *given) { stored(g); g.learn() }
	tests := map[string]struct {
		before func(g *given)
		reads  string // of the first call; the SidecarSet is log and the shard is shard
		waits  bool   // until the snapshot has log as it is stored
		again  string // of the second call, which is the same
	}{
		"the snapshot holds it":                                  {func(g *given) { learned(g); g.learnShards() }, "", false, ""},
		"the snapshot holds it, and the watch of shards is late": {learned, "shard", false, ""},
		"it is stored, and both watches are late":                {stored, "log shard", true, ""},
		"the generation before is stored": {func(g *given) {
			g.putSet(logSet("uid-1", 1))
			g.learn()
			reviewed(g)
		}, "log shard", false, "log"},
		"it is not stored yet": {func(g *given) { reviewed(g); g.learnShards() }, "log", false, "log"},
		"it was created anew": {func(g *given) {
			reviewed(g)
			g.learnShards()
			g.putSet(logSet("uid-2", 1))
		}, "log", true, "log"},
		"it was stored and is gone": {func(g *given) {
			learned(g)
			g.learnShards()
			g.hear(watch.Deleted, g.cluster.stored["log"])
			delete(g.cluster.stored, "log")
		}, "", false, ""},
		"another webhook of the shard requires what is not stored": {func(g *given) {
			learned(g)
			g.shard, g.number = g.review(besides(g.t, logSet("uid-1", 2)))
			g.learnShards()
		}, "", false, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withReplica(t, func(t *testing.T, r *replica) {
				g := &given{replica: r}
				tc.before(g)
				<-time.After(time.Second) // the snapshot is up to date with its watch
				done := r.call(t.Context(), g.shard, g.number)
				answer := answerOf(done)
				if tc.waits {
					if answer != "waits" {
						t.Fatalf("before the snapshot has it: %q", answer)
					}
					r.learn()
					answer = answerOf(done)
				}
				reads := func() string { return strings.Replace(r.reads(), podwebhook.ConfigurationName(g.shard), "shard", 1) }
				if got := reads(); answer != "" || got != tc.reads {
					t.Fatalf("the call is answered %q after it has read %q, want %q", answer, got, tc.reads)
				}
				answer = answerOf(r.call(t.Context(), g.shard, g.number))
				if got := reads(); answer != "" || got != tc.again {
					t.Errorf("the next call is answered %q after it has read %q, want %q", answer, got, tc.again)
				}
			})
		})
	}
}

func TestCallsThatCannotBeKnownFail(t *testing.T) {
	tests := map[string]struct {
		happens func(r *replica, shard int)
		want    string
	}{
		"the shard was reset": {func(r *replica, shard int) {
			c := r.stands(shard)
			c.Annotations, c.Webhooks = nil, nil
			r.changeUnseen(c)
		}, "has serial 0, and the call has"},
		"the shard is deleted": {func(r *replica, shard int) { delete(r.configurations, podwebhook.ConfigurationName(shard)) }, "the object does not exist"},
		"a newer version of the operator has written the shard": {func(r *replica, shard int) {
			c := r.stands(shard)
			c.Annotations[podwebhook.AnnotationFormat] = "99"
			r.changeUnseen(c)
		}, "in a format that this version cannot read"},
		"API servers fail":          {func(r *replica, _ int) { r.err = errors.New("etcd is away") }, "etcd is away"},
		"API servers do not answer": {func(r *replica, _ int) { r.hold = make(chan struct{}) }, "context deadline exceeded"},
		"the watch is late":         {func(r *replica, _ int) { r.putSet(logSet("uid-1", 1)) }, `this replica does not know resourceVersion`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			withReplica(t, func(t *testing.T, r *replica) {
				shard, number := r.review(logSet("uid-1", 1))
				tc.happens(r, shard)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := <-r.call(ctx, shard, number); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %s", err, tc.want)
				}
				<-time.After(time.Minute) // the shared read ends by its own timeout
			})
		})
	}
}
