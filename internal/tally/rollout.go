package tally

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Current is the stored state of the current content of a SidecarSet.
type Current struct {
	// Program has that content.
	Program *inject.Program
	// Revision is the name of the ControllerRevision that records it.
	Revision string
	// Since is the time at which it became current.
	Since time.Time
	// InForce: the next Pod gets it.
	InForce bool
	// NotReadyBefore is how many Pods were not Ready when its rollout began, as the status says;
	// nil if it does not say.
	NotReadyBefore *int
}

// SetCurrent sets the stored state of the current content of a SidecarSet. No Pod is updated
// or evicted before this call, because a ControllerRevision must record the content that Pods
// get. SetCurrent does nothing if the content has changed meanwhile, or if the Program expects
// a ControllerRevision of another name: the Program that is compiled from the next status
// expects the right name. It reports whether it has taken the state over.
func (t *Tally) SetCurrent(sidecarSet string, c Current) bool {
	s, ok := t.sets[sidecarSet]
	recorded := contentID{c.Program.Hash, c.Revision}
	if !ok || contentIDOf(s.program) != recorded || s.program.Set.UID != c.Program.Set.UID {
		return false
	}
	if s.recorded != recorded {
		s.recorded = recorded
		t.markDue(s)
	}
	if s.rollout == nil {
		return true
	}
	s.rollout.SetContent(c.Program.Hash, c.NotReadyBefore)
	since := c.Since.Unix() + 1
	if s.mode != recreate.Never {
		s.rollout.SetRecreation(rollout.Recreation{Since: since, InForce: c.InForce})
		t.markDue(s)
	}
	if since != s.since {
		if s.since = since; s.mode != recreate.Never {
			t.recountAll(s)
		}
	}
	return true
}

// SetDifferences sets how recorded contents differ from the one with this hash without images. It
// returns false if that is not the current content.
func (t *Tally) SetDifferences(sidecarSet, hashWithoutImage string, d inplace.Differences) bool {
	s, ok := t.sets[sidecarSet]
	if !ok || s.program.HashWithoutImage != hashWithoutImage {
		return false
	}
	s.content = s.content.With(d)
	t.recountAll(s)
	return true
}

// recountAll counts all Pods that a SidecarSet selects.
func (t *Tally) recountAll(s *sidecarSet) {
	for _, ns := range t.namespaces {
		for _, p := range ns.pods {
			for _, m := range p.members {
				if m.set == s {
					t.recountOne(m)
				}
			}
		}
	}
}

// follow updates the rollout of a SidecarSet for one Pod that it selects.
func (t *Tally) follow(m *membership) {
	s, r := m.set, m.pod.record
	differs, reset, label := false, false, false
	switch now, is := t.outlook(m); {
	case s.rollout == nil || !is:
		t.unfollow(m, false)
	default:
		differs = m.count&inplace.Matched != 0 && s.content.Differs(r)
		reset = s.content.HandsOver(r)
		// a write of the condition would make an eviction fail
		label = s.labelled != nil && m.count&inplace.Matched != 0 && !(now.Evict && now.Way == inplace.Recreate) && s.isMislabelled(r, &now, t.now)
		if !m.inRollout {
			m.id, m.inRollout = s.rollout.Add(now), true
		} else if !s.rollout.Set(m.id, now, time.Unix(t.now, 0)) {
			break
		}
		t.alter(s)
		if now.Way != inplace.Current || now.Uninjected || now.Written.Counts(t.now) || s.rollout.Busy() {
			t.markDue(s)
		}
	}
	s.differing += step(m.differs, differs)
	m.differs = differs
	if reset || m.reset { // after each event, the new container may run
		s.resets.set(m.pod, reset)
		t.markDue(s)
	}
	if label != m.label {
		s.labels.set(m.pod, label)
		t.markDue(s)
	}
	m.reset, m.label = reset, label
}

// unfollow removes a Pod from the rollout of a SidecarSet. gone: the Pod has ended, or is about to.
func (t *Tally) unfollow(m *membership, gone bool) {
	s := m.set
	if m.inRollout && s.rollout != nil {
		s.rollout.Remove(m.id, gone, time.Unix(t.now, 0))
		t.alter(s)
		t.markDue(s)
	}
	m.inRollout = false
	s.differing += step(m.differs, false)
	delete(s.resets, m.pod)
	delete(s.labels, m.pod)
	m.differs, m.reset, m.label = false, false, false
}

// step returns the change of a number of Pods if one Pod changes from was to is.
func step(was, is bool) int {
	switch {
	case is && !was:
		return 1
	case was && !is:
		return -1
	}
	return 0
}

