package tally

import (
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Chore is a Pod that has to be written independently of the queue. Due does not return
// it again before CheckChore is called.
type Chore struct {
	Pod *podstate.Record
	// FirstWord: the Pod has been updated for the first time, and has no condition
	// SidecarSetUpgradable with a value for one of its SidecarSets.
	FirstWord bool
	// Over: the Pod was back from its last update for long. See inject.UpdateInput.
	Over bool
}

// chores are Pods that have to be written independently of the queue; true for those that
// take has returned.
type chores map[*pod]bool

// set adds a Pod to the chores, or removes it.
func (c chores) set(p *pod, is bool) {
	if is {
		c[p] = false
	} else {
		delete(c, p)
	}
}

// take returns up to most Pods. It does not return them again before again is called.
func (c chores) take(most int) (pods []*pod) {
	for p, taken := range c {
		if len(pods) >= most {
			break
		}
		if !taken {
			c[p] = true
			pods = append(pods, p)
		}
	}
	return pods
}

// again makes a Pod available to take again. It returns false if the Pod was not taken.
func (c chores) again(p *pod) bool {
	if !c[p] {
		return false
	}
	c[p] = false
	return true
}

// takeChores takes up to most chores. Conditions are not urgent: they wait while Pods
// are updated.
func (s *sidecarSet) takeChores(most int, updating bool) (due []Chore) {
	for _, p := range s.resets.take(most) {
		due = append(due, Chore{Pod: p.record, Over: p.shareOf(s).over})
	}
	if updating {
		return due
	}
	for _, p := range s.labels.take(most - len(due)) {
		due = append(due, Chore{Pod: p.record, FirstWord: s.isFirstWord(p.record)})
	}
	return due
}

// CheckChore makes a Pod that Due returned as a chore available to Due again, if the
// chore is still needed.
func (t *Tally) CheckChore(sidecarSet string, namespace podstate.Namespace, name string) {
	if s, p := t.sets[sidecarSet], t.pod(namespace, name); s != nil && p != nil && (s.resets.again(p) || s.labels.again(p)) {
		t.markDue(s)
	}
}

// mislabelledIn reports whether the condition SidecarSetUpgradable of a Pod is to be
// written. A Pod that is current needs none until it has been updated in place, and
// gets it when it is not in flight, so that no update waits for another write.
func (s *sidecarSet) mislabelledIn(r *podstate.Record, now rollout.Pod) bool {
	in, _ := r.Injection(s.name)
	switch now.Way {
	case inplace.Current:
		updated := in.Upgradable == podstate.Unsaid && r.Progress(s.name).State() != inplace.Unmarked
		return in.Upgradable == podstate.NotUpgradable || updated && !now.InFlight && !now.InTransition
	case inplace.Recreate:
		return in.Upgradable != podstate.NotUpgradable && s.labelled.Matches(r.Labels.Labels())
	}
	return false
}

// isFirstWord reports whether the condition has to be set to true, and has no value yet.
func (s *sidecarSet) isFirstWord(r *podstate.Record) bool {
	now, _ := s.outlook(r, false)
	for _, in := range r.Injections {
		if in.Upgradable != podstate.Unsaid {
			return false
		}
	}
	return now.Way == inplace.Current
}
