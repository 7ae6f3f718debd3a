package recreate

import (
	"cmp"
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

	content   string
	open      []eviction
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
	gone        bool      // the victim, or a replacement that was not back
	back        bool
	failed      bool  // it is counted among the failures
	adopted     bool  // it may be none of the operator's
	since       int64 // when the last of these happened
}

// Replacement is what the watch says about a Pod that a controller has made.
type Replacement struct {
	UID        types.UID
	Controller podstate.Name
	// Back: the Pod carries the current content and is ready.
	Back bool
}

// SetContent says which content is current. A new one makes a new attempt: what
// failed before does not count any more.
func (l *Ledger) SetContent(content string) {
	if content == l.content {
		return
	}
	l.content, l.failures, l.lost, l.successes = content, 0, 0, 0
	for i := range l.open {
		l.open[i].failed = false
	}
}

// Begin says that the API server is about to be asked to evict a Pod. From now on, a
// new Pod of the controller may be its replacement.
func (l *Ledger) Begin(victim types.UID, controller podstate.Name) {
	l.open = append(l.open, eviction{controller: controller, victim: victim})
}

// Accepted says that the API server has accepted the eviction. The caller gives the
// Take back with Hold in the same turn: the Pod must not be taken again, and the
// Ledger now counts its place of the budget.
func (l *Ledger) Accepted(victim types.UID, now int64) {
	for i := range l.open {
		if e := &l.open[i]; e.victim == victim {
			e.accepted, e.since = true, now
		}
	}
	l.settle()
}

// Cancel says that the API server has not accepted the eviction. A Pod that was taken
// for its replacement is another one's.
func (l *Ledger) Cancel(victim types.UID) {
	i := slices.IndexFunc(l.open, func(e eviction) bool { return e.victim == victim && !e.accepted })
	if i < 0 {
		return
	}
	e := l.open[i]
	l.open = slices.Delete(l.open, i, i+1)
	if e.replacement != "" {
		l.Added(Replacement{UID: e.replacement, Controller: e.controller, Back: e.back}, e.since)
	}
}

// Adopt says, to the Ledger of a new leader, that a Pod is newer than the current
// content and not back: it may replace a Pod that the last leader evicted. It takes a
// place of the budget until it is back. It may also be broken for another reason, so
// that it says nothing about the content. It is not taken for the replacement of a Pod
// that is being deleted: it may replace one that is gone already, and then both are
// away. So a Pod that is being deleted may take a place until it is gone for that long.
func (l *Ledger) Adopt(r Replacement) {
	if r.Back || l.find(r.UID) >= 0 {
		return
	}
	l.open = append(l.open, eviction{controller: r.Controller, replacement: r.UID, accepted: true, adopted: true})
}

// AdoptVictim says, to the Ledger of a new leader, that a Pod is being deleted since it
// was evicted, perhaps by the last leader.
func (l *Ledger) AdoptVictim(victim types.UID, controller podstate.Name) {
	if !slices.ContainsFunc(l.open, func(e eviction) bool { return e.victim == victim }) {
		l.open = append(l.open, eviction{controller: controller, victim: victim, accepted: true, adopted: true})
	}
}

// Stop says, to the Ledger of a new leader, that the last leader has stopped evicting
// since replacements failed.
func (l *Ledger) Stop() { l.failures = maxFailures }

// Added says that the watch shows a Pod for the first time. It replaces a Pod of its
// controller that was evicted and has no replacement: if possible one that is gone,
// and else one whose eviction was accepted.
func (l *Ledger) Added(r Replacement, now int64) {
	if i := l.missing(r); i >= 0 {
		l.open[i].replacement, l.open[i].since = r.UID, now
		l.Changed(r)
	}
}

// missing returns the eviction that a Pod is the replacement of; -1 if there is none.
func (l *Ledger) missing(r Replacement) int {
	best := -1
	for i := range l.open {
		e := &l.open[i]
		if e.replacement == "" && e.controller == r.Controller && e.victim != r.UID && (best < 0 || e.progress() > l.open[best].progress()) {
			best = i
		}
	}
	return best
}

// progress is how far an eviction is, as a number to compare.
func (e *eviction) progress() int {
	switch {
	case e.gone:
		return 2
	case e.accepted:
		return 1
	}
	return 0
}

