package tracker

import (
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Current is the stored state of the current revision of a SidecarSet.
type Current struct {
	// Compiled has that revision.
	Compiled *inject.Compiled
	// Revision is the name of the ControllerRevision that records it; "" if none does.
	Revision string
	// Since is the time at which it became current.
	Since time.Time
	// Status is that of its rollout, as the API server has it.
	Status rollout.Status
	// NewPods is the name of the ControllerRevision that all new Pods get in place of the current one;
	// "": they get the current one.
	NewPods string
	// Unstable: it is not the stable revision.
	Unstable bool
}

// Counters are the numbers of one SidecarSet's status.
type Counters struct {
	// Matched Pods are selected, active, have the SidecarSet in their injected
	// list and contain all its sidecars.
	Matched int32
	// Updated Pods are matched and have the current hash.
	Updated int32
	// Ready Pods are matched and ready, and no update of them is under way.
	Ready int32
	// UpdatedReady Pods are both Updated and Ready.
	UpdatedReady int32
	// Uninjected Pods are selected and active and lack a sidecar, or do not have
	// the SidecarSet in their injected list, although admission would have
	// injected it. Native sidecars count among the sidecars.
	Uninjected int32
}

// RevisionCount counts the matched Pods that record one ControllerRevision.
type RevisionCount struct{ Pods, Ready int32 }

// Pass is what is known of the Pods of a SidecarSet, and decided about them. It shares nothing that
// changes with the Tracker.
type Pass struct {
	Counters
	// Uninjected are the Pods that Counters.Uninjected counts, by why they are not injected.
	Uninjected []appsv1beta1.SidecarSetPodGroup
	// Revisions counts matched Pods by the name of the ControllerRevision that they
	// record. Pods that record none are not in it.
	Revisions map[podstate.Name]RevisionCount
	// Differs: a Pod records a revision that differs in more than images from Revision. Undecided:
	// nothing is decided before SetDifferences says how.
	Differs, Undecided bool
	Revision           *inplace.Revision
	// Plan is that of the rollout, without Pods to write; nil if nothing is decided.
	Plan *rollout.Plan
	// Write are the Pods of the plan. Done is to be called for each.
	Write []WorkItem
	// Busy: the next event may let Pods be written.
	Busy bool
}

// Pass looks at all Pods of a SidecarSet. It returns false if the compiled SidecarSet is not that of the
// snapshot. No Pod is written unless a ControllerRevision records it under the name that
// the compiled SidecarSet expects: the compiled SidecarSet that is compiled from the next status expects the right name.
func (t *Tracker) Pass(current Current) (p Pass, ok bool) {
	s, known := t.sets[current.Compiled.Name()]
	if !known || s.compiled != current.Compiled {
		return Pass{}, false
	}
	s.setNewPods(podstate.MakeName(current.NewPods))
	pods := t.count(s, &p)
	if current.Revision == "" || current.Revision != s.compiled.Revision() {
		return p, true
	}
	if p.Undecided = p.Differs && s.revision.Differences() == nil; p.Undecided {
		return p, true
	}
	s.takeOver(current, t.now)
	plan := rollout.Decide(rollout.Input{
		Strategy: s.strategy, Status: s.status, Stored: s.status.IsStoredIn(s.saved, t.now), NewPodsGetEarlier: s.newPods != 0,
		Unstable: current.Unstable, Now: t.now,
	}, pods)
	s.available = plan.Available
	p.Write = t.take(s, &plan)
	if len(p.Write) == 0 { // nothing begins
		plan.Status.NotReadyBefore, plan.Status.Started = s.status.NotReadyBefore, s.status.Started
	}
	s.status = plan.Status
	p.Busy = len(plan.Write)+len(plan.Reset)+len(p.Write) > 0 || plan.Updating > 0 || plan.Outdated > plan.Kept
	switch plan.Rule {
	case rollout.Paused, rollout.NotUpdate, rollout.Invalid:
		p.Busy = false
	}
	plan.Write, plan.Reset = nil, nil
	if plan.Who != nil {
		plan.Who = new(*plan.Who)
	}
	p.Plan = &plan
	return p, true
}

// count counts the Pods of a SidecarSet, and returns the matched ones, until the next call.
func (t *Tracker) count(s *sidecarSet, p *Pass) []*rollout.Pod {
	pods, uninjected, last := t.matched[:0], rollout.Groups{}, &RevisionCount{}
	t.mislabelled = t.mislabelled[:0]
	lastName, revisions := podstate.Name(0), map[podstate.Name]*RevisionCount{0: last}
	one := func(is bool) int32 {
		if is {
			return 1
		}
		return 0
	}
	for _, m := range s.members {
		if m.counts.is&inplace.Matched == 0 {
			if m.counts.is&inplace.Uninjected != 0 {
				p.Counters.Uninjected++
				uninjected.Add(inplace.Reason(s.revision.WhyUninjected(m.Summary)), "", m.Summary)
			}
			continue
		}
		updated := m.counts.is&inplace.Updated != 0
		ready := m.counts.is&inplace.Ready != 0 && (m.Written.At == 0 || m.Written.IsCarriedOut(t.now))
		p.Matched++
		p.Updated += one(updated)
		p.Ready += one(ready)
		p.UpdatedReady += one(updated && ready)
		p.Differs = p.Differs || m.counts.differs
		if name := m.counts.revision; name != lastName {
			if lastName, last = name, revisions[name]; last == nil {
				last = &RevisionCount{}
				revisions[name] = last
			}
		}
		last.Pods++
		last.Ready += one(ready)
		if m.sent != nil {
			t.deliver(m)
		}
		if m.Dead = false; !m.counts.ready {
			m.Dead = m.pod.isDead(t)
		}
		if m.mislabelled && (m.Verdict.Method != inplace.Current || m.Written.At == 0 || m.Written.IsCarriedOut(t.now)) {
			t.mislabelled = append(t.mislabelled, m)
		}
		pods = append(pods, &m.Pod)
	}
	t.matched = pods
	delete(revisions, 0)
	p.Revision, p.Uninjected, p.Revisions = s.revision, uninjected.List(), make(map[podstate.Name]RevisionCount, len(revisions))
	for name, n := range revisions {
		p.Revisions[name] = *n
	}
	return pods
}

// takeOver begins or continues the rollout of the current revision.
func (s *sidecarSet) takeOver(current Current, now int64) {
	if recorded := revisionIDOf(s.compiled); s.recorded != recorded || s.since == 0 {
		s.recorded, s.status = recorded, current.Status.Losing(s.status, now)
	}
	s.saved, s.since = current.Status, current.Since.Unix()+1
}
