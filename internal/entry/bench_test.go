package entry_test

import (
	"fmt"
	"testing"

	"github.com/sidecarset/operator/internal/entry"
)

// crowded is a slot with as many entries as a slot may have, of 500 SidecarSets.
func crowded(t testing.TB) (*entry.Slot, []entry.Entry) {
	t.Helper()
	apps := appsOf(t, 0, entry.MaxEntries)
	var entries []entry.Entry
	for i := range 500 {
		entries = append(entries, entryOf(t, sidecarSet(fmt.Sprintf("team-%03d-logging", i), apps[i%len(apps)])))
	}
	return holding(t, entries...), entry.Combine(entries)[0]
}

// A pass of the leader reconciles 16 slots. Most need no write.
func BenchmarkReconcile(b *testing.B) {
	slot, wanted := crowded(b)
	for name, anew := range map[string]bool{"nothing to write": false, "anew": true} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p := slot.Reconcile(wanted, nil, keep, anew, settings()); (p.Next != nil) != anew {
					b.Fatalf("Next = %v", p.Next)
				}
			}
		})
	}
}

func BenchmarkReview(b *testing.B) {
	slot, wanted := crowded(b)
	e := wanted[50]
	e.Needs = []entry.Need{e.Needs[0]}
	e.Needs[0].Generation++
	b.ReportAllocs()
	for b.Loop() {
		if next, refused := slot.Review([]entry.Entry{e}, all, 0, settings()); next == nil {
			b.Fatal(refused)
		}
	}
}
