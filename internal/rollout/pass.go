package rollout

import (
	"cmp"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// pass is one look at all Pods of a SidecarSet.
type pass struct {
	r     *Rollout
	now   int64
	again int64 // when to look again; 0 for never

	outdated, inHand, waits, unselected int
	matched                             int
	total                               int // what percentages of maxUnavailable are of
	notReady                            int // that do not count, of those in total
	used, ofContent                     int // places taken, and those of them by Pods that carry the content
	failed                              int
	proven, unproven                    int
	repaired, moving                    int // Pods that carry the content: back, though not available before; and not back
	later                               []*entry
	replaced                            int                        // places taken by evictions
	evicting                            int                        // Pods in hand that are to be evicted
	refused                             map[podstate.Namespace]int // Pods that were refused
	slack                               uint32

	// Pods that can be taken: those that count, other unavailable ones, available ones, and those
	// to be evicted.
	repair, unavailable, available, evict []*entry

	counting, blocked, untried Groups
}

// pass looks at all Pods.
func (r *Rollout) pass(watched uint64, now int64) *pass {
	p := &pass{r: r, now: now}
	if r.began == 0 {
		r.began = now
	}
	for _, c := range r.crews {
		c.begin()
	}
	for i := range r.places {
		if c := r.crews[r.places[i].crew]; c != nil {
			c.left = sooner(c.left, r.places[i].born)
			c.places++
		}
	}
	for _, e := range r.entries {
		if e == nil {
			continue
		}
		e.deliver(watched)
		if e.look(now) {
			r.moved, r.begun = now, false
		}
		p.sort(e)
	}
	p.countLater()
	p.countPlaces()
	if r.before < 0 && r.content != "" {
		r.before = p.notReady
	}
	if r.moved == 0 {
		r.moved = now
	}
	r.busy = p.outdated+p.used+p.unproven+p.inHand > 0
	switch failed := p.used > 0 && p.failed >= p.used; {
	case !failed:
		r.failing = 0
	case r.failing == 0:
		r.failing = now
	}
	return p
}

// sort counts one Pod, and finds what can be done with it.
func (p *pass) sort(e *entry) {
	now := p.now
	counts := e.counts(now)
	e.crew.note(e, counts)
	p.wake(e.Written.Changes(now))
	if !e.Uninjected {
		p.matched++
	}
	if e.capacity() {
		p.total++
		if !e.Record.Ready && !counts {
			p.notReady++
		}
	}
	if counts {
		p.count(e)
	}
	if e.Carries && e.Written.At != 0 {
		p.prove(e)
	}
	if e.Written.Ignored(now) && !e.outdated() {
		p.blocked.add(string(inplace.NotCarriedOut), "the node has not acknowledged the update for ten minutes", e)
	}
	if e.outdated() || e.Uninjected {
		p.outdated++
		p.offer(e, counts)
	}
}

func (p *pass) wake(at int64) { p.again = sooner(p.again, at) }

// count counts a Pod that takes a place of the budget.
func (p *pass) count(e *entry) {
	p.used++
	p.slack = max(p.slack, e.Grace)
	if e.Carries || e.hand != free {
		p.ofContent++
	}
	if e.failed() {
		p.failed++
	}
	p.counting.add(e.waitsFor(), "", e)
}

// prove counts a Pod that was written with the content.
func (p *pass) prove(e *entry) {
	switch ready := p.r.strategy.minReady; {
	case e.Lost, e.Written.Ignored(p.now), !e.shows(): // it shows nothing
	case e.seen == 0 && e.Written.FailedLater():
		p.later = append(p.later, e)
		p.moving++
	case e.seen == 0:
		p.moving++
		if e.Written.Disturbed {
			p.unproven++
			p.untried.add("", "", e)
		}
	case !e.Written.Disturbed:
		p.repaired++
	case p.now-e.seen >= ready:
		p.proven++
	default:
		p.unproven++
		p.untried.add("", "", e)
		p.wake(e.seen + ready)
	}
}

// shows reports whether what becomes of the Pod shows anything about the content. A Pod that was not
// available and has no node does not start for reasons of its own.
func (e *entry) shows() bool { return e.Record.Order.Assigned || e.Written.Disturbed }

// offer finds what can be done with an outdated Pod.
func (p *pass) offer(e *entry, counts bool) {
	if e.hold != nil && e.hold.reason == inplace.Refused {
		if p.refused == nil {
			p.refused = map[podstate.Namespace]int{}
		}
		p.refused[e.Record.Namespace]++
	}
	reason := e.Reason
	evicts := e.isToGo()
	if evicts {
		if e.stuck != "" {
			reason = e.stuck
		}
		reason = cmp.Or(e.KeepReason, reason)
	}
	switch {
	case e.hand == leaving:
	case e.hand != free && e.evicts:
		p.inHand++
		p.evicting++
	case e.hand != free:
		p.inHand++
		p.moving += step(e.charged || e.shows())
		if e.charged {
			p.unproven++
		}
	case e.hold != nil && p.now < e.hold.until && e.hold.reason != "":
		p.wake(e.hold.until)
		p.blocked.add(string(e.hold.reason), e.hold.message, e)
	case e.hold != nil && p.now < e.hold.until:
		p.wake(e.hold.until)
		p.waits++
	case evicts && !e.Evict, !evicts && !e.inPlace():
		if !e.Uninjected || reason != "" {
			message := ""
			if e.Reason.IsOfResize() {
				message = e.Record.ResizeMessage
			}
			p.blocked.add(string(reason), message, e)
		}
	case e.Waits && !evicts:
		p.waits++
	case counts && !evicts:
		p.repair = append(p.repair, e)
	case !evicts && e.crew.mended < e.crew.places && e.crew.replaces(e):
		e.crew.mended++
		p.repair = append(p.repair, e)
	case e.traits.unselected:
		p.unselected++
	case evicts:
		p.evict = append(p.evict, e)
	case e.Record.Ready:
		p.available = append(p.available, e)
	default:
		p.unavailable = append(p.unavailable, e)
	}
}

// countLater counts the Pods that failed more than ten minutes after their update, as far as they
// are more than the Pods that were not Ready before.
func (p *pass) countLater() {
	for _, e := range p.later[:max(0, min(len(p.later), len(p.later)-max(0, p.r.before)))] {
		p.used++
		p.ofContent++
		p.failed++
		e.crew.ours++
		p.counting.add(e.waitsFor(), "", e)
	}
}

// countPlaces counts the places of deleted and of evicted Pods.
func (p *pass) countPlaces() {
	r := p.r
	p.wake(r.keepPlaces(p.now))
	for _, place := range r.places {
		p.used++
		p.ofContent++
		if place.failed || p.now >= place.at+placeHeld {
			p.failed++
		}
		if c := r.crews[place.crew]; c != nil {
			c.ours++
		}
		p.counting.Add(appsv1beta1.ReasonReplacementNotReady, "", place.pod)
	}
	r.applyBrake(p.now)
	for name, c := range r.crews {
		places, again := r.replaced(c, p.now)
		p.wake(again)
		p.replaced += places
		for _, v := range c.evictions[:places] {
			p.counting.Add(appsv1beta1.ReasonReplacementNotReady, "", v.pod)
		}
		c.ours += places
		if c.pods == 0 && len(c.evictions) == 0 {
			delete(r.crews, name)
		}
	}
	p.used += p.replaced
}

func (p *pass) allowed() int { return p.r.strategy.allowed(p.total) }

// waiting is the number of Pods that can be taken, now or later, apart from those that count.
func (p *pass) waiting() int { return len(p.unavailable) + len(p.available) + len(p.evict) }

// updatable is the number of waiting Pods that partition does not exclude. Pods that cannot be
// taken do not count as excluded by partition (T12).
func (p *pass) updatable() int { return max(0, p.waiting()-p.r.strategy.Kept(p.matched)) }

// trial reports whether one more Pod that is not available may be written: its update may show
// nothing about the content, and may break it for good.
func (p *pass) trial() bool {
	return p.moving < max(1, p.proven+p.repaired) && (p.ofContent == 0 || p.ofContent < max(1, p.allowed()))
}

// hasRoom, isProven are the limits for available Pods.
func (p *pass) hasRoom() bool  { return p.used < p.allowed() }
func (p *pass) isProven() bool { return p.unproven < max(1, p.proven) }

func (e *entry) spare(p *pass) bool { return e.crew.spare(p.allowed(), p.total) }

// take takes up to most Pods.
func (p *pass) take(most int) (takes []Take) {
	r := p.r
	if r.strategy.stops() != Unlimited {
		return nil
	}
	if r.window == 0 && p.now < r.probeAt && len(p.repair)+p.waiting() > 0 {
		p.wake(r.probeAt)
	}
	most = min(most, r.free(p.inHand, p.now))
	slices.SortFunc(p.repair, order)
	for _, e := range p.repair {
		if len(takes) >= most {
			return takes
		}
		takes = append(takes, p.give(e))
	}
	left := p.updatable()
	pick := func(from []*entry, spread bool, may func(*entry) bool) {
		if len(takes) >= most || left <= 0 {
			return
		}
		line := p.line(from, spread)
		for len(takes) < most && left > 0 {
			e := line.next(may)
			if e == nil {
				return
			}
			takes = append(takes, p.give(e))
			left--
		}
	}
	if len(p.unavailable) > 0 {
		pick(p.unavailable, false, func(e *entry) bool { return !e.Record.Order.Assigned || p.trial() })
	}
	if len(p.available) > 0 && p.hasRoom() && p.isProven() {
		pick(p.available, true, func(e *entry) bool { return p.hasRoom() && p.isProven() && e.spare(p) })
	}
	if len(p.evict) > 0 {
		for _, at := range []int64{r.brake, r.began + evictionHeld} {
			if p.now < at {
				p.wake(at)
			}
		}
		pick(p.evict, true, p.mayEvict)
	}
	return takes
}

// mayEvict reports whether a Pod may be evicted now. A Pod that counts uses its own place.
func (p *pass) mayEvict(e *entry) bool {
	if !p.r.mayEvict(p.replaced+p.evicting, p.now) {
		return false
	}
	return e.counts(p.now) || p.hasRoom() && (!e.Record.Ready || e.spare(p))
}

// give reserves a Pod.
func (p *pass) give(e *entry) Take {
	r := p.r
	counted := e.counts(p.now)
	r.ticket++
	e.hand, e.ticket, e.charged, e.evicts = taken, r.ticket, counted || e.Record.Ready, e.isToGo()
	p.inHand++
	if e.charged && !counted {
		p.used++
		e.crew.ours++
		if e.Record.Ready {
			e.crew.down++
		}
	}
	way := e.Way
	switch {
	case e.evicts:
		p.evicting++
		way = inplace.Recreate
	case e.charged:
		p.ofContent++
		p.unproven++
		p.moving++
	default:
		p.moving += step(e.shows())
	}
	return Take{
		UID: e.Record.UID, Namespace: e.Record.Namespace, Name: e.Record.Name, Way: way,
		Free: !e.charged, Stuck: e.stuck != "", id: e.id, ticket: e.ticket,
	}
}

func step(is bool) int {
	if is {
		return 1
	}
	return 0
}
