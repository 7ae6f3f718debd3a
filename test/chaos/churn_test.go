package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// Many SidecarSets with selectors of their own are applied, and deleted at once or after a change.
// They leave no entry and no need behind. An API server has a client of its own for each path that
// it calls. So the paths of barriers never change, and a path for Pods is new only where a
// SidecarSet was added or changed.
func TestSidecarSetsThatComeAndGoLeaveNothing(t *testing.T) {
	startReplicas(t, 2, steadyLeases...)
	applySidecarSet(t, newNamespace(t), "first")
	testkit.AwaitReady(t, api, "first") // then there is a leader

	writes, forPods, forBarriers := 0, map[string]bool{}, map[string]bool{}
	watched := testkit.WatchSlots(t, clients[0], func(changed int, slots [entry.Slots]*entry.Slot) {
		writes++
		if slots[changed] == nil {
			return
		}
		for _, webhook := range slots[changed].Object.Webhooks {
			switch path := *webhook.ClientConfig.Service.Path; {
			case strings.HasPrefix(path, entry.PathBarrier):
				forBarriers[path] = true
			default:
				forPods[path] = true
			}
		}
	})
	namespace := newNamespace(t)
	numbers := make([]int, testkit.Scaled(40, 2000))
	for i := range numbers {
		numbers[i] = i
		deleteAfter(t, fmt.Sprintf("gone-%d", i)) // if the test fails
	}
	err := testkit.Each(numbers, 4, func(i int) error {
		name := fmt.Sprintf("gone-%d", i)
		if _, err := create(t.Context(), sets[0], testkit.NewPatientSet(name, namespace)); err != nil {
			return err
		}
		if i%2 == 1 {
			changing, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			if err := await.Until(changing, func(ctx context.Context) error { return changeImage(ctx, name, "example.com/sidecar:v2") }); err != nil {
				return err
			}
		}
		return deleteSet(t.Context(), name)
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitOnly(t, "first")
	watched()
	count := len(numbers)
	changes := count / 2
	testkit.Report(t, "SidecarSets=%d changes=%d writes=%d paths for Pods=%d, for barriers=%d", count, changes, writes, len(forPods), len(forBarriers))
	if len(forBarriers) > entry.Slots {
		t.Errorf("the paths of barriers change: %d of %d slots", len(forBarriers), entry.Slots)
	}
	// An entry may be removed before its SidecarSet is stored, and then be added once more. A lowered
	// need may be raised again.
	if most := 1 + entry.Slots + 2*(count+changes); len(forPods) > most {
		t.Errorf("there were %d paths for Pods, want %d at most", len(forPods), most)
	}
}

// awaitOnly waits until the slots have entries and needs of these SidecarSets and of no others.
func awaitOnly(t *testing.T, sidecarSets ...string) {
	t.Helper()
	expected := map[string]bool{}
	for _, e := range entriesOf(t, sidecarSets...) {
		expected[e.Name] = true
	}
	await.Eventually(t, "no other entries and needs", func(ctx context.Context) error {
		slots, _, err := testkit.Slots(ctx, clients[0])
		if err != nil {
			return err
		}
		for i, slot := range slots {
			object := entry.ConfigurationName(i)
			if slot == nil {
				return fmt.Errorf("%s does not exist", object)
			}
			for name, needs := range slot.Needs {
				if !expected[name] || len(needs) > len(sidecarSets) {
					err = errors.Join(err, fmt.Errorf("%s has the needs %v of entry %s", object, needs, name))
				}
			}
			for _, name := range slot.Entries() {
				if !expected[name] {
					err = errors.Join(err, fmt.Errorf("%s has entry %s", object, name))
				}
			}
			if len(slot.Entries()) == 0 && len(slot.Object.Webhooks) > 1 { // the barrier stays
				err = errors.Join(err, fmt.Errorf("%s has %d webhooks and no entry", object, len(slot.Object.Webhooks)))
			}
		}
		return err
	})
}

// entriesOf returns the entries that stored SidecarSets need.
func entriesOf(t *testing.T, sidecarSets ...string) []entry.Entry {
	t.Helper()
	entries := make([]entry.Entry, len(sidecarSets))
	for i, name := range sidecarSets {
		set, err := testkit.Get(t.Context(), api, name)
		if err == nil {
			entries[i], err = entry.Of(set)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return entries
}
