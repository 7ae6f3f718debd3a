package tally

import (
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

// rollouts are the parts of a sidecarSet that concern updates of running Pods.
type rollouts struct {
	queue *rollout.Queue // nil until updateStrategy.type is first RollingUpdate
	// back is the number of Pods that carry the current content, are ready, and are not
	// in flight.
	back int
	// resets are Pods whose hot upgrade has to be ended, and labels those whose
	// condition SidecarSetUpgradable has a wrong value.
	resets, labels chores
	// down are Pods that are in flight and not ready; true for those that were so at
	// the last call of Overdue.
	down map[*pod]bool
	// labelled selects the Pods whose condition may be set to false, nil for none.
	labelled labels.Selector
	// contents is nil as long as it is not known.
	contents Contents
	// differing is the number of Pods whose recorded content differs in more than images.
	differing int
	// off: updateStrategy.type is NotUpdate.
	off bool
	// recorded is the last content that SetCurrent was called for.
	recorded contentID
	recreation
	dueChanged bool
}

// part is the state of a Pod in the rollout of one SidecarSet.
type part struct {
	moves bool // it is outdated, or in flight
	back  bool
	reset bool // its hot upgrade is to be ended
	label bool // its condition is to be written
	down  bool // in flight, and not ready
	stray bool // it is in the queue, and does not carry the SidecarSet
	// differs: it records a content that differs in more than images.
	differs bool
}

// Due has the Pods of a SidecarSet that can be written now.
type Due struct {
	// Program is the content that the Pods are to get.
	Program *inject.Program
	// Contents is about this Program.
	Contents Contents
	// Since is the argument since of MayEvict.
	Since int64
	// Updates are reserved in the queue until they are returned to it. For those to be
	// evicted, the caller also calls Evicted or NotEvicted.
	Updates []rollout.Take
	// Chores are Pods whose hot upgrade has to be ended, or whose condition
	// SidecarSetUpgradable has to be written.
	Chores []Chore
}

// Due takes up to most Pods. There are none for a SidecarSet that the snapshot does not have,
// and no Updates before SetCurrent.
func (t *Tally) Due(sidecarSet string, most int) Due {
	s, ok := t.sets[sidecarSet]
	if !ok || s.queue == nil {
		return Due{}
	}
	due := Due{Program: s.program, Contents: s.contents, Since: s.since}
	if s.isRecorded() && !s.adopts { // replacements that are not known yet may use up the budget
		due.Updates = s.queue.Next(most, t.watched)
	}
	t.begin(s, due.Updates)
	if len(due.Updates) > 0 {
		t.alter(s)
	}
	due.Chores = s.takeChores(most-len(due.Updates), len(due.Updates) > 0 || !s.isRecorded())
	return due
}

// contentID identifies a content and its ControllerRevision. Contents that differ in
// volumes alone have one hash and two ControllerRevisions.
type contentID struct{ hash, revision string }

func contentIDOf(p *inject.Program) contentID { return contentID{p.Hash, p.Revision()} }

// isRecorded reports whether a ControllerRevision records the content of the Program, under
// the name that Pods with this content will record.
func (s *sidecarSet) isRecorded() bool { return s.recorded == contentIDOf(s.program) }

// WithQueue runs f on the queue of a SidecarSet, if it has one. More Pods may be due
// afterwards.
func (t *Tally) WithQueue(sidecarSet string, f func(*rollout.Queue)) {
	if s, ok := t.sets[sidecarSet]; ok && s.queue != nil {
		f(s.queue)
		t.markDue(s)
		t.alter(s)
	}
}

// Overdue returns up to most Pods that are in flight and not ready, and were so at
// the last call, or have been lost before. Their Nodes may be lost.
func (t *Tally) Overdue(sidecarSet string, most int) []*podstate.Record {
	s, ok := t.sets[sidecarSet]
	if !ok {
		return nil
	}
	var overdue []*podstate.Record
	for p, before := range s.down {
		if before && len(overdue) < most {
			overdue = append(overdue, p.record)
		}
		s.down[p] = true
	}
	return overdue
}

// Lost is called if the Node of a Pod is not ready or gone. Until the Pod's next event,
// the Pod does not count against a budget.
func (t *Tally) Lost(namespace podstate.Namespace, name string, uid types.UID) {
	if p := t.pod(namespace, name); p != nil && p.record.UID == uid && !p.lost {
		p.lost, p.suspect = true, true
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

// Settle updates the Pods whose state has changed by now without an event.
func (t *Tally) Settle(now time.Time) {
	t.tick(now)
	for p := range t.settling {
		r := p.record.At(now)
		if r == p.record {
			continue
		}
		p.record = r
		t.noteSettling(p)
		t.recount(p)
	}
}

// noteSettling records whether the state of a Pod will change without an event.
func (t *Tally) noteSettling(p *pod) {
	if _, settles := p.record.SettlesAt(); settles {
		t.settling[p] = struct{}{}
	} else if len(t.settling) > 0 {
		delete(t.settling, p)
	}
}

// setRollout sets the update strategy and content of a Program. It returns true if the
// caller has to recount all Pods.
func (t *Tally) setRollout(s *sidecarSet, program *inject.Program) (again bool) {
	update := &program.Set.Spec.UpdateStrategy
	off, wasOff, labelled := update.Type == appsv1beta1.NotUpdateSidecarSetStrategyType, s.off, s.labelled
	s.off = off
	switch {
	case off || update.Paused:
		s.labelled = nil
	case update.Selector == nil:
		s.labelled = labels.Everything()
	default:
		s.labelled, _ = metav1.LabelSelectorAsSelector(update.Selector) // nil if it cannot be used
	}
	if s.queue == nil {
		if off {
			return false
		}
		s.queue, again = rollout.NewQueue(), true
	}
	t.recounted(s)
	again = s.queue.SetStrategy(rollout.NewStrategy(program.Set)) || again
	s.queue.SetContent(program.Hash)
	again = t.setRecreation(s, program) || again
	t.markDue(s)
	return again || off != wasOff || !reflect.DeepEqual(labelled, s.labelled)
}

// follow updates a SidecarSet's queue for a Pod that it selects.
func (t *Tally) follow(p *pod, sh *share) {
	s, r := sh.set, p.record
	switch {
	case s.queue == nil:
		return
	case sh.verdict&matched == 0:
		t.observe(p, sh, r.Ready, false)
		t.followStray(p, sh)
		return
	}
	now, _ := s.outlook(r, sh.over)
	t.observe(p, sh, now.Ready && !now.InFlight && !now.InTransition, now.Way == inplace.Current)
	now.InFlight = (now.InFlight || sh.away) && !p.lost
	label := s.labelled != nil && s.mislabelledIn(r, now)
	if s.mode != recreate.Never {
		t.consider(p, sh, &now)
	}
	moves := now.Way != inplace.Current || now.InFlight
	is := part{
		moves: moves,
		back:  !moves && now.Ready && !now.InTransition,
		reset: !s.off && s.handsOver(r),
		label: label && !now.Evictable, // a write of ours would make the eviction fail
		down:  now.InFlight && !now.Ready,

		differs: s.differsIn(r),
	}
	t.enter(sh, now, is)
}

// enter puts a Pod into a SidecarSet's queue.
func (t *Tally) enter(sh *share, now rollout.Pod, is part) {
	if sh.set.queue.Set(now) || is != sh.part {
		t.alter(sh.set)
	}
	if is.moves || sh.moves || is.reset || is.label && !sh.label {
		t.markDue(sh.set)
	}
	t.count(sh, is)
}

// unfollow removes a Pod from a SidecarSet's queue.
func (t *Tally) unfollow(p *pod, sh *share) {
	if sh.set.queue == nil {
		return
	}
	sh.set.queue.Remove(p.record.UID)
	delete(sh.set.stuck, p)
	if sh.moves {
		t.markDue(sh.set)
	}
	t.count(sh, part{})
}

// count changes the numbers of a SidecarSet after the state of one Pod has changed.
func (t *Tally) count(sh *share, to part) {
	s, p, from := sh.set, sh.pod, sh.part
	sh.part = to
	s.back += step(from.back, to.back)
	s.strays += step(from.stray, to.stray)
	s.differing += step(from.differs, to.differs)
	switch {
	case to.down && !from.down:
		s.down[p] = p.suspect
	case from.down && !to.down:
		delete(s.down, p)
	}
	if to.reset || from.reset { // after each event, the new container may run
		s.resets.set(p, to.reset)
	}
	if to.label != from.label {
		s.labels.set(p, to.label)
	}
	if to.back != from.back || to.stray != from.stray {
		t.recounted(s)
	}
}

// recounted passes the current numbers of Pods to a SidecarSet's queue. Limits that are
// percentages may then allow more updates.
func (t *Tally) recounted(s *sidecarSet) {
	if s.queue != nil && s.queue.SetCounts(int(s.counters.Matched)+s.strays, s.back) {
		t.markDue(s)
	}
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

// outlook returns the state of a matched Pod in the rollout of a content, and the kinds
// of containers that an update changes. over is that of the Pod's share.
func (s *sidecarSet) outlook(r *podstate.Record, over bool) (now rollout.Pod, changed inplace.Kinds) {
	in, _ := r.Injection(s.name)
	q := inplace.Question{
		Facts:            r.Facts,
		SameHash:         in.Hash == s.hash,
		SameWithoutImage: in.HashWithoutImage == s.hashWithoutImage,
		RevisionUnknown:  in.HashWithoutImage == 0,
		Difference:       s.contents.Of(s.name, r),
		Uncompared:       s.contents == nil,
		Resizing:         in.Resize != inplace.NoResize,
		RecordUnreadable: r.RecordUnreadable,
	}
	waits := false
	if !q.SameHash {
		q.Changed, waits = s.changesIn(r)
	}
	verdict := inplace.Judge(q)
	if verdict.Way == inplace.Resize { // the kubelet carries it out, or the contents are not compared yet
		waits = waits || in.Resize == inplace.ResizeMoving || !q.SameHash && !q.SameWithoutImage && q.Uncompared
	}
	return rollout.Pod{
		UID: r.UID, Namespace: r.Namespace, Name: r.Name, Labels: r.Labels,
		Order: r.Order, Way: verdict.Way, Reason: verdict.Reason, Resize: in.Resize,
		Ready:        r.Ready,
		InFlight:     !over && r.Progress(s.name).InFlight() || q.SameHash && s.disturbedElsewhere(r) || r.Progress(s.name).WasReady && s.handsOver(r),
		Over:         over,
		Settling:     !over && r.Progress(s.name).State() == inplace.Settling,
		InTransition: waits,
	}, q.Changed
}

// changesIn returns the kinds of the containers that have another image than they are to
// get, and whether the kubelet has not acted on an earlier update, which another operator
// made.
func (s *sidecarSet) changesIn(r *podstate.Record) (changed inplace.Kinds, waits bool) {
	for _, sidecars := range [...][]sidecar{s.sidecars, s.plain} {
		for i := range sidecars {
			sidecar := &sidecars[i]
			working, _ := r.Working(sidecar.name)
			for _, name := range sidecar.containers {
				waits = waits || r.Waits(s.name, name)
				idle := sidecar.hot() && name != working
				if c, ok := r.Container(name); ok && !idle && c.Image != sidecar.image {
					changed = changed.With(c.Kind)
				}
			}
		}
	}
	return changed, waits
}

// disturbedElsewhere reports whether a Pod is in flight from an update by another
// operator, by OpenKruise's rule. A Pod that is ready is waited for no longer than its
// kubelet needs.
func (s *sidecarSet) disturbedElsewhere(r *podstate.Record) bool {
	if r.Outwaited && r.Ready {
		return slices.ContainsFunc(s.sidecars, func(c sidecar) bool { return c.upgradingIn(r) })
	}
	return r.UpdatedElsewhere(s.name) && !(r.Ready && s.settledIn(r))
}

// handsOver reports whether a hot upgrade is under way, which ends once the new
// container runs.
func (s *sidecarSet) handsOver(r *podstate.Record) bool {
	return slices.ContainsFunc(s.sidecars, func(c sidecar) bool { return c.upgradingIn(r) && r.HotUpgraded(c.name) })
}

// Outlook is the state of a Pod in the rollout of a Program.
type Outlook struct {
	// Matched is false if the SidecarSet does not match the Pod. The other fields are
	// then zero.
	Matched bool
	rollout.Pod
	// Changed are the kinds of containers that an update gives another image.
	Changed inplace.Kinds
}

// Look returns the Outlook of a Pod from its record, for a Program with these Contents.
// The Tally uses the same rules. Look ignores namespaces.
func Look(program *inject.Program, r *podstate.Record, contents Contents) Outlook {
	if !selects(program, r) {
		return Outlook{}
	}
	s := sidecarSet{name: podstate.MakeName(program.Name()), terms: termsOf(program), rollouts: rollouts{contents: contents}}
	if s.verdictOn(r)&matched == 0 {
		return Outlook{}
	}
	now, changed := s.outlook(r, false)
	return Outlook{Matched: true, Pod: now, Changed: changed}
}

// selects reports whether the Pod of a record counts for a Program, its Namespace aside.
func selects(program *inject.Program, r *podstate.Record) bool {
	return r.Active && !r.TooLarge && program.Selector.Matches(r.Labels.Labels())
}
