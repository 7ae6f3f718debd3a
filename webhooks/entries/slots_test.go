package entries

import (
	"errors"
	"strconv"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sidecarset/operator/internal/entry"
)

// knows checks which version of a slot the replica knows; nil is none.
func (r *replica) knows(slot int, when string, c *admissionregistrationv1.MutatingWebhookConfiguration) {
	r.t.Helper()
	known, want := "", ""
	if s := r.Knowledge.slots.At(slot); s != nil {
		known = strconv.FormatUint(s.Version, 10)
	}
	if c != nil {
		want = c.ResourceVersion
	}
	if known != want {
		r.t.Errorf("%s it knows version %q, want %q", when, known, want)
	}
}

func TestSlotsKnowTheNewestVersion(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, _ := r.review(logSet("uid-1", 1))
		first := r.stands(slot)
		r.slots.deliver(watch.Added, first)
		r.knows(slot, "by the watch", first)
		r.review(logSet("uid-1", 2))
		second, told := r.stands(slot), make(chan struct{}, 1)
		r.Knowledge.slots.Notify(told)
		read, err := r.Knowledge.slots.Read(t.Context(), slot)
		if err != nil || read.Object.ResourceVersion != second.ResourceVersion || len(told) != 1 {
			t.Fatalf("read version %v, %v; told %d times", read, err, len(told))
		}
		r.slots.deliver(watch.Modified, first) // the watch is late
		r.knows(slot, "after an older one came by the watch", second)

		// The event of the deletion comes when the next object of the name was read already.
		anew := second.DeepCopy()
		anew.UID = types.UID("another")
		r.changeUnseen(anew)
		_, _ = r.Knowledge.slots.Read(t.Context(), slot)
		r.slots.deliver(watch.Deleted, second)
		r.knows(slot, "when it was made anew", anew)
		r.slots.deliver(watch.Added, anew)
		r.slots.deliver(watch.Deleted, anew)
		r.knows(slot, "when it was deleted", nil)
	})
}

func TestSlotsForgetWhatTheyCannotRead(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, _ := r.review(logSet("uid-1", 1))
		c := r.stands(slot)
		r.slots.deliver(watch.Added, c)
		r.err = errors.New("etcd is away")
		_, err := r.Knowledge.slots.Read(t.Context(), slot)
		if r.knows(slot, "after a read that has failed", c); err == nil {
			t.Error("the read does not say so")
		}
		r.err = nil
		newer := r.stands(slot)
		newer.Annotations[entry.AnnotationFormat] = "99"
		r.changeUnseen(newer)
		r.slots.deliver(watch.Modified, newer)
		if _, err := r.Knowledge.slots.Read(t.Context(), slot); !errors.Is(err, entry.ErrFormat) {
			t.Errorf("of a format that it does not know, it says %v", err)
		}
		r.knows(slot, "of a format that it does not know,", nil)
		r.changeUnseen(c)
		r.slots.deliver(watch.Modified, c)
		r.knows(slot, "when its format is known again,", c)
		delete(r.configurations, c.Name)
		if _, err := r.Knowledge.slots.Read(t.Context(), slot); !errors.Is(err, errNoSlot) {
			t.Errorf("of an object that is gone, it says %v", err)
		}
		r.knows(slot, "when a read shows that it is gone", nil)
	})
}
