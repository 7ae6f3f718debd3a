package rollout

import (
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Pod is one Pod that carries a SidecarSet. Decide changes none.
type Pod struct {
	Record *podstate.Record
	// Verdict is how the Pod can get the current content.
	Verdict inplace.Verdict
	// Carries: the Pod has the current content, or its kubelet is resizing it to that.
	Carries bool
	// Written is the operator's last write of the Pod for the SidecarSet, with the content that the
	// Pod carries.
	Written podstate.Written
	// Resets: a hot upgrade can be ended.
	Resets bool
	// Dead: the Pod is not Ready, and its node is not ready or gone.
	Dead bool
	// Trouble is why a sidecar does not run, and Sidecar its name.
	Trouble podstate.Trouble
	Sidecar string
	// Traits are those of the Pod's labels; nil if the strategy does not look at labels.
	Traits *Traits
	// Sent is the operator's own write that is under way, or whose event has not come yet; nil if
	// there is none. The Pod counts as written.
	Sent *podstate.Written
	// Rest keeps the Pod from being written; nil if nothing does.
	Rest *Rest
}

// Rest is why a Pod is not written before a time: its last write was refused, or undone by another
// program. Without a Reason, the watch has not shown the Pod's present state yet.
type Rest struct {
	Until   int64
	Reason  inplace.Reason
	Message string
}

// State is what a Pod shows of the content that it carries.
type State uint8

// The states.
const (
	// None: the Pod was not written with this content.
	None State = iota
	// Updating: the write is not carried out, or the Pod is not Ready since.
	Updating
	// Settling: the Pod is Ready with the content, and not for long enough.
	Settling
	// Proven: it is.
	Proven
	// Late: the Pod was proven, and is not Ready any more.
	Late
	// Excused: the Pod says nothing about the content, and has had ten minutes.
	Excused
)

// tenMinutes is the only time in the rules that users cannot set, in seconds.
const tenMinutes = 600

// written returns the last write, as if the event of one that is under way had come.
func (p *Pod) written() podstate.Written {
	if p.Sent != nil {
		return *p.Sent
	}
	return p.Written
}

// look is a Pod at a time: times in the future, of another machine's clock, count as now.
type look struct {
	*Pod
	was       podstate.Was
	has       bool  // a record
	carried   bool  // its write is carried out
	at, since int64 // when it was written, and when the condition Ready last changed
	base      int64 // when the Pod began to show something
	excuse    int64 // when it is excused
}

func (p *Pod) look(now int64) look {
	w := p.written()
	l := look{Pod: p, was: w.Was, has: w.At != 0, carried: w.IsCarriedOut(now), at: min(now, int64(w.At)), since: min(now, int64(p.Record.Since))}
	l.base, l.excuse = l.at, l.at+tenMinutes
	if l.carried {
		l.base = max(l.at, min(now, int64(w.Started)))
	}
	return l
}

// state returns the state, and when it changes by itself; 0: it does not.
func (l *look) state(minReady, now int64) (State, int64) {
	switch ready := l.Record.Ready; {
	case !l.has:
		return None, 0
	case ready && l.carried:
		// A Pod that fails and comes back has to be Ready for as long as that took.
		if end := max(max(l.base, l.since)+minReady, min(2*l.since-l.base, l.base+tenMinutes)); now < end {
			return Settling, end
		}
		return Proven, 0
	case ready, l.was != podstate.WasUp: // its node does not act; or it was down before
		if now < l.excuse {
			return Updating, l.excuse
		}
		return Excused, 0
	case l.carried && l.since-l.base >= max(1, minReady):
		return Late, 0
	}
	return Updating, 0
}

// idle reports whether a Pod that was down before, and still is, waits for something else than its
// sidecars; and when it does.
func (l *look) idle(minReady, now int64) (is bool, at int64) {
	if l.was == podstate.WasUp || !l.carried || !l.written().Up {
		return false, 0
	}
	return now >= l.base+minReady, l.base + minReady
}

// counts reports whether what becomes of the Pod is the operator's to answer for.
func (l *look) counts() bool { return l.has && l.was != podstate.WasDown }

// ours reports whether the last write took the Pod down: it failed within ten minutes.
func (l *look) ours() bool { return l.counts() && !l.Record.Ready && l.since-l.base < tenMinutes }

// Was returns how the Pod is, as the record of a new write says.
func (p *Pod) Was(now int64) podstate.Was {
	l := p.look(now)
	switch {
	case p.Record.Ready:
		return podstate.WasUp
	case l.ours():
		return podstate.WasOurs
	}
	return podstate.WasDown
}

// IsCharged reports whether the Pod's place is to be kept for a while if it disappears. On a dead node
// it has none.
func (p *Pod) IsCharged(s *Strategy, now int64) bool {
	l := p.look(now)
	state, _ := l.state(s.minReady, now)
	return !p.Dead && l.counts() && (state == Updating || state == Late && p.Carries)
}

// current reports whether the Pod is to be judged by what it shows of the current content.
func (p *Pod) current() bool { return p.Carries || p.Sent != nil }

// isInPlace reports whether the classifier lets the Pod be updated in place.
func (p *Pod) isInPlace() bool {
	return p.Verdict.Way == inplace.Images || p.Verdict.Way == inplace.Resize && !p.Verdict.Moves
}

// CanBeWritten reports whether the Pod can be updated in place, or its hot upgrade be ended, now or
// later.
func (p *Pod) CanBeWritten() bool { return p.isInPlace() || p.Resets }

// Matters reports whether anything but the number of Pods depends on the Pod.
func (p *Pod) Matters() bool {
	return p.Written.At != 0 || p.Verdict.Way != inplace.Current || p.Trouble != 0 || p.Rest != nil
}
