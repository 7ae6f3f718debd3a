package rollout

import (
	"time"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Rollout has the Pods of one SidecarSet, and what a leader remembers of its rollout. It belongs
// to one goroutine. Adding, changing and removing a Pod takes constant time; Next and Report look
// at all Pods.
type Rollout struct {
	strategy *Strategy
	content  string
	ticket   uint64 // counts Takes

	entries []*entry // by ID; nil where no Pod is
	vacant  []ID
	traits  map[podstate.LabelSet]*traits
	crews   map[podstate.Name]*crew
	places  []place
	busy    bool // the last look found Pods to be moved, or watched

	began int64 // when this leader first looked, in seconds; 0: not yet
	begun bool  // nothing has moved since
	moved int64 // 0: at the next look
	// failing is since when every Pod that counts has failed; 0: at least one may come back.
	failing int64
	before  int // Pods that were not Ready when the rollout of the content began; -1: not counted yet

	refusals
	recreation
}

// entry is one Pod. Most Pods share their state, and have no work, because nothing happens to
// them.
type entry struct {
	Record *podstate.Record
	crew   *crew
	traits *traits
	*state
	id    ID
	ready bool // it has been Ready
}

// state is what a rollout has to know of a Pod that is outdated, or was written.
type state struct {
	facts
	*work
	// seen is since when the leader has seen the Pod back from its last write, without a break; 0:
	// it is not.
	seen  int64
	back  uint32 // Written.At of the last write that it came back from
	wrote bool   // this leader wrote it with the current content
}

// work is what becomes of a Pod that is outdated.
type work struct {
	plan
	hand    hand
	charged bool   // of the last Take
	evicts  bool   // of the last Take
	ticket  uint64 // of the last Take
	version uint64 // of the last write
	hold    *hold
	stuck   inplace.Reason // why only a new Pod can have the content, although the record does not show it
}

var (
	idle  = &work{}
	still = &state{facts: facts{Way: inplace.Current, Carries: true}, work: idle}
)

// assign sets what is known of the Pod.
func (e *entry) assign(p *Pod) {
	e.Record = p.Record
	busy := e.hand != free || e.hold != nil || e.stuck != ""
	works := busy || p.Way != inplace.Current || p.Uninjected
	if !works && !e.wrote && p.facts() == still.facts {
		e.state = still
		return
	}
	if e.state == still {
		e.state = &state{work: idle}
	}
	e.facts = p.facts()
	switch {
	case !works:
		e.work = idle
	case e.work == idle:
		e.work = &work{plan: p.plan()}
	default:
		e.plan = p.plan()
	}
}

// hand is where a Pod is between a Take and the event that shows the result.
type hand uint8

const (
	free    hand = iota
	taken        // returned by Next
	written      // and not yet delivered by the watch
	leaving      // evicted, and not yet deleted
)

// hold keeps a Pod from being taken.
type hold struct {
	reason  inplace.Reason
	message string
	until   int64
	tries   int
}

// New returns a Rollout without Pods. It takes none before SetStrategy.
func New() *Rollout {
	return &Rollout{
		strategy: &Strategy{off: NotUpdate}, traits: map[podstate.LabelSet]*traits{}, crews: map[podstate.Name]*crew{},
		before: -1, begun: true, refusals: refusals{window: fullWindow},
	}
}

// SetStrategy sets the Strategy.
func (r *Rollout) SetStrategy(s *Strategy) {
	old := r.strategy
	r.strategy = s
	if old.stops() != s.stops() {
		r.moved = 0
	}
	if old.looksLike(s) {
		return
	}
	clear(r.traits)
	for _, e := range r.entries {
		if e != nil {
			e.traits = r.traitsOf(e.Record.Labels)
		}
	}
}

// SetContent sets the current content, by any text that differs between contents. If it changes,
// all Pods may be taken again. before is how many Pods were not Ready when its rollout began, nil
// if that is to be counted now. The caller also calls Set for the Pods whose Way has changed.
func (r *Rollout) SetContent(content string, before *int) {
	if content != r.content {
		r.content = content
		r.moved, r.before = 0, -1
		r.refusals = refusals{window: fullWindow}
		r.recreation = recreation{asked: r.asked}
		for _, e := range r.entries {
			if e != nil && e.state != still {
				e.seen, e.wrote = 0, false
			}
			if e != nil && e.work != idle {
				e.hold, e.stuck = nil, ""
			}
		}
	}
	if before != nil && *before >= 0 {
		r.before = *before
	}
}

// Add adds a Pod.
func (r *Rollout) Add(p Pod) ID {
	e := &entry{ready: p.Record.Ready, crew: r.crewOf(p.Record), traits: r.traitsOf(p.Record.Labels), state: still}
	e.assign(&p)
	e.crew.pods++
	if last := len(r.vacant) - 1; last >= 0 {
		id := r.vacant[last]
		r.vacant, r.entries[id], e.id = r.vacant[:last], e, id
		return id
	}
	e.id = ID(len(r.entries))
	r.entries = append(r.entries, e)
	return e.id
}

// Set changes a Pod at a time. It reports whether anything has changed that matters to a rollout.
func (r *Rollout) Set(id ID, p Pod, now time.Time) bool {
	e := r.entries[id]
	record, was, before := e.Record, e.facts, e.plan
	e.assign(&p)
	if e.facts == was && e.plan == before && alike(record, p.Record) {
		return false
	}
	if p.Record.Labels != record.Labels {
		r.leave(record.Labels)
		e.traits = r.traitsOf(p.Record.Labels)
	}
	if p.Record.Controller != record.Controller {
		r.dismiss(e.crew)
		e.crew = r.crewOf(p.Record)
		e.crew.pods++
	}
	e.ready = e.ready || p.Record.Ready
	if e.state == still {
		return true
	}
	if !p.Record.Ready || p.Written.At != was.Written.At || p.Written.Turned != was.Written.Turned || p.Written.BackAt == 0 {
		e.seen = 0
	}
	switch {
	case was.Way == inplace.Current && e.outdated() && e.wrote && e.hand == free:
		e.wrote = false
		e.hold = next(e.hold, Result{Kind: Blocked, Reason: inplace.WriteUndone, Message: "another program has taken the update back"}, now.Unix())
	case e.hold != nil && e.hold.reason != inplace.WriteUndone && (e.Way != was.Way || e.plan != before || p.Record.Labels != record.Labels):
		e.hold = nil
	}
	return true
}

// alike reports whether two records of a Pod are the same to a rollout.
func alike(a, b *podstate.Record) bool {
	return a == b || a.Ready == b.Ready && a.Order == b.Order && a.Labels == b.Labels && a.Controller == b.Controller
}

// Remove removes a Pod. gone: it was deleted, is being deleted or has finished, so that its place,
// if it counts, is kept for a while.
func (r *Rollout) Remove(id ID, gone bool, now time.Time) {
	e := r.entries[id]
	switch {
	case gone && e.hand == taken && e.evicts: // the watch is faster than the answer
		r.evicted(e, now.Unix())
	case !gone || e.hand == leaving || e.Uninjected:
	case !e.counts(now.Unix()):
		r.renewPlace(e, now.Unix())
	default:
		r.places = append(r.places, place{e.crew.name, e.fullName(), now.Unix(), now.Unix(), e.failed()})
	}
	r.leave(e.Record.Labels)
	r.dismiss(e.crew)
	r.entries[id] = nil
	r.vacant = append(r.vacant, id)
}

var noTraits = &traits{}

func (r *Rollout) traitsOf(set podstate.LabelSet) *traits {
	if !r.strategy.looksAtLabels() {
		return noTraits
	}
	t := r.traits[set]
	if t == nil {
		t = r.strategy.traitsOf(set.Labels())
		r.traits[set] = t
	}
	t.pods++
	return t
}

func (r *Rollout) leave(set podstate.LabelSet) {
	if t := r.traits[set]; t != nil {
		if t.pods--; t.pods == 0 {
			delete(r.traits, set)
		}
	}
}

// Return ends the reservation of a Take.
func (r *Rollout) Return(t Take, result Result, now time.Time) {
	if int(t.id) >= len(r.entries) {
		return
	}
	e := r.entries[t.id]
	if e == nil || e.Record.UID != t.UID || e.hand != taken || e.ticket != t.ticket {
		return
	}
	e.hand = free
	switch {
	case result.Recreate:
		e.stuck = result.Reason
	case t.Stuck && result.Kind == Stale: // the Pod can be updated in place by now
		e.stuck = ""
	}
	switch result.Kind {
	case Written:
		e.hand, e.version, e.wrote = written, result.Version, true
		r.accepted(e, now.Unix())
	case Evicted:
		e.hand = leaving
		r.evicted(e, now.Unix())
	default:
		e.hold = next(e.hold, result, now.Unix())
		if result.Kind == Refused || result.Reason == inplace.WriteUndone {
			r.refused(now.Unix())
		}
	}
}

// How long a Pod is held, in seconds: at first, and at most after several times.
var holds = map[ResultKind]struct{ first, most int64 }{
	Stale:     {1, 1},
	Refused:   {300, 600},
	Blocked:   {60, 600},
	Failed:    {10, 300},
	Protected: {2, 300},
}

// next returns the hold after one more result of a Pod.
func next(last *hold, result Result, now int64) *hold {
	h := &hold{reason: result.Reason, message: result.Message}
	if last != nil && last.reason == result.Reason {
		h.tries = last.tries + 1
	}
	times := holds[result.Kind]
	h.until = now + min(times.first<<min(h.tries, 20), times.most)
	return h
}

// fullName is the Pod's name as users are told it.
func (e *entry) fullName() string { return e.Record.Namespace.Value() + "/" + e.Record.Name }

// deliver ends the reservations of writes that the watch has delivered.
func (e *entry) deliver(watched uint64) {
	if e.hand == written && e.version <= watched {
		e.hand = free
	}
}

// counts reports whether the Pod takes a place of the budget.
func (e *entry) counts(now int64) bool {
	return e.hand != free && e.hand != leaving && e.charged || !e.Lost && (e.Written.Counts(now) || e.Unfinished)
}

// isToGo reports whether only a new Pod can have the content. A Pod that is stuck and may not be
// evicted is tried in place again: another writer may have given its resources back.
func (e *entry) isToGo() bool {
	return e.Way == inplace.Recreate || e.stuck != "" && e.Evict || e.Uninjected
}

// look notes since when the Pod is back. It returns true if it came back from a write for the
// first time.
func (e *entry) look(now int64) (cameBack bool) {
	switch {
	case e.state == still:
		return false
	case !e.Carries || e.Lost || !e.Record.Ready || !e.Written.Back(now):
		e.seen = 0
		return false
	}
	if e.seen == 0 {
		e.seen = now
	}
	cameBack = e.back != e.Written.At
	e.back = e.Written.At
	return cameBack
}

// Next takes up to most Pods that may be written now, in the order in which they are to be
// written, and reports when to look again if no event comes: zero if never. The Pod watch has
// delivered everything up to the resourceVersion watched, and Set was called for it.
func (r *Rollout) Next(most int, watched uint64, now time.Time) (takes []Take, again time.Time) {
	p := r.pass(watched, now.Unix())
	takes = p.take(most)
	if p.again != 0 {
		again = time.Unix(p.again, 0)
	}
	return takes, again
}

// Busy reports whether Next had anything to decide at the last look. If not, it need not be called
// for a Pod that has the content and does not count.
func (r *Rollout) Busy() bool { return r.busy }

// Report returns the state of the rollout.
func (r *Rollout) Report(watched uint64, now time.Time) Report {
	return r.pass(watched, now.Unix()).report()
}

// overdueAfter is how many seconds a Pod may be not Ready before its Node is looked at.
const overdueAfter = 30

// Overdue returns up to most Pods that count, and have not been Ready for a while, or whose Nodes
// were lost.
func (r *Rollout) Overdue(most int, now time.Time) (overdue []*podstate.Record) {
	for _, e := range r.entries {
		if e != nil && !e.Record.Ready && (e.Lost || e.counts(now.Unix())) && now.Unix()-int64(e.Written.At) >= overdueAfter && len(overdue) < most {
			overdue = append(overdue, e.Record)
		}
	}
	return overdue
}
