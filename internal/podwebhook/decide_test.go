package podwebhook_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/podwebhook"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func TestJudge(t *testing.T) {
	t.Parallel()
	const here, there = "here.pods.sidecarset.io", "there.pods.sidecarset.io"
	dependency := podwebhook.Dependency{Name: "log", UID: "u1", Generation: 2}
	is := func(uid string, generation int64, webhookName string) podwebhook.Fact {
		return podwebhook.Fact{Stored: true, UID: uid, Generation: generation, Webhook: webhookName, Shard: 3}
	}
	elsewhere := is("u1", 2, here)
	elsewhere.Shard = 4
	var nothing podwebhook.Fact
	keeps, drops := podwebhook.Decision{}, podwebhook.Decision{Drop: true}
	tests := map[string]struct {
		fact              podwebhook.Fact
		after             time.Duration // the read began so long after the last review was seen
		wasStored, in, to bool          // seen stored before the read; selectors in use; moved to a propagated webhook
		want              podwebhook.Decision
	}{
		"(a) it has moved to a propagated one":             {fact: is("u1", 2, there), to: true, want: drops},
		"(a) it has moved, and that one is not propagated": {fact: is("u1", 2, there), after: time.Hour, in: true, want: keeps},
		"(a) another shard has its webhook now":            {fact: elsewhere, in: true, to: true, want: drops},
		"(a) another shard should have it":                 {fact: elsewhere, after: time.Hour, in: true, want: keeps},
		"(a) its selectors can have no webhook":            {fact: is("u1", 2, ""), want: drops},
		"(a) it is stored here":                            {fact: is("u1", 2, here), after: time.Hour, wasStored: true, in: true, to: true, want: keeps},
		"(a) an older generation has other selectors":      {fact: is("u1", 1, there), wasStored: true, in: true, to: true, want: keeps},
		"(b) it was stored and is gone":                    {fact: nothing, wasStored: true, in: true, want: drops},
		"(b) it was stored, and another UID is":            {fact: is("u2", 1, here), wasStored: true, in: true, want: drops},
		"(b) another UID is, and this one may be coming":   {fact: is("u2", 7, there), in: true, to: true, want: keeps},
		"(b) it was seen stored only after the read":       {fact: nothing, after: time.Second, in: true, want: keeps},
		"(c) it is not stored, in time":                    {fact: nothing, after: 90*time.Second - 1, in: true, want: keeps},
		"(c) it is not stored, too late":                   {fact: nothing, after: 90 * time.Second, in: true, want: drops},
		"(c) new selectors, in time":                       {fact: nothing, after: 2*time.Second - 1, want: keeps},
		"(c) new selectors, too late":                      {fact: nothing, after: 2 * time.Second, want: drops},
		"(c) an update was refused: it is lowered":         {fact: is("u1", 1, here), after: 90 * time.Second, in: true, want: podwebhook.Decision{Lower: 1}},
		"(c) a move was refused: it is lowered, then (a)":  {fact: is("u1", 1, there), after: 2 * time.Second, to: true, want: podwebhook.Decision{Lower: 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.fact.Began = noon.Add(tc.after)
			c := podwebhook.Case{Shard: 3, Webhook: here, Dependency: dependency, Fact: tc.fact, WasStored: tc.wasStored, First: noon, InUse: tc.in, Moved: tc.to}
			if got := c.Decide(); got != tc.want {
				t.Errorf("decision %+v, want %+v", got, tc.want)
			}
			if c.First = (time.Time{}); c.Decide().Lower > 0 || c.Decide().Drop && tc.after > 0 {
				t.Errorf("decision %+v for a review that the leader has not seen", c.Decide())
			}
		})
	}
}

// A retry does not inherit the timer of its predecessor.
func TestEachReviewBeginsTheTimerAnew(t *testing.T) {
	t.Parallel()
	e := podWebhook(t, sidecarSet("log", "web"))
	seen, shards := podwebhook.Reviews{}, [podwebhook.Shards]*podwebhook.Shard{}
	at := func(after time.Duration, next *configuration, want time.Duration) {
		t.Helper()
		shards[e.Shard(ours)] = stored(t, next)
		seen.Observe(&shards, noon.Add(after))
		if got := seen.First(e.Name, e.Dependencies[0]).Sub(noon); got != want {
			t.Errorf("after %v it is remembered for %v, want %v", after, got, want)
		}
	}
	review := func() *configuration {
		s := shards[e.Shard(ours)]
		if s == nil {
			s = bare(t, e.Shard(ours))
		}
		next, _ := s.Review([]podwebhook.Webhook{e}, none, 0, settings())
		return next
	}
	at(0, review(), 0)
	at(time.Second, shards[e.Shard(ours)].Reconcile(nil, nil, true, settings()).Next, 0)
	at(89*time.Second, review(), 89*time.Second)
}

// A leader whose snapshot is behind does not know that the selectors are in use. A read shows it: of the
// SidecarSet itself, in an older generation, or of another one of the webhook.
func TestReadsShowThatAnWebhookIsInUse(t *testing.T) {
	t.Parallel()
	e, other := podWebhook(t, sidecarSet("log", "web")), podWebhook(t, sidecarSet("other", "web"))
	next := e.Dependencies[0]
	next.Generation++
	s := bare(t, e.Shard(ours))
	for _, n := range []podwebhook.Dependency{next, other.Dependencies[0]} {
		e.Dependencies = []podwebhook.Dependency{n}
		written, _ := s.Review([]podwebhook.Webhook{e}, none, 0, settings())
		s = stored(t, written)
	}
	shards, seen := [podwebhook.Shards]*podwebhook.Shard{}, podwebhook.Reviews{}
	shards[s.Index] = s
	seen.Observe(&shards, noon)
	later := noon.Add(podwebhook.StoredSoon)
	doubts := s.Doubts(nil, podwebhook.Known{
		InUse:      func(string) bool { return false },
		Generation: func(podwebhook.Dependency) (int64, bool) { return 0, false }, Seen: func(podwebhook.Dependency) bool { return false }, Reviews: seen, Now: later,
	})
	never := func(podwebhook.Fact, podwebhook.Dependency) bool { return false }
	at := slices.IndexFunc(doubts, func(d podwebhook.Doubt) bool { return d.Dependency.Is(next) })
	if len(doubts) != 2 || at < 0 || !doubts[at].Due || doubts[at].InUse || !slices.Equal(doubts[at].Others, []string{"other"}) {
		t.Fatalf("the doubts are %+v", doubts)
	}
	none := podwebhook.Fact{Began: later}
	is := podwebhook.Fact{Stored: true, UID: next.UID, Generation: next.Generation - 1, Webhook: e.Name, Began: later}
	also := podwebhook.Fact{Stored: true, UID: "another", Generation: 1, Webhook: e.Name, Began: later}
	for name, tc := range map[string]struct {
		facts map[string]podwebhook.Fact
		want  podwebhook.Decision
	}{
		"nothing is stored":             {map[string]podwebhook.Fact{"log": none, "other": none}, podwebhook.Decision{Drop: true}},
		"it is, in an older generation": {map[string]podwebhook.Fact{"log": is, "other": none}, podwebhook.Decision{}},
		"another one is":                {map[string]podwebhook.Fact{"log": none, "other": also}, podwebhook.Decision{}},
		"another one was not read":      {map[string]podwebhook.Fact{"log": none}, podwebhook.Decision{}},
	} {
		c, read := doubts[at].Case(tc.facts, never)
		if got := c.Decide(); !read || got != tc.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, read := doubts[at].Case(nil, never); read {
		t.Error("nothing was read, and there is a case")
	}
}
