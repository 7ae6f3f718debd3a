package tally

import (
	"maps"

	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

// State is what is known of one SidecarSet's Pods.
type State struct {
	// Known is false if the current snapshot does not have the SidecarSet. The other
	// fields are then zero, except that the Limit of Rollout is NotUpdate.
	Known bool
	Count
	Groups Groups
	// Revisions counts matched Pods by the name of the ControllerRevision that they
	// record. Pods that record none are not in it.
	Revisions map[podstate.Name]RevisionCount
	// Rollout is the state of the rollout. Without a queue, its Limit is NotUpdate.
	Rollout    rollout.Report
	Recreation Recreation
	// Contents is nil if SetContents has not been called for the current content.
	// Differs: a Pod records a content that differs in more than images.
	Contents Contents
	Differs  bool
}

// State returns what is known of a SidecarSet's Pods. It costs as much as it returns.
func (t *Tally) State(sidecarSet string) State {
	state := State{Rollout: rollout.Report{Limit: rollout.NotUpdate}}
	s, ok := t.sets[sidecarSet]
	if !ok {
		return state
	}
	state.Known, state.Count = true, Count{s.counters, s.program}
	state.Groups = Groups{Uninjected: s.groupsOf(older, firstTrouble), Failing: s.groupsOf(firstTrouble, concerns)}
	state.Revisions, state.Contents, state.Differs = maps.Clone(s.revisions), s.contents, s.differing > 0
	if s.queue != nil {
		state.Rollout = s.queue.Report()
	}
	if s.mode != recreate.Never {
		state.Recreation = Recreation{Begun: s.begun, Stopped: s.ledger.Stopped(), Failed: s.failed, Uninjected: s.strays}
	}
	return state
}
