package events_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/events"
)

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	limit = events.Limits{Settle: time.Second, Again: 10 * time.Second, Between: 100 * time.Millisecond, Waiting: 3}
)

func about(name string) events.SidecarSet {
	return events.SidecarSet{Name: name, UID: types.UID("uid-" + name)}
}

// added is an Event about a SidecarSet, at a time after start.
type added struct {
	at     time.Duration
	name   string
	reason string
}

// written runs a Queue on these Events, which come in the order of their times, and
// returns what it lets through by a minute after start, as "<time> <name> <reason>".
func written(t *testing.T, limits events.Limits, list []added) []string {
	t.Helper()
	q := events.NewQueue(limits)
	got := []string{}
	for at := time.Duration(0); at <= time.Minute; at += 50 * time.Millisecond {
		for ; len(list) > 0 && list[0].at <= at; list = list[1:] {
			q.Add(events.NotInForce(about(list[0].name), list[0].reason, "why"), start.Add(at))
		}
		for {
			e, wait, ok := q.Next(start.Add(at))
			if !ok {
				if wait < 0 {
					t.Fatalf("wait = %v", wait)
				}
				break
			}
			got = append(got, fmt.Sprint(at, " ", e.About.Name, " ", e.Reason))
		}
	}
	return got
}

func TestQueue(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	tests := map[string]struct {
		list []added
		want []string
	}{
		"an Event is written when the state has lasted":     {[]added{{0, "a", "X"}}, []string{"1s a X"}},
		"a state that does not last is not reported":        {[]added{{0, "a", "X"}, {500 * ms, "a", "Y"}}, []string{"1s a Y"}},
		"a state that keeps changing is reported too":       {[]added{{0, "a", "X"}, {900 * ms, "a", "Y"}, {1100 * ms, "a", "Z"}}, []string{"1s a Y", "11s a Z"}},
		"the next state waits":                              {[]added{{0, "a", "X"}, {2 * s, "a", "Y"}}, []string{"1s a X", "11s a Y"}},
		"a state that is left for a moment makes one Event": {[]added{{0, "a", "X"}, {3 * s, "a", "Y"}, {5 * s, "a", "X"}}, []string{"1s a X"}},
		"what is repeated is reported once":                 {[]added{{0, "a", "X"}, {3 * s, "a", "X"}, {10 * s, "a", "X"}}, []string{"1s a X"}},
		"what comes again later is reported again":          {[]added{{0, "a", "X"}, {20 * s, "a", "X"}}, []string{"1s a X", "21s a X"}},
		"SidecarSets do not delay each other for long":      {[]added{{0, "a", "X"}, {0, "b", "X"}, {0, "c", "X"}}, []string{"1s a X", "1.1s b X", "1.2s c X"}},
		"more than may wait are dropped":                    {[]added{{0, "a", "X"}, {0, "b", "X"}, {0, "c", "X"}, {0, "d", "X"}}, []string{"1s a X", "1.1s b X", "1.2s c X"}},
		"one that waits long delays no other":               {[]added{{0, "a", "X"}, {2 * s, "a", "Y"}, {3 * s, "b", "X"}}, []string{"1s a X", "4s b X", "11s a Y"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, written(t, limit, tc.list)); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEventsOfOtherActionsOrObjectsAreNoRepeats(t *testing.T) {
	q := events.NewQueue(limit)
	again := events.SidecarSet{Name: "a", UID: "another"}
	for _, e := range []events.Event{
		events.RevisionNotRecorded(about("a"), errors.New("quota")), events.InForce(again, "InForce", ""), events.ContainerReset(about("a"), events.Pod{Name: "p"}),
	} {
		if !q.Add(e, start) {
			t.Errorf("%+v is dropped", e)
		}
	}
	for i := range 3 {
		if _, _, ok := q.Next(start.Add(time.Minute + time.Duration(i)*time.Second)); !ok {
			t.Errorf("only %d Events are written", i)
		}
	}
	if _, wait, ok := q.Next(start.Add(time.Hour)); ok || wait != 0 {
		t.Errorf("an empty queue has an Event (%v), or says when (%v)", ok, wait)
	}
}

// Whatever reviews cause, a process writes 20 Events at once, then 12 a minute, and keeps 100.
func TestReviewsCauseFewEvents(t *testing.T) {
	var flood []added
	for at := time.Duration(0); at <= time.Minute; at += 50 * time.Millisecond {
		for i := range 200 {
			flood = append(flood, added{at, fmt.Sprint("set-", i), fmt.Sprint("Reason", at%3)})
		}
	}
	if got := written(t, events.ReviewLimits, flood); len(got) == 0 || len(got) > 32 {
		t.Errorf("%d Events are written in a minute", len(got))
	}
	q, kept := events.NewQueue(events.ReviewLimits), 0
	for i := range 1000 {
		if q.Add(events.NotInForce(about(fmt.Sprint("set-", i)), "X", ""), start) {
			kept++
		}
	}
	if kept != 100 {
		t.Errorf("%d Events are kept, want 100", kept)
	}
}

func TestFiveHundredSidecarSetsAreToldWithinAMinute(t *testing.T) {
	var all []added
	for i := range 500 {
		all = append(all, added{0, fmt.Sprint("set-", i), "InForce"})
	}
	if got := written(t, events.StateLimits, all); len(got) != 500 {
		t.Errorf("%d Events are written in a minute, want 500", len(got))
	}
}

// A failure that repeats makes one Event. Each write of a Pod makes an Event of its own.
func TestARepeatedPodFailureMakesOneEvent(t *testing.T) {
	q, first := events.NewQueue(events.PodLimits), events.Pod{Namespace: "a", Name: "p"}
	second := first
	second.Version = "8"
	for i, tc := range []struct {
		event events.Event
		told  bool
	}{
		{events.ContainerNotReset(about("a"), first, errors.New("no")), true},
		{events.ContainerNotReset(about("a"), first, errors.New("still no")), false},
		{events.ContainerReset(about("a"), second), true},
		{events.ContainerNotReset(about("a"), first, errors.New("no again")), false},
	} {
		now := start.Add(time.Duration(i) * time.Minute)
		if added := q.Add(tc.event, now); added != tc.told {
			t.Errorf("%d: added: %t", i, added)
		}
		q.Next(now)
	}
}