// Changed says what the watch says about a Pod that it has shown before.
func (l *Ledger) Changed(r Replacement) {
	if i := l.find(r.UID); i >= 0 {
		l.open[i].back = r.Back
		l.settle()
	}
}

// Gone says that a Pod does not exist any more, or has finished. If it was a
// replacement that was not back, its own replacement is waited for. known is false if
// the Ledger does not wait for the Pod.
func (l *Ledger) Gone(uid types.UID, now int64) (known bool) {
	for i := range l.open {
		switch e := &l.open[i]; uid {
		case e.victim:
			if e.gone = true; e.replacement == "" {
				e.since = now
			}
		case e.replacement:
			e.replacement, e.back, e.failed, e.gone, e.since = "", false, false, true, now
		default:
			continue
		}
		known = true
	}
	return known
}

// Forget says that a Pod exists, and is not selected any more. If it is a replacement, it
// is not waited for. It returns false if the Ledger does not wait for the Pod.
func (l *Ledger) Forget(uid types.UID) (known bool) {
	n := len(l.open)
	l.open = slices.DeleteFunc(l.open, func(e eviction) bool { return e.replacement == uid })
	return len(l.open) < n
}

// settle forgets the evictions whose replacements are back.
func (l *Ledger) settle() {
	l.open = slices.DeleteFunc(l.open, func(e eviction) bool {
		if !e.accepted || !e.back {
			return false
		}
		if !e.adopted || l.Stopped() { // the content starts after all
			l.failures, l.lost = 0, 0
		}
		if !e.adopted {
			l.successes++
		}
		return true
	})
}

func (l *Ledger) find(replacement types.UID) int {
	return slices.IndexFunc(l.open, func(e eviction) bool { return e.replacement == replacement })
}

// Empty reports whether no eviction is under way.
func (l *Ledger) Empty() bool { return len(l.open) == 0 }

// Pods are those that the Ledger waits for: victims, and replacements.
func (l *Ledger) Pods() (uids []types.UID) {
	for i := range l.open {
		if e := &l.open[i]; e.victim != "" && !e.gone {
			uids = append(uids, e.victim)
		}
		if e := &l.open[i]; e.replacement != "" {
			uids = append(uids, e.replacement)
		}
	}
	return uids
}

// Failures is how many replacements in a row have not become ready in time. From three
// on, nothing more is evicted.
func (l *Ledger) Failures() int { return l.failures }

// Stopped reports whether nothing more is evicted until a replacement becomes ready
// after all or the content changes.
func (l *Ledger) Stopped() bool { return l.failures >= maxFailures }

// Failed is how many replacements exist that have not become ready in time.
func (l *Ledger) Failed() (n int) {
	for i := range l.open {
		if l.open[i].failed {
			n++
		}
	}
	return n
}

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
	l.open = slices.DeleteFunc(l.open, func(e eviction) bool {
		if l.unwanted(&e, now) && !e.adopted {
			l.failures++
			l.lost++
		}
		return l.unwanted(&e, now)
	})
	for i := range l.open {
		e := &l.open[i]
		if e.accepted {
			r.Missing++
		}
		due := l.due(e)
		switch {
		case due == 0:
		case now < due:
			if next == 0 || due < next {
				next = due
			}
		case !e.failed:
			e.failed = true
			l.failures++
		}
	}
	switch {
	case l.Stopped():
	case l.successes == 0:
		r.Allowed = maxFailures - l.lost
	default:
		r.Allowed = math.MaxInt32
	}
	return r, next
}

// unwanted reports whether a Pod is not replaced at all.
func (l *Ledger) unwanted(e *eviction, now int64) bool {
	return e.accepted && e.replacement == "" && e.gone && now >= e.since+l.Timeouts.CreationSeconds()
}

// due is when an eviction changes without an event; 0 if it does not.
func (l *Ledger) due(e *eviction) int64 {
	switch {
	case e.replacement != "" && e.adopted:
		return 0 // it may be broken for another reason
	case e.replacement != "":
		return e.since + l.Timeouts.readySeconds()
	case e.accepted && e.gone:
		return e.since + l.Timeouts.CreationSeconds()
	}
	return 0
}
