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

	left      []Replacement
	begun     []*eviction // that are not accepted yet
	missing   int         // evictions that are accepted
	failed    int         // those that have a replacement which has failed
	next      int64
	failures  int // in a row, of this content
	lost      int // those of them that had no replacement at all
	successes int // of this content
}

// eviction is one Pod that is evicted and whose replacement is not back.
type eviction struct {
	controller  podstate.Name
	victim      types.UID   // empty if it is not known
	replacement Replacement // its UID is empty as long as none exists
	accepted    bool        // by the API server
	gone        bool        // the victim, or a replacement that was not back
	failed      bool        // it was counted among the failures
	adopted     bool        // it may be none of the operator's
	since       int64       // when the last of these happened

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
	Namespace  podstate.Namespace
	Name       string
	Controller podstate.Name
	// Back: the Pod is available, and carries the current content or is older than it.
	Back bool
	// Outdated: the Pod does not carry the current content, and is older than it.
	Outdated bool
	// InVain: the Pod is available, does not carry the current content, and is newer.
	InVain bool
}

// SetContent says which content is current. A new one makes a new attempt: what
// failed before does not count any more, and is left (see Left).
func (l *Ledger) SetContent(content string) {
	if content == l.content {
		return
	}
	l.content, l.failures, l.lost, l.successes = content, 0, 0, 0
	for _, e := range slices.Clone(l.open) {
		if e.failed {
			l.leave(e)
		}
	}
}

// leave forgets an eviction whose replacement exists and tells nothing about the current
// content.
func (l *Ledger) leave(e *eviction) {
	l.drop(e)
	if !e.replacement.Back {
		l.left = append(l.left, e.replacement)
	}
}

// Left returns the replacements that the Ledger does not wait for any more although they are not
// back, since they carry an older content, or failed before the content changed. They are away because
// of the operator: each keeps its place of the budget until it is available, for which the
// caller sees. Left returns each once.
func (l *Ledger) Left() []Replacement {
	left := l.left
	l.left = nil
	return left
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
	l.answer(e)
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
	set(l.replacements, e.replacement.UID)
	switch {
	case n < 0 && e.waits != nil:
		all := l.absent[e.queued]
		all.Remove(e.waits)
		if e.waits = nil; all.Len() == 0 {
			delete(l.absent, e.queued)
		}
	case n > 0 && e.replacement.UID == "":
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
// new Pod of the controller may be its replacement.
func (l *Ledger) Begin(victim types.UID, controller podstate.Name) {
	if l.victims[victim] == nil {
		e := &eviction{controller: controller, victim: victim}
		l.add(e)
		l.begun = append(l.begun, e)
	}
}

// Accepted says that the API server has accepted the eviction. The caller gives the
// Take back with Hold in the same turn: the Pod must not be taken again, and the
// Ledger now counts its place of the budget.
func (l *Ledger) Accepted(victim types.UID, now int64) {
	e := l.victims[victim]
	if e == nil {
		return
	}
	l.answer(e)
	l.change(e, func() { e.accepted, e.since = true, now })
	for _, other := range l.begun { // the Pod may have been taken for its replacement
		if taken := other.replacement; e.replacement.UID == "" && taken.UID != "" && !other.gone && other.controller == e.controller {
			l.change(other, func() { other.replacement = Replacement{} })
			l.change(e, func() { e.replacement = taken })
		}
	}
	l.settle(e)
}

// answer says that the API server has answered.
func (l *Ledger) answer(e *eviction) {
	l.begun = slices.DeleteFunc(l.begun, func(other *eviction) bool { return other == e })
}

// Cancel says that the API server has not accepted the eviction. A Pod that was taken
// for its replacement is another one's.
func (l *Ledger) Cancel(victim types.UID) {
	e := l.victims[victim]
	if e == nil || e.accepted {
		return
	}
	l.drop(e)
	if e.replacement.UID != "" {
		l.Added(e.replacement, e.since)
	}
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
		e := &eviction{controller: r.Controller, replacement: r, accepted: true, adopted: true}
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
		l.change(e, func() { e.replacement, e.since = r, now })
		l.settle(e)
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
func (l *Ledger) Changed(r Replacement) {
	if e := l.replacements[r.UID]; e != nil {
		e.replacement = r
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
			if e.gone = true; e.replacement.UID == "" {
				e.since = now
			}
		})
	}
	if e := l.replacements[uid]; e != nil {
		known = true
		l.change(e, func() { e.replacement, e.failed, e.gone, e.since = Replacement{}, false, e.gone || e.accepted, now })
	}
	return known
}

// Forget says that a Pod exists, and is not selected any more. If it is a replacement, it
// is not waited for. It returns false if the Ledger does not wait for the Pod.
func (l *Ledger) Forget(uid types.UID) (known bool) {
	e := l.replacements[uid]
	switch {
	case e == nil:
		return false
	case e.accepted:
		l.drop(e)
	default: // it may have been the replacement of another Pod
		l.change(e, func() { e.replacement = Replacement{} })
	}
	return true
}

// settle forgets an eviction whose replacement is back, or outdated.
func (l *Ledger) settle(e *eviction) {
	switch {
	case !e.accepted:
		return
	case e.replacement.Outdated:
		l.leave(e)
		return
	case e.replacement.InVain: // it is available, and the next one would be like it
		l.drop(e)
		if !e.adopted {
			l.failures++
			l.lost++
		}
		return
	case !e.replacement.Back:
		return
	}
	if !e.adopted || l.Stopped() { // the content starts after all
		l.failures, l.lost = 0, 0
	}
	if !e.adopted {
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
		if e.replacement.UID != "" {
			uids = append(uids, e.replacement.UID)
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
func (l *Ledger) Replacements(now int64) (r rollout.Replacements, next int64) {
	if l.next != 0 && now >= l.next {
		l.expire(now)
	}
	r.Missing = l.missing
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
		case e.replacement.UID != "":
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
	case e.replacement.UID != "" && e.adopted:
		return 0 // it may be broken for another reason
	case e.replacement.UID != "":
		return e.since + l.Timeouts.readySeconds()
	case e.accepted && e.gone:
		return e.since + l.Timeouts.CreationSeconds()
	}
	return 0
}
