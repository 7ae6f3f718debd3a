package recreate

import (
	"cmp"
	"container/list"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// maxFailures is how many replacements in a row may not become ready before nothing
// more is evicted, and how many Pods are evicted before the first replacement is
// ready.
const maxFailures = 3

// Timeouts say how long replacements may take. The zero value stands for the defaults.
type Timeouts struct {
	// Creation is how long after a Pod is gone its replacement may take to be created.
	// Then its controller was scaled down, or cannot create it. A new leader waits that
	// long before it evicts, so that replacements of Pods that the last leader evicted are
	// there.
	Creation time.Duration
	// Ready is how long a replacement may take to become ready before it counts as one
	// that does not.
	Ready time.Duration
}

// The defaults of Timeouts.
const (
	DefaultCreation = 30 * time.Second
	DefaultReady    = 10 * time.Minute
)

// CreationSeconds is Creation, or its default, in seconds.
func (t Timeouts) CreationSeconds() int64 {
	return int64(cmp.Or(t.Creation, DefaultCreation) / time.Second)
}

func (t Timeouts) readySeconds() int64 { return int64(cmp.Or(t.Ready, DefaultReady) / time.Second) }

// Ledger knows which Pods of one SidecarSet were evicted, and what became of their
// replacements. It belongs to one goroutine. It forgets an eviction when its
// replacement is back, so that it holds about as many as the budget has places. The
// times it is given are seconds of one clock.
//
// A new leader starts with an empty Ledger. When it has led for Timeouts.Creation, it adopts the
// Pods that are being deleted and the replacements that are not back. A Pod that was
// evicted, is gone, and has no replacement by then is one that the Ledger of the last
// leader would have forgotten as well.
type Ledger struct {
	// Timeouts are set before the Ledger is used.
	Timeouts Timeouts

	content string
	open    []*eviction
	// victims and replacements find the evictions of Pods that are known; absent has
	// those without a replacement, the first to be replaced at the front.
	victims, replacements map[types.UID]*eviction
	absent                map[stage]*list.List

	missing   int // evictions that are accepted
	outdated  int // those of them that have a replacement with an older content
	failed    int // those that have a replacement which has failed
	next      int64
	failures  int // in a row, of this content
	lost      int // those of them that had no replacement at all
	successes int // of this content
}

// eviction is one Pod that is evicted and whose replacement is not back.
type eviction struct {
	controller  podstate.Name
	victim      types.UID // empty if it is not known
	replacement types.UID // empty as long as none exists
	accepted    bool      // by the API server
	again       bool      // the victim is a replacement, and its own eviction is not accepted
	gone        bool      // the victim, or a replacement that was not back
	back        bool
	outdated    bool  // the replacement has an older content
	failed      bool  // it was counted among the failures
	adopted     bool  // it may be none of the operator's
	since       int64 // when the last of these happened

	place  int           // in Ledger.open
	waits  *list.Element // in Ledger.absent
	queued stage         // the list of it
}

// stage says which evictions a new Pod may be the answer to: those of its controller,
// first the ones that have come farthest.
type stage struct {
	controller podstate.Name
	progress   int
}

// Replacement is what the watch says about a Pod that a controller has made.
type Replacement struct {
	UID        types.UID
	Controller podstate.Name
	// Back: the Pod is ready.
	Back bool
	// Outdated: the Pod carries an older content, so that it tells nothing about the
	// current one.
	Outdated bool
}

// SetContent says which content is current. A new one makes a new attempt: what
// failed before does not count any more.
func (l *Ledger) SetContent(content string) {
	if content != l.content {
		l.content, l.failures, l.lost, l.successes = content, 0, 0, 0
	}
}

// add takes up an eviction.
func (l *Ledger) add(e *eviction) {
	if l.absent == nil {
		l.victims, l.replacements, l.absent = map[types.UID]*eviction{}, map[types.UID]*eviction{}, map[stage]*list.List{}
	}
	e.place = len(l.open)
	l.open = append(l.open, e)
	l.count(e, 1)
}

// drop forgets an eviction.
func (l *Ledger) drop(e *eviction) {
	l.count(e, -1)
	last := l.open[len(l.open)-1]
	l.open[e.place], last.place = last, e.place
	l.open[len(l.open)-1] = nil
	l.open = l.open[:len(l.open)-1]
}

// change changes an eviction, and what is counted of it.
func (l *Ledger) change(e *eviction, how func()) {
	l.count(e, -1)
	how()
	l.count(e, 1)
}

// count adds an eviction to what is counted, or takes it out.
func (l *Ledger) count(e *eviction, n int) {
	if e.accepted {
		l.missing += n
	}
	if e.accepted && e.outdated && e.replacement != "" {
		l.outdated += n
	}
	if e.failed {
		l.failed += n
	}
	set := func(of map[types.UID]*eviction, uid types.UID) {
		switch {
		case uid != "" && n > 0:
			of[uid] = e
		case uid != "" && of[uid] == e:
			delete(of, uid)
		}
	}
	set(l.victims, e.victim)
	set(l.replacements, e.replacement)
	switch {
	case n < 0 && e.waits != nil:
		all := l.absent[e.queued]
		all.Remove(e.waits)
		if e.waits = nil; all.Len() == 0 {
			delete(l.absent, e.queued)
		}
	case n > 0 && e.replacement == "":
		e.queued = stage{e.controller, e.progress()}
		if l.absent[e.queued] == nil {
			l.absent[e.queued] = list.New()
		}
		e.waits = l.absent[e.queued].PushBack(e)
	}
	if due := l.due(e); n > 0 && due != 0 && !e.failed && (l.next == 0 || due < l.next) {
		l.next = due
	}
}

// Begin says that the API server is about to be asked to evict a Pod. From now on, a
// new Pod of the controller may be its replacement. If the victim is itself a replacement
// that is waited for, the next one takes over its place of the budget.
func (l *Ledger) Begin(victim types.UID, controller podstate.Name) {
	switch e := l.replacements[victim]; {
	case l.victims[victim] != nil:
	case e != nil && e.accepted:
		l.change(e, func() {
			e.victim, e.replacement, e.again, e.gone, e.back, e.failed = victim, "", true, false, false, false
		})
	default:
		l.add(&eviction{controller: controller, victim: victim})
	}
}

// Accepted says that the API server has accepted the eviction. The caller gives the
// Take back with Hold in the same turn: the Pod must not be taken again, and the
// Ledger now counts its place of the budget.
func (l *Ledger) Accepted(victim types.UID, now int64) {
	if e := l.victims[victim]; e != nil {
		l.change(e, func() {
			e.adopted = e.adopted && !e.again
			e.accepted, e.again, e.since = true, false, now
		})
		l.settle(e)
	}
}

// Cancel says that the API server has not accepted the eviction. A Pod that was taken
// for its replacement is another one's. If the victim is itself a replacement, it is
// waited for again; the caller then calls Changed or Forget for it.
func (l *Ledger) Cancel(victim types.UID) {
	e := l.victims[victim]
	if e == nil || e.accepted && !e.again {
		return
	}
	taken := Replacement{UID: e.replacement, Controller: e.controller, Back: e.back, Outdated: e.outdated}
	switch {
	case !e.again:
		l.drop(e)
	case e.gone: // although it was not evicted
		l.change(e, func() { e.again = false })
		l.settle(e)
		return
	default:
		l.change(e, func() { e.victim, e.replacement, e.again, e.back, e.outdated = "", victim, false, false, true })
	}
	if taken.UID != "" {
		l.Added(taken, e.since)
	}
}

// Awaits reports whether a Pod is the replacement of one whose eviction was accepted, and
// is not back. It has a place of the budget.
func (l *Ledger) Awaits(uid types.UID) bool {
	e := l.replacements[uid]
	return e != nil && e.accepted
}

// Adopt says, to the Ledger of a new leader, that a Pod is newer than the current
// content and not back: it may replace a Pod that the last leader evicted. It takes a
// place of the budget until it is back. One that came back after the last leader had
// stopped ends that. It may also be broken for another reason, so
// that it says nothing about the content. It is not taken for the replacement of a Pod
// that is being deleted: it may replace one that is gone already, and then both are
// away. So a Pod that is being deleted may take a place until it is gone for that long.
func (l *Ledger) Adopt(r Replacement) {
	if l.replacements[r.UID] == nil {
		e := &eviction{controller: r.Controller, replacement: r.UID, accepted: true, adopted: true, back: r.Back}
		l.add(e)
		l.settle(e)
	}
}

// AdoptVictim says, to the Ledger of a new leader, that a Pod is being deleted since it
// was evicted, perhaps by the last leader.
func (l *Ledger) AdoptVictim(victim types.UID, controller podstate.Name) {
	if l.victims[victim] == nil {
		l.add(&eviction{controller: controller, victim: victim, accepted: true, adopted: true})
	}
}

// Stop says, to the Ledger of a new leader, that the last leader has stopped evicting
// since replacements failed.
func (l *Ledger) Stop() { l.failures = maxFailures }

// Added says that the watch shows a Pod for the first time. It replaces a Pod of its
// controller that was evicted and has no replacement: if possible one that is gone,
// and else one whose eviction was accepted.
func (l *Ledger) Added(r Replacement, now int64) {
	if e := l.answered(r); e != nil {
		l.change(e, func() { e.replacement, e.outdated, e.since = r.UID, r.Outdated, now })
		l.Changed(r, now)
	}
}

// answered returns the eviction that a Pod is the replacement of, nil if there is none.
func (l *Ledger) answered(r Replacement) *eviction {
	for progress := hasGone; progress >= hasBegun; progress-- {
		all := l.absent[stage{r.Controller, progress}]
		if all == nil {
			continue
		}
		for at := all.Front(); at != nil; at = at.Next() {
			if e := at.Value.(*eviction); e.victim != r.UID {
				return e
			}
		}
	}
	return nil
}

// How far an eviction is.
const (
	hasBegun = iota
	wasAccepted
	hasGone
)

func (e *eviction) progress() int {
	switch {
	case e.gone:
		return hasGone
	case e.accepted:
		return wasAccepted
	}
	return hasBegun
}

// Changed says what the watch says about a Pod that it has shown before, or what it means
// since the content has changed.
func (l *Ledger) Changed(r Replacement, now int64) {
	if e := l.replacements[r.UID]; e != nil {
		if e.outdated != r.Outdated {
			l.change(e, func() { e.outdated, e.failed, e.since = r.Outdated, false, now })
		}
		e.back = r.Back
		l.settle(e)
	}
}

// Gone says that a Pod does not exist any more, or has finished. If it was a
// replacement that was not back, its own replacement is waited for. known is false if
// the Ledger does not wait for the Pod.
func (l *Ledger) Gone(uid types.UID, now int64) (known bool) {
	if e := l.victims[uid]; e != nil {
		known = true
		l.change(e, func() {
			if e.gone = true; e.replacement == "" {
				e.since = now
			}
		})
	}
	if e := l.replacements[uid]; e != nil {
		known = true
		l.change(e, func() { e.replacement, e.back, e.failed, e.gone, e.since = "", false, false, true, now })
	}
	return known
}

// Forget says that a Pod exists, and is not selected any more. If it is a replacement, it
// is not waited for. It returns false if the Ledger does not wait for the Pod.
func (l *Ledger) Forget(uid types.UID) (known bool) {
	e := l.replacements[uid]
	if e != nil {
		l.drop(e)
	}
	return e != nil
}

// settle forgets an eviction whose replacement is back.
func (l *Ledger) settle(e *eviction) {
	if !e.accepted || e.again || !e.back {
		return
	}
	if !e.outdated && (!e.adopted || l.Stopped()) { // the content starts after all
		l.failures, l.lost = 0, 0
	}
	if !e.outdated && !e.adopted {
		l.successes++
	}
	l.drop(e)
}

// Empty reports whether no eviction is under way.
func (l *Ledger) Empty() bool { return len(l.open) == 0 }

// Pods are those that the Ledger waits for: victims, and replacements.
func (l *Ledger) Pods() (uids []types.UID) {
	for _, e := range l.open {
		if e.victim != "" && !e.gone {
			uids = append(uids, e.victim)
		}
		if e.replacement != "" {
			uids = append(uids, e.replacement)
		}
	}
	return uids
}

// Stopped reports whether nothing more is evicted until a replacement becomes ready
// after all or the content changes.
func (l *Ledger) Stopped() bool { return l.failures >= maxFailures }

// Failed is how many replacements exist that have not become ready in time.
func (l *Ledger) Failed() int { return l.failed }

// Replacements is what package rollout has to know. Time passes without events, so
// the caller asks again from time to time; next is when something may have changed
// without one, 0 if never.
//
// Until a replacement is back, at most three Pods are evicted. A replacement that does
// not become ready in time counts as a failure, and goes on taking its place of the
// budget. One that is not created in time counts as a failure too, and takes no place
// any more: the controller may have been scaled down. After three failures in a row,
// nothing more is evicted until one of them becomes ready or the content changes.
// Then a replacement that is not ready is outdated: it keeps its place, and is no failure.
func (l *Ledger) Replacements(now int64) (r rollout.Replacements, next int64) {
	if l.next != 0 && now >= l.next {
		l.expire(now)
	}
	r.Missing, r.Outdated = l.missing, l.outdated
	switch {
	case l.Stopped():
	case l.successes == 0:
		r.Allowed = maxFailures - l.lost
	default:
		r.Allowed = math.MaxInt32
	}
	return r, l.next
}

// expire does what time alone changes. It passes over all evictions, once a second at
// most.
func (l *Ledger) expire(now int64) {
	l.next = 0
	for _, e := range slices.Clone(l.open) {
		switch due := l.due(e); {
		case due == 0 || e.failed:
		case now < due:
			if l.next == 0 || due < l.next {
				l.next = due
			}
		case e.replacement != "":
			l.change(e, func() { e.failed = true })
			l.failures++
		default: // the Pod is not replaced at all
			l.drop(e)
			if !e.adopted {
				l.failures++
				l.lost++
			}
		}
	}
}

// due is when an eviction changes without an event; 0 if it does not.
func (l *Ledger) due(e *eviction) int64 {
	switch {
	case e.replacement != "" && (e.adopted || e.outdated):
		return 0 // it may be broken for another reason, or by an older content
	case e.replacement != "":
		return e.since + l.Timeouts.readySeconds()
	case e.accepted && e.gone:
		return e.since + l.Timeouts.CreationSeconds()
	}
	return 0
}
