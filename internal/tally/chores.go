package tally

import (
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Chore is a Pod that is to be written apart from the queue. It is not given out again
// until CheckChore.
type Chore struct {
	Pod *podstate.Record
	// FirstWord: the Pod has been updated for the first time, and has no condition
	// SidecarSetUpgradable that says something about any of its SidecarSets.
	FirstWord bool
}

// chores are Pods that are to be written apart from the queue.
type chores struct{ waiting, given map[*pod]struct{} }

func newChores() chores { return chores{map[*pod]struct{}{}, map[*pod]struct{}{}} }

// set says whether there is something to do for a Pod.
func (c *chores) set(p *pod, is bool) {
	delete(c.given, p)
	if !is {
		delete(c.waiting, p)
		return
	}
	c.waiting[p] = struct{}{}
}

// take returns at most so many Pods, which are not given out again until again.
func (c *chores) take(most int) (pods []*pod) {
	for p := range c.waiting {
		if len(pods) >= most {
			break
		}
		delete(c.waiting, p)
		c.given[p] = struct{}{}
		pods = append(pods, p)
	}
	return pods
}

// again lets a Pod be given out again. It returns false if there is nothing to do.
func (c *chores) again(p *pod) bool {
	if _, given := c.given[p]; !given {
		return false
	}
	c.set(p, true)
	return true
}

// takeChores takes at most so many. A condition can wait: it is not written as long as
// Pods are to be updated.
func (s *sidecarSet) takeChores(most int, updating bool) (due []Chore) {
	for _, p := range s.resets.take(most) {
		due = append(due, Chore{Pod: p.record})
	}
	if updating {
		return due
	}
	for _, p := range s.labels.take(most - len(due)) {
		due = append(due, Chore{Pod: p.record, FirstWord: s.isFirstWord(p.record)})
	}
	return due
}

// CheckChore lets a Pod be given out again, if there still is something to do.
func (t *Tally) CheckChore(sidecarSet string, namespace podstate.Namespace, name string) {
	if s, p := t.sets[sidecarSet], t.pod(namespace, name); s != nil && p != nil && (s.resets.again(p) || s.labels.again(p)) {
		t.stir(s)
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

// isFirstWord reports whether the condition is to say that a Pod can be updated, and
// says nothing yet.
func (s *sidecarSet) isFirstWord(r *podstate.Record) bool {
	now, _ := s.outlook(s.name, r, s.contents)
	for _, in := range r.Injections {
		if in.Upgradable != podstate.Unsaid {
			return false
		}
	}
	return now.Way == inplace.Current
}
