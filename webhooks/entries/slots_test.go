package entries_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sidecarset/operator/internal/entry"
)

// slotWith returns a slot with the need of a SidecarSet, as it is stored.
func (r *replica) slotWith(name string) (slot int, stored *admissionregistrationv1.MutatingWebhookConfiguration) {
	slot, _ = r.review(selecting(name, "web", "uid-1", 1))
	return slot, r.etcd.slots[entry.ConfigurationName(slot)]
}

// versionAt is the version of a slot that the replica knows; 0 if it knows none.
func (r *replica) versionAt(slot int) int {
	if s := r.slots.At(slot); s != nil {
		return int(s.Version)
	}
	return 0
}

func versionOf(c *admissionregistrationv1.MutatingWebhookConfiguration) int {
	version, _ := strconv.Atoi(c.ResourceVersion)
	return version
}

func TestSlotsKnowTheNewestVersion(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, first := r.slotWith("a")
		r.kinds[slotKind].deliver(watch.Added, first)
		if got := r.versionAt(slot); got != versionOf(first) {
			t.Fatalf("version %d, want %d from the watch", got, versionOf(first))
		}
		_, second := r.slotWith("b")
		told := make(chan struct{}, 1)
		r.slots.Notify(told)
		read, err := r.slots.Read(t.Context(), slot)
		if err != nil || int(read.Version) != versionOf(second) || r.versionAt(slot) != versionOf(second) || len(told) != 1 {
			t.Fatalf("read version %v, %v; known is %d; told %d times", read, err, r.versionAt(slot), len(told))
		}
		r.kinds[slotKind].deliver(watch.Modified, first) // the watch is late
		if got := r.versionAt(slot); got != versionOf(second) {
			t.Errorf("version %d after an older one came by the watch", got)
		}
		all := r.slots.All()
		if all[slot] == nil || all[(slot+1)%entry.Slots] != nil {
			t.Error("All does not have the known slots")
		}
	})
}

func TestSlotsForgetADeletedObject(t *testing.T) {
	tests := map[string]func(t *testing.T, r *replica, slot int){
		"by the watch": func(_ *testing.T, r *replica, slot int) {
			r.kinds[slotKind].deliver(watch.Deleted, r.etcd.slots[entry.ConfigurationName(slot)])
		},
		"by a read": func(t *testing.T, r *replica, slot int) {
			delete(r.etcd.slots, entry.ConfigurationName(slot))
			if _, err := r.slots.Read(t.Context(), slot); err == nil || !strings.Contains(err.Error(), "reading MutatingWebhookConfiguration "+entry.ConfigurationName(slot)+": the object does not exist") {
				t.Errorf("the read returns %v", err)
			}
		},
	}
	for name, happens := range tests {
		t.Run(name, func(t *testing.T) {
			withReplica(t, func(t *testing.T, r *replica) {
				slot, c := r.slotWith("a")
				r.kinds[slotKind].deliver(watch.Added, c)
				happens(t, r, slot)
				if r.versionAt(slot) != 0 {
					t.Error("it is known")
				}
			})
		})
	}
}

// The event of the deletion comes when the next object of the name was read already.
func TestSlotsKeepAnObjectThatWasMadeAnew(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, first := r.slotWith("a")
		r.kinds[slotKind].deliver(watch.Added, first)
		anew := first.DeepCopy()
		anew.UID = types.UID("another")
		r.put(anew)
		if _, err := r.slots.Read(t.Context(), slot); err != nil {
			t.Fatal(err)
		}
		r.kinds[slotKind].deliver(watch.Deleted, first)
		if got := r.versionAt(slot); got != versionOf(anew) {
			t.Errorf("version %d, want %d", got, versionOf(anew))
		}
	})
}

func TestSlotsSayWhyTheyCannotRead(t *testing.T) {
	withReplica(t, func(t *testing.T, r *replica) {
		slot, c := r.slotWith("a")
		r.kinds[slotKind].deliver(watch.Added, c)
		newer := c.DeepCopy()
		newer.Annotations[entry.AnnotationFormat] = "99"
		r.put(newer)
		r.kinds[slotKind].deliver(watch.Modified, newer)
		_, err := r.slots.Read(t.Context(), slot)
		if r.versionAt(slot) != 0 || !errors.Is(err, entry.ErrFormat) {
			t.Errorf("version %d is known, and it cannot be read because of %v", r.versionAt(slot), err)
		}
		older := c.DeepCopy()
		r.put(older)
		r.kinds[slotKind].deliver(watch.Modified, older)
		if r.versionAt(slot) != versionOf(older) {
			t.Error("it cannot be read any more, though its format is known again")
		}
		r.etcd.err = errors.New("etcd is away")
		if _, err := r.slots.Read(t.Context(), slot); err == nil || r.versionAt(slot) == 0 {
			t.Errorf("a read that fails returns %v, and leaves version %d", err, r.versionAt(slot))
		}
	})
}