// outlook returns the state of a Pod in the rollout of a SidecarSet that selects it; is is false
// if the Pod has no part in it.
func (t *Tally) outlook(m *membership) (now rollout.Pod, is bool) {
	s, r := m.set, m.pod.record
	written := r.Written(s.name)
	now = rollout.Pod{
		Record: r, Written: written, Carries: s.content.Carries(r), Lost: m.pod.lost, Trouble: s.content.Trouble(r), Grace: r.Grace,
		Unfinished: s.content.CountsElsewhere(r, t.now) || written.Disturbed && s.content.HandsOver(r),
	}
	if m.count&inplace.Matched != 0 {
		verdict := s.content.Judge(r, inplace.Node{}, t.now)
		now.Way, now.Reason, now.Waits = verdict.Way, verdict.Reason, verdict.Waits
		if now.Way != inplace.Current {
			now.Evict, now.KeepReason = t.mayEvict(m, true, inplace.Recreate)
		}
		return now, true
	}
	now.Way, now.Uninjected = inplace.Recreate, true
	if m.count&inplace.Lacking != 0 {
		now.Evict, now.KeepReason = t.mayEvict(m, false, inplace.Recreate)
	}
	return now, now.Evict || written.Counts(t.now)
}

// mayEvict reports whether a Pod may be evicted if only a new Pod can have the content, and the
// reason if it may not. The reason is empty if the SidecarSet does not ask for that.
func (t *Tally) mayEvict(m *membership, injected bool, way inplace.Way) (bool, inplace.Reason) {
	s := m.set
	if s.mode == recreate.Never {
		return false, ""
	}
	q := recreate.Question{
		Mode: s.mode, Pod: m.pod.record, Injected: injected, Way: way, Recorded: records(m.pod.record, s.name),
		Since:              cmp.Or(s.since, math.MaxInt64), // the rollout waits until it is known
		ReplacementCurrent: true,
	}
	evictable, reason := recreate.Judge(q)
	if !evictable {
		return false, reason
	}
	programs := make([]*inject.Program, len(m.pod.members))
	for i, other := range m.pod.members {
		programs[i] = other.set.program
	}
	q.ReplacementCurrent = t.excluded.Eligible(m.pod.record.Namespace.Value(), m.pod.record.Facts.Mirror) &&
		inject.Renews(programs, s.label, m.pod.record.Labels.Labels())
	return recreate.Judge(q)
}

// records reports whether a Pod records a content of a SidecarSet.
func records(r *podstate.Record, sidecarSet podstate.Name) bool {
	in, listed := r.Injection(sidecarSet)
	return listed && in.Hash != 0
}

// renewsAlike reports whether two Programs of one SidecarSet are the same to inject.Renews. It
// does not look at the status, and not at the update strategy unless new Pods may get a
// recorded revision: these change often.
func renewsAlike(a, b *inject.Program) bool {
	specA, specB := a.Set.Spec, b.Set.Spec
	if specA.InjectionStrategy.Revision == nil && specB.InjectionStrategy.Revision == nil {
		specA.UpdateStrategy, specB.UpdateStrategy = appsv1beta1.SidecarSetUpdateStrategy{}, appsv1beta1.SidecarSetUpdateStrategy{}
	}
	return reflect.DeepEqual(a.Set.Annotations, b.Set.Annotations) && reflect.DeepEqual(specA, specB)
}

// MayEvict reports whether a Pod that Due returned for eviction still may be evicted, by a newer
// record. due is that of the Take. stuck: the Pod cannot be updated in place for a reason that the
// record does not show.
func MayEvict(due Due, r *podstate.Record, stuck bool, now time.Time) bool {
	if !r.Active || r.TooLarge || !due.Program.Selector.Matches(r.Labels.Labels()) {
		return false
	}
	mode, _ := recreate.ModeOf(due.Program.Set.Annotations)
	q := recreate.Question{
		Mode: mode, Pod: r, Since: due.Since, ReplacementCurrent: true, Way: inplace.Recreate,
		Recorded: records(r, due.Content.Name()),
	}
	if due.Content.Count(r, now.Unix())&inplace.Matched != 0 {
		q.Injected = true
		if verdict := due.Content.Judge(r, inplace.Node{}, now.Unix()); !stuck || verdict.Way == inplace.Current || verdict.Way == inplace.LeaveAlone {
			q.Way = verdict.Way
		}
	}
	evictable, _ := recreate.Judge(q)
	return evictable
}

// Due has the Pods of a SidecarSet that can be written now.
type Due struct {
	// Program is the content that the Pods are to get, and Content what they are compared with.
	Program *inject.Program
	Content *inplace.Content
	// Since is the first second after the content became current.
	Since int64
	// Updates are reserved until they are passed to Return.
	Updates []rollout.Take
	// Chores are Pods whose hot upgrade has to be ended, or whose condition
	// SidecarSetUpgradable has to be written.
	Chores []Chore
	// Again is when more may be due without an event; zero for never.
	Again time.Time
}

// Due takes up to most Pods. There are none for a SidecarSet that the snapshot does not have,
// and no Updates before SetCurrent.
func (t *Tally) Due(sidecarSet string, most int) Due {
	s, ok := t.sets[sidecarSet]
	if !ok || s.rollout == nil {
		return Due{}
	}
	due := Due{Program: s.program, Content: s.content, Since: s.since}
	if s.isRecorded() {
		due.Updates, due.Again = s.rollout.Next(most, t.watched, time.Unix(t.now, 0))
	}
	if len(due.Updates) > 0 {
		t.alter(s)
	}
	due.Chores = s.takeChores(most-len(due.Updates), len(due.Updates) > 0 || !s.isRecorded(), t.now)
	return due
}

