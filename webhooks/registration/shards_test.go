package registration

import (
	"errors"
	"strconv"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// knows checks which version of a shard the replica knows; nil is none.
func (r *replica) knows(shard int, when string, c *admissionregistrationv1.MutatingWebhookConfiguration) {
	r.t.Helper()
	known, want := "", ""
	if s := r.Freshness.shards.At(shard); s != nil {
		known = strconv.FormatUint(s.Version, 10)
	}
	if c != nil {
		want = c.ResourceVersion
	}
	if known != want {
		r.t.Errorf("%s it knows version %q, want %q", when, known, want)
	}
}

func TestShardsKnowTheNewestVersion(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		shard, _ := r.review(logSet("uid-1", 1))
		first := r.stands(shard)
		r.shards.deliver(watch.Added, first)
		r.knows(shard, "by the watch", first)
		r.review(logSet("uid-1", 2))
		second, told := r.stands(shard), make(chan struct{}, 1)
		r.Freshness.shards.Notify(told)
		read, err := r.Freshness.shards.Read(t.Context(), shard)
		if err != nil || read.Object.ResourceVersion != second.ResourceVersion || len(told) != 1 {
			t.Fatalf("read version %v, %v; told %d times", read, err, len(told))
		}
		r.shards.deliver(watch.Modified, first) // the watch is late
		r.knows(shard, "after an older one came by the watch", second)

		// The event of the deletion comes when the next object of the name was read already.
		anew := second.DeepCopy()
		anew.UID = types.UID("another")
		r.changeUnseen(anew)
		_, _ = r.Freshness.shards.Read(t.Context(), shard)
		r.shards.deliver(watch.Deleted, second)
		r.knows(shard, "when it was made anew", anew)
		r.shards.deliver(watch.Added, anew)
		r.shards.deliver(watch.Deleted, anew)
		r.knows(shard, "when it was deleted", nil)
		r.shards.deliver(watch.Added, anew)
		delete(r.configurations, anew.Name)
		if _, err := r.Freshness.shards.Read(t.Context(), shard); !errors.Is(err, errNoShard) {
			t.Errorf("of an object that is gone, it says %v", err)
		}
		r.knows(shard, "when a read shows that it is gone", nil)
	})
}
