package rollout

import (
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Pod is one Pod that has a SidecarSet. Decide changes none.
type Pod struct {
	Summary *podstate.Summary
	// Verdict is how the Pod can get the current revision.
	Verdict inplace.Verdict
	// Updated: the Pod has the current revision, or its kubelet is resizing it to that.
	Updated bool
	// AsNew: the Pod has the revision that new Pods get, which is not the current one.
	AsNew bool
	// Resets: a hot upgrade can be ended.
	Resets bool
	// Dead: the Pod is not Ready, and its node is not ready or gone.
	Dead bool
	// Written is the operator's last write of the Pod for the SidecarSet, with the revision that the
	// Pod has.
	Written podstate.Written
	// Undone is the operator's last write of the Pod with the current revision. Another program has taken
	// it back if the Pod does not have that revision.
	Undone podstate.Undone
	// Trouble is why a sidecar does not run, and Sidecar its name.
	Trouble podstate.Trouble
	Sidecar string
	// Traits are those of the Pod's labels; nil if the strategy does not look at labels.
	Traits *Traits
	// Sent is the operator's own write that is under way, or whose event has not come yet; nil if
	// there is none. The Pod counts as written.
	Sent *podstate.Written
	// Backoff keeps the Pod from being written; nil if nothing does. It stays after its end, until the
	// Pod is written: such a Pod comes last.
	Backoff *Backoff
}

// Backoff is why a Pod is not written before a time: its last write was refused, or undone by another
// program. Without a Reason, the watch has not shown the Pod's present state yet.
type Backoff struct {
	Until   int64
	Reason  inplace.Reason
	Message string
}

// State is what a Pod shows of the revision that it has.
type State uint8

// The states.
const (
	// None: the Pod was not written with this revision.
	None State = iota
	// Updating: the write is not carried out, or the Pod is not Ready since.
	Updating
	// NotYetAvailable: the Pod is Ready with the revision, and not for long enough.
	NotYetAvailable
	// Available: it is.
	Available
	// FailedAfterUpdate: the Pod was available with the revision, and is not Ready any more.
	FailedAfterUpdate
	// TimedOut: the Pod says nothing about the revision, and has had ten minutes.
	TimedOut
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

// look is a Pod at a time.
type look struct {
	*Pod
	before    podstate.StateBefore
	has       bool  // a record
	carried   bool  // its write is carried out
	at, since int64 // when it was written, and when the condition Ready last changed
	base      int64 // when the Pod began to show something
	timeout   int64 // when it times out
}

func (p *Pod) look(now int64) look {
	w := p.written()
	l := look{Pod: p, before: w.StateBefore, has: w.At != 0, carried: w.IsCarriedOut(now), at: w.SentAt(now)}
	l.since = l.nodeTime(p.Summary.Since, now)
	l.base, l.timeout = l.at, l.at+tenMinutes
	if l.carried {
		l.base = max(l.at, l.nodeTime(w.Started, now))
	}
	return l
}

// nodeTime bounds a time of another machine's clock: one of the future counts as now. A clock that is
// ahead by more than that delays nothing for more than ten minutes after the write.
func (l *look) nodeTime(t uint32, now int64) int64 {
	at := int64(t)
	if at > now+podstate.MaxClockSkew {
		at = max(l.at, l.Summary.Order.Created) + tenMinutes
	}
	return min(at, now)
}

// state returns the state, and when it changes by itself; 0: it does not.
func (l *look) state(minReady, now int64) (State, int64) {
	switch ready := l.Summary.Ready; {
	case !l.has:
		return None, 0
	case l.Dead:
		return TimedOut, 0
	case ready && l.carried:
		// A Pod that fails and comes back has to be Ready for as long as that took.
		if end := max(max(l.base, l.since)+minReady, min(2*l.since-l.base, l.base+tenMinutes)); now < end {
			return NotYetAvailable, end
		}
		return Available, 0
	case ready, l.before != podstate.WasReady: // its node does not act; or it was not Ready before
		if now < l.timeout {
			return Updating, l.timeout
		}
		return TimedOut, 0
	case l.carried && l.since-l.base >= max(1, minReady):
		return FailedAfterUpdate, 0
	}
	return Updating, 0
}

// idle reports whether a Pod that was not Ready before, and still is not, waits for something else than
// its sidecars; and when it does.
func (l *look) idle(minReady, now int64) (is bool, at int64) {
	if l.before == podstate.WasReady || !l.carried || !l.written().Up {
		return false, 0
	}
	return now >= l.base+minReady, l.base + minReady
}

// counts reports whether what becomes of the Pod is the operator's to answer for.
func (l *look) counts() bool { return l.has && l.before != podstate.WasNotReady }

// byUpdate reports whether the last write took the Pod down: it failed within ten minutes.
func (l *look) byUpdate() bool {
	return l.counts() && !l.Summary.Ready && l.since-l.base < tenMinutes
}

// lost reports whether the Pod's node died within ten minutes after the update, less than ten minutes
// ago; and until when that counts.
func (l *look) lost(now int64) (is bool, until int64) {
	until = max(l.base, l.since) + tenMinutes
	return l.Dead && l.byUpdate() && now < until, until
}

// fails reports whether a Pod that is updating shows that something is wrong: a sidecar fails, or the
// Pod was Ready and is not any more, or it should be Ready by now. That the kubelet has stopped a sidecar to
// start it again is no failure, unless that takes long.
func (l *look) fails(minReady, now int64) bool {
	patience := max(1, minReady)
	switch {
	case l.Summary.Ready:
		return false
	case l.carried:
		return l.Trouble.IsFailure() || l.since > l.base || now >= l.base+patience
	}
	return l.Trouble.IsFailure() && !(l.Trouble.HasEnded() && now < l.since+patience)
}

// undone returns the write that was taken back, as it counts; ok is false if there is none.
func (p *Pod) undone(now int64) (l look, ok bool) {
	if !p.isUndone() {
		return look{}, false
	}
	at := podstate.Written{At: p.Undone.At}.SentAt(now)
	return look{Pod: p, before: p.Undone.StateBefore, has: true, at: at, timeout: at + tenMinutes}, true
}

// isUndone reports whether another program has taken back the current revision.
func (p *Pod) isUndone() bool { return p.Undone.At != 0 && !p.current() }

// isUnassigned reports whether the Pod has no node, so that it runs nothing.
func (p *Pod) isUnassigned() bool { return !p.Summary.Order.Assigned && !p.Summary.Ready }

// isNew reports whether the Pod was created with what new Pods get, and is not Ready yet; and until when
// that counts.
func (l *look) isNew(now int64) (is bool, until int64) {
	created := l.Summary.Order.Created
	until = created + tenMinutes
	return l.AsNew && !l.Summary.Ready && !l.has && !l.isUndone() && !l.Trouble.IsFailure() && created <= now+podstate.MaxClockSkew && now < until, until
}

// comesLast reports whether the last write of the Pod was refused or undone.
func (p *Pod) comesLast() bool {
	return p.Backoff != nil && p.Backoff.Reason != "" || p.isUndone()
}

// StateBefore returns how the Pod is, as the record of a new write says.
func (p *Pod) StateBefore(now int64) podstate.StateBefore {
	l := p.look(now)
	switch {
	case p.Summary.Ready:
		return podstate.WasReady
	case l.byUpdate():
		return podstate.WasNotReadyByUpdate
	}
	return podstate.WasNotReady
}

// current reports whether the Pod is to be judged by what it shows of the current revision.
func (p *Pod) current() bool { return p.Updated || p.Sent != nil }

// isInPlace reports whether the classifier lets the Pod be updated in place.
func (p *Pod) isInPlace() bool {
	return p.Verdict.Method == inplace.Images || p.Verdict.Method == inplace.Resize && !p.Verdict.Moves
}

// CanBeWritten reports whether the Pod can be updated in place, or its hot upgrade be ended, now or
// later.
func (p *Pod) CanBeWritten() bool { return p.isInPlace() || p.Resets }

// Matters reports whether anything but the number of Pods depends on the Pod.
func (p *Pod) Matters() bool {
	return p.Written.At != 0 || p.Verdict.Method != inplace.Current || p.Trouble != 0 || p.Backoff != nil
}
