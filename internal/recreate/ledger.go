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

// maxFailures is the number of replacements in a row that fail before the leader stops
// evicting, and the number of Pods that are evicted before the first replacement is
// ready.
const maxFailures = 3

// Timeouts are the times that replacements may take. Zero fields mean the defaults.
type Timeouts struct {
	// Creation is the time between the end of a Pod and the creation of its
	// replacement. If it is exceeded, the controller was scaled down or cannot create
	// Pods. A new leader waits for this time before it evicts, so that the replacements
	// of Pods that the last leader evicted exist.
	Creation time.Duration
	// Ready is the time between the creation of a replacement and its readiness. If it
	// is exceeded, the replacement has failed.
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

// Ledger tracks the evicted Pods of one SidecarSet and their replacements. It belongs
// to one goroutine. It forgets an eviction when the replacement is available, so it
// holds about as many evictions as maxUnavailable allows. All times are seconds of one
// clock.
//
// A new leader starts with an empty Ledger. After Timeouts.Creation it adopts the
// evicted Pods that are being deleted and the replacements that are not available. The
// new Ledger does not contain an evicted Pod that is gone and has no replacement by
// then; the Ledger of the last leader would have forgotten that Pod as well.
type Ledger struct {
	// Timeouts are set before the Ledger is used.
	Timeouts Timeouts

	content string
	open    []*eviction
	// victims and replacements find evictions by the UID of a Pod; absent has those
	// without a replacement, in the order in which they began to wait.
	victims, replacements map[types.UID]*eviction
	absent                map[stage]*list.List

	left      []Replacement
	begun     []*eviction // not accepted by the API server yet
	missing   int         // accepted evictions
	failed    int         // evictions whose replacement exists and has failed
	next      int64
	failures  int // in a row, of this content
	lost      int // failures that leave no unavailable replacement behind
	successes int // of this content
}

// eviction is one evicted Pod whose replacement is not available yet.
type eviction struct {
	controller  podstate.Name
	victim      types.UID   // empty if it is not known
	replacement Replacement // its UID is empty as long as none exists
	accepted    bool        // by the API server
	gone        bool        // the victim, or a replacement that was never available, is gone
	failed      bool        // counted among the failures
	adopted     bool        // taken over from the last leader; perhaps not evicted by the operator
	since       int64       // time of the last change of these fields

	place  int           // in Ledger.open
	waits  *list.Element // in Ledger.absent
	queued stage         // the list of it
}

// stage is the key of a list of evictions without a replacement: there is one list for
// each controller and progress. A new Pod is matched with the most advanced eviction of
// its controller.
type stage struct {
	controller podstate.Name
	progress   int
}

// Replacement is a Pod that a controller has created, as the watch delivered it.
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

// SetContent sets the current content. If it changes, the failures are reset, and
// replacements that failed are no longer tracked (see Left).
func (l *Ledger) SetContent(content string) (changed bool) {
	if content == l.content {
		return false
	}
	l.content, l.failures, l.lost, l.successes = content, 0, 0, 0
	for _, e := range slices.Clone(l.open) {
		if e.failed {
			l.leave(e)
		}
	}
	return true
}

// leave forgets an eviction whose replacement exists and is no evidence about the
// current content.
func (l *Ledger) leave(e *eviction) {
	l.drop(e)
	if !e.replacement.Back {
		l.left = append(l.left, e.replacement)
	}
}

// Left returns replacements that are no longer tracked but are still unavailable: they
// carry an older content, or failed before the content changed. The caller must count
// each against the budget until it is available. Left returns each once.
func (l *Ledger) Left() []Replacement {
	left := l.left
	l.left = nil
	return left
}

// add starts tracking an eviction.
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

// change changes an eviction and updates the counters and lists.
func (l *Ledger) change(e *eviction, how func()) {
	l.count(e, -1)
	how()
	l.count(e, 1)
}

// count adds an eviction to the counters and lists (n is 1), or removes it (n is -1).
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

// Begin is called before the eviction of a Pod is sent to the API server. From now on,
// a new Pod of the controller may be its replacement.
func (l *Ledger) Begin(victim types.UID, controller podstate.Name) {
	if l.victims[victim] == nil {
		e := &eviction{controller: controller, victim: victim}
		l.add(e)
		l.begun = append(l.begun, e)
	}
}

// Accepted is called when the API server has accepted the eviction. The caller returns
// the Take with Hold in the same turn: the Pod must not be taken again, and the Ledger
// now counts it against the budget.
func (l *Ledger) Accepted(victim types.UID, now int64) {
	e := l.victims[victim]
	if e == nil {
		return
	}
	l.answer(e)
	l.change(e, func() { e.accepted, e.since = true, now })
	for _, other := range l.begun { // the new Pod may have been matched with the wrong eviction
		if taken := other.replacement; e.replacement.UID == "" && taken.UID != "" && !other.gone && other.controller == e.controller {
			l.change(other, func() { other.replacement = Replacement{} })
			l.change(e, func() { e.replacement = taken })
		}
	}
	l.settle(e)
}

// answer removes an eviction from begun: the API server has answered.
func (l *Ledger) answer(e *eviction) {
	l.begun = slices.DeleteFunc(l.begun, func(other *eviction) bool { return other == e })
}

// Cancel is called when the API server has not accepted the eviction. A Pod that was
// matched with it is the replacement of another eviction.
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

// Adopt is called after a change of leader, for a Pod that is newer than the current
// content and not available. The Pod may be a replacement, so it counts against the
// budget until it is available. It may also be broken for another reason, so it does
// not count as a failure. If the last leader had stopped evicting, an adopted Pod that
// becomes available ends that. The Pod is not matched with a Pod that is still being
// deleted: it may replace another Pod that is gone, and then both are unavailable. So a
// Pod that is being deleted may count against the budget until Timeouts.Creation after
// its end.
func (l *Ledger) Adopt(r Replacement) {
	if l.replacements[r.UID] == nil {
		e := &eviction{controller: r.Controller, replacement: r, accepted: true, adopted: true}
		l.add(e)
		l.settle(e)
	}
}

// AdoptVictim is called after a change of leader, for an evicted Pod that is being
// deleted. The last leader may have evicted it.
func (l *Ledger) AdoptVictim(victim types.UID, controller podstate.Name) {
	if l.victims[victim] == nil {
		l.add(&eviction{controller: controller, victim: victim, accepted: true, adopted: true})
	}
}

// Stop is called after a change of leader, if the last leader had stopped evicting
// because replacements failed.
func (l *Ledger) Stop() { l.failures = maxFailures }

// Added is called when the watch delivers a Pod for the first time. The Pod is matched
// with an eviction of its controller that has no replacement: preferably one whose Pod
// is gone, then one that the API server accepted.
func (l *Ledger) Added(r Replacement, now int64) {
	if e := l.answered(r); e != nil {
		l.change(e, func() { e.replacement, e.since = r, now })
		l.settle(e)
	}
}

// answered returns the eviction whose replacement the Pod is, nil if there is none.
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

// The progress of an eviction.
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

// Changed is called when the watch delivers a known Pod again, or when the content changes.
func (l *Ledger) Changed(r Replacement) {
	if e := l.replacements[r.UID]; e != nil {
		e.replacement = r
		l.settle(e)
	}
}

// Gone is called when a Pod does not exist any more, or has finished. If it was a
// replacement that was not available yet, the Ledger waits for its replacement. known
// is false if the Ledger does not track the Pod.
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

// Forget is called when a Pod exists and is no longer selected. The Ledger then stops
// waiting for it, if it is a replacement. known is false if it is not.
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

// settle ends an accepted eviction whose replacement is available or outdated.
func (l *Ledger) settle(e *eviction) {
	switch {
	case !e.accepted:
		return
	case e.replacement.Outdated:
		l.leave(e)
		return
	case e.replacement.InVain: // it is available without the content, as the next one would be
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

// Pods returns the Pods that the Ledger tracks: victims and replacements.
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

// Stopped reports whether no Pod is evicted until a replacement becomes ready or the
// content changes.
func (l *Ledger) Stopped() bool { return l.failures >= maxFailures }

// Failed is the number of replacements that exist and have not become ready in time.
func (l *Ledger) Failed() int { return l.failed }

// Replacements returns the numbers that package rollout needs. They can change without
// an event: next is the time of the next such change, at which the caller calls again;
// 0 if there is none.
//
// At most three Pods are evicted before the first replacement is available. A
// replacement that does not become ready in time is a failure, and still counts against
// the budget. One that is not created in time is a failure too, and no longer counts,
// because the controller may have been scaled down. After three failures in a row, no
// Pod is evicted until a replacement becomes ready or the content changes.
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

// expire applies the changes that are due without an event. It visits all evictions, at
// most once a second.
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
		default: // no replacement was created in time
			l.drop(e)
			if !e.adopted {
				l.failures++
				l.lost++
			}
		}
	}
}

// due is the time at which an eviction changes without an event; 0 if it does not.
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