// Return ends the reservation of a Take. More Pods may be due afterwards.
func (t *Tally) Return(sidecarSet string, take rollout.Take, result rollout.Result) {
	if s, ok := t.sets[sidecarSet]; ok && s.rollout != nil {
		s.rollout.Return(take, result, time.Unix(t.now, 0))
		t.markDue(s)
		t.alter(s)
	}
}

// Overdue returns up to most Pods that count and have not been Ready for a while. Their Nodes may
// be lost.
func (t *Tally) Overdue(sidecarSet string, most int) []*podstate.Record {
	if s, ok := t.sets[sidecarSet]; ok && s.rollout != nil {
		return s.rollout.Overdue(most, time.Unix(t.now, 0))
	}
	return nil
}

// Lost is called if the Node of a Pod is not ready or gone. Until the Pod's next event,
// the Pod does not count against a budget.
func (t *Tally) Lost(namespace podstate.Namespace, name string, uid types.UID) {
	if p := t.pod(namespace, name); p != nil && p.record.UID == uid && !p.lost {
		p.lost = true
		t.recount(p)
	}
}

// Watched is called when the Pod watch has delivered all events up to a
// resourceVersion, and Set or Delete was called for each.
func (t *Tally) Watched(version uint64) { t.watched = max(t.watched, version) }

// DueChanged calls report with the name of each SidecarSet for which more Pods may be
// due than at the last call.
func (t *Tally) DueChanged(report func(sidecarSet string)) {
	for i, s := range t.dueChanged {
		t.dueChanged[i] = nil
		s.dueChanged = false
		if !s.removed {
			report(s.label)
		}
	}
	t.dueChanged = t.dueChanged[:0]
}

// Unrecorded calls report with the name of each SidecarSet that has got another content since
// the last call, so that the caller calls SetCurrent for it.
func (t *Tally) Unrecorded(report func(sidecarSet string)) {
	for _, s := range t.unrecorded {
		if !s.removed && !s.isRecorded() {
			report(s.label)
		}
	}
	t.unrecorded = nil
}

func (t *Tally) markDue(s *sidecarSet) {
	if !s.dueChanged {
		s.dueChanged = true
		t.dueChanged = append(t.dueChanged, s)
	}
}

// Settle tells the time, and counts the Pods again that have changed by now without an event.
func (t *Tally) Settle(now time.Time) {
	t.now = now.Unix()
	for p, at := range t.settling {
		if t.now >= at {
			t.recount(p)
		}
	}
}

// Chore is a Pod that has to be written independently of the rollout. Due does not return
// it again before CheckChore is called.
type Chore struct {
	Pod *podstate.Record
	// FirstWord: the Pod has been updated for the first time, and has no condition
	// SidecarSetUpgradable with a value for one of its SidecarSets.
	FirstWord bool
}

// chores are Pods that have to be written independently of the rollout; true for those that
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

// takeChores takes up to most chores. Conditions are not urgent: they wait while Pods
// are updated.
func (s *sidecarSet) takeChores(most int, updating bool, now int64) (due []Chore) {
	for _, p := range s.resets.take(most) {
		due = append(due, Chore{Pod: p.record})
	}
	if updating {
		return due
	}
	for _, p := range s.labels.take(most - len(due)) {
		due = append(due, Chore{Pod: p.record, FirstWord: s.isFirstWord(p.record, now)})
	}
	return due
}

// CheckChore makes a Pod that Due returned as a chore available to Due again, if the
// chore is still needed.
func (t *Tally) CheckChore(sidecarSet string, namespace podstate.Namespace, name string) {
	s, p := t.sets[sidecarSet], t.pod(namespace, name)
	if s == nil || p == nil {
		return
	}
	for _, c := range []chores{s.resets, s.labels} {
		if c[p] {
			c[p] = false
			t.markDue(s)
		}
	}
}

// isMislabelled reports whether the condition SidecarSetUpgradable of a Pod is to be written. A
// Pod that is current needs none until it has been updated in place, and gets it when it does not
// count, so that no update waits for another write.
func (s *sidecarSet) isMislabelled(r *podstate.Record, p *rollout.Pod, now int64) bool {
	in, _ := r.Injection(s.name)
	switch p.Way {
	case inplace.Current:
		updated := in.Upgradable == podstate.Unsaid && p.Written.At != 0
		return in.Upgradable == podstate.NotUpgradable || updated && !p.Unfinished && !p.Written.Counts(now)
	case inplace.Recreate:
		return in.Upgradable != podstate.NotUpgradable && s.labelled.Matches(r.Labels.Labels())
	}
	return false
}

// isFirstWord reports whether the condition has to be set to true, and has no value yet.
func (s *sidecarSet) isFirstWord(r *podstate.Record, now int64) bool {
	said := slices.ContainsFunc(r.Injections, func(in podstate.Injection) bool { return in.Upgradable != podstate.Unsaid })
	return !said && s.content.Judge(r, inplace.Node{}, now).Way == inplace.Current
}
