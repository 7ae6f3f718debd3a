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

// rollouts are the parts of a sidecarSet that are about running Pods.
type rollouts struct {
	queue *rollout.Queue // nil as long as no Pod ever had to follow
	// back Pods carry the wanted content, are ready, and are not in flight.
	back int
	// resets are Pods whose hot upgrade is to be ended, and labels those whose condition
	// SidecarSetUpgradable is not what it should be.
	resets, labels chores
	// down Pods are in flight and not ready; true for those that were when Overdue
	// was asked the last time.
	down map[*pod]bool
	// labelled selects the Pods whose condition may be set to false, nil for none.
	labelled labels.Selector
	// contents is nil as long as it is not known.
	contents Contents
	// differing Pods record a content that differs in more than images.
	differing int
	// off: running Pods are left as they are.
	off bool
	recreation
	stirred bool
}

// part is what a Pod is to the rollout of a SidecarSet that it counts for.
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

// Due is what can be written now for a SidecarSet.
type Due struct {
	// Program is what the Pods are to follow.
	Program *inject.Program
	// Contents is about this Program.
	Contents Contents
	// Since is what MayEvict asks for.
	Since int64
	// Updates are reserved in the queue until they are given back to it. Those to be
	// evicted are announced with Evicted or NotEvicted as well.
	Updates []rollout.Take
	// Chores are Pods whose hot upgrade has to be ended, or whose condition
	// SidecarSetUpgradable has to be written.
	Chores []Chore
}

// Due takes at most so many Pods. There are none for a SidecarSet that the
// snapshot does not have.
func (t *Tally) Due(sidecarSet string, most int) Due {
	s, ok := t.sets[sidecarSet]
	if !ok || s.queue == nil {
		return Due{}
	}
	s.queue.SetCounts(int(s.counters.Matched)+s.strays, s.back)
	due := Due{Program: s.program, Contents: s.contents, Since: s.since, Updates: s.queue.Next(most, t.watched)}
	t.begin(s, due.Updates)
	if len(due.Updates) > 0 {
		t.alter(s)
	}
	due.Chores = s.takeChores(most-len(due.Updates), len(due.Updates) > 0)
	return due
}

// Tend runs a function on the queue of a SidecarSet, if it has one. More Pods may be
// due then.
func (t *Tally) Tend(sidecarSet string, f func(*rollout.Queue)) {
	if s, ok := t.sets[sidecarSet]; ok && s.queue != nil {
		f(s.queue)
		t.stir(s)
		t.alter(s)
	}
}

// Rollout returns how far the rollout of a SidecarSet is. That of a SidecarSet whose
// Pods never had to follow has the Limit NotUpdate.
func (t *Tally) Rollout(sidecarSet string) rollout.Report {
	s, ok := t.sets[sidecarSet]
	if !ok || s.queue == nil {
		return rollout.Report{Limit: rollout.NotUpdate}
	}
	s.queue.SetCounts(int(s.counters.Matched)+s.strays, s.back)
	return s.queue.Report()
}

// Overdue returns at most so many Pods that are in flight and not ready, and were so when
// it was called the last time, or have been lost already. Their Nodes may be lost.
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

// Lost says that the Node of a Pod is not ready or gone. Until the next event of the
// Pod it takes no place of a budget.
func (t *Tally) Lost(namespace podstate.Namespace, name string, uid types.UID) {
	if p := t.pod(namespace, name); p != nil && p.record.UID == uid && !p.lost {
		p.lost, p.suspect = true, true
		t.recount(p)
	}
}

// Watched says that the Pod watch has delivered everything up to a resourceVersion,
// and that the Tally knows of it.
func (t *Tally) Watched(version uint64) { t.watched = max(t.watched, version) }

// Stirred calls report with the name of each SidecarSet that may have more due than at
// the last call.
func (t *Tally) Stirred(report func(sidecarSet string)) {
	for i, s := range t.stirred {
		t.stirred[i] = nil
		s.stirred = false
		if !s.removed {
			report(s.label)
		}
	}
	t.stirred = t.stirred[:0]
}

func (t *Tally) stir(s *sidecarSet) {
	if !s.stirred {
		s.stirred = true
		t.stirred = append(t.stirred, s)
	}
}

// Settle looks at the Pods that have changed by now without an event.
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

// noteSettling remembers whether a Pod will change without an event.
func (t *Tally) noteSettling(p *pod) {
	if _, settles := p.record.SettlesAt(); settles {
		t.settling[p] = struct{}{}
	} else if len(t.settling) > 0 {
		delete(t.settling, p)
	}
}

// setRollout takes over how running Pods follow a Program. It returns true if all
// matched Pods are to be looked at again.
func (t *Tally) setRollout(s *sidecarSet, program *inject.Program) (again bool) {
	update := &program.Set.Spec.UpdateStrategy
	off, labelled := update.Type == appsv1beta1.NotUpdateSidecarSetStrategyType, s.labelled
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
			return len(t.recreating) > 0 // it may be a canary of one of them
		}
		s.queue, again = rollout.NewQueue(), true
	}
	again = s.queue.SetStrategy(rollout.NewStrategy(program.Set)) || again
	s.queue.SetContent(program.Hash)
	again = t.setRecreation(s, program) || again
	t.stir(s)
	return again || !reflect.DeepEqual(labelled, s.labelled)
}

// follow tells a SidecarSet's queue about a Pod that it selects.
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
	now, _ := s.outlook(s.name, r, s.contents)
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

		differs: s.differsIn(s.name, r),
	}
	t.enter(p, sh, now, is)
}

// followStray tells a SidecarSet's queue about a Pod that does not carry it.
func (t *Tally) followStray(p *pod, sh *share) {
	now, follows := t.stray(p, sh)
	if !follows {
		t.unfollow(p, sh)
		return
	}
	t.enter(p, sh, now, part{moves: true, stray: true, down: now.InFlight})
}

// enter puts a Pod into a SidecarSet's queue.
func (t *Tally) enter(p *pod, sh *share, now rollout.Pod, is part) {
	if sh.set.queue.Set(now) || is != sh.part {
		t.alter(sh.set)
	}
	if is.moves || sh.moves || is.reset {
		t.stir(sh.set)
	}
	sh.set.count(p, sh.part, is)
	sh.part = is
}

// unfollow takes a Pod from a SidecarSet's queue.
func (t *Tally) unfollow(p *pod, sh *share) {
	if sh.set.queue == nil {
		return
	}
	sh.set.queue.Remove(p.record.UID)
	delete(sh.set.stuck, p)
	if sh.moves {
		t.stir(sh.set)
	}
	sh.set.count(p, sh.part, part{})
	sh.part = part{}
}

func (s *sidecarSet) count(p *pod, from, to part) {
	s.back += step(from.back, to.back)
	s.strays += step(from.stray, to.stray)
	s.differing += step(from.differs, to.differs)
	switch {
	case to.down && !from.down:
		s.down[p] = p.suspect
	case from.down && !to.down:
		delete(s.down, p)
	}
	if to.reset || from.reset { // each event may be that the new container runs
		s.resets.set(p, to.reset)
	}
	if to.label != from.label {
		s.labels.set(p, to.label)
	}
}

// step is by how much the number of Pods of one kind changes with a Pod.
func step(was, is bool) int {
	switch {
	case is && !was:
		return 1
	case was && !is:
		return -1
	}
	return 0
}

// outlook says what a matched Pod means to the rollout of a content.
func (t *terms) outlook(set podstate.Name, r *podstate.Record, contents Contents) (now rollout.Pod, changed inplace.Kinds) {
	in, _ := r.Injection(set)
	q := inplace.Question{
		Facts:            r.Facts,
		SameHash:         in.Hash == t.hash,
		SameWithoutImage: in.HashWithoutImage == t.hashWithoutImage,
		RevisionUnknown:  in.HashWithoutImage == 0,
		Difference:       contents.Of(set, r),
		Uncompared:       contents == nil,
		Resizing:         in.Resize != inplace.NoResize,
		RecordUnreadable: r.RecordUnreadable,
	}
	waits := false
	if !q.SameHash {
		for _, w := range t.images {
			c, ok := r.Container(w.container)
			if !ok || c.Image == w.image {
				continue
			}
			if working, _ := r.Working(w.hot); w.hot != 0 && working != w.container {
				continue // the idle container of a pair
			}
			q.Changed = q.Changed.With(c.Kind)
		}
		waits = t.waitsIn(set, r)
	}
	verdict := inplace.Judge(q)
	if verdict.Way == inplace.Resize { // the kubelet is at it, or what differs is about to be known
		waits = waits || in.Resize == inplace.ResizeMoving || !q.SameHash && !q.SameWithoutImage && q.Uncompared
	}
	return rollout.Pod{
		UID: r.UID, Namespace: r.Namespace, Name: r.Name, Labels: r.Labels,
		Order: r.Order, Way: verdict.Way, Reason: verdict.Reason, Resize: in.Resize,
		Ready:        r.Ready,
		InFlight:     r.Progress(set).InFlight() || q.SameHash && t.disturbedElsewhere(set, r) || r.Progress(set).WasReady && t.handsOver(r),
		InTransition: waits,
	}, q.Changed
}

// waitsIn reports whether the kubelet has not acted on an earlier update, which
// another operator made.
func (t *terms) waitsIn(set podstate.Name, r *podstate.Record) bool {
	return slices.ContainsFunc(t.images, func(w wanted) bool { return r.Waits(set, w.container) })
}

// disturbedElsewhere reports whether a Pod is not back from an update that another
// operator made: the rule is that of OpenKruise.
func (t *terms) disturbedElsewhere(set podstate.Name, r *podstate.Record) bool {
	return r.UpdatedElsewhere(set) && !(r.Ready && t.settledIn(set, r))
}

// handsOver reports whether a hot upgrade is to be ended, once the new container runs.
func (t *terms) handsOver(r *podstate.Record) bool {
	return slices.ContainsFunc(t.sidecars, func(s sidecar) bool { return s.upgradingIn(r) && r.HotUpgraded(s.name) })
}

// wanted is the image that a container is to have. hot is the name of its sidecar if
// that is one with a hot upgrade.
type wanted struct{ container, image, hot podstate.Name }

func wantedImages(set *appsv1beta1.SidecarSet) []wanted {
	var all []wanted
	add := func(c *appsv1beta1.SidecarContainer, names []string) {
		w := wanted{image: podstate.MakeName(c.Image)}
		if len(names) > 1 {
			w.hot = podstate.MakeName(c.Name)
		}
		for _, name := range names {
			w.container = podstate.MakeName(name)
			all = append(all, w)
		}
	}
	for i := range set.Spec.Containers {
		add(&set.Spec.Containers[i], set.Spec.Containers[i].PodContainerNames())
	}
	for i := range set.Spec.InitContainers {
		add(&set.Spec.InitContainers[i], set.Spec.InitContainers[i].PodInitContainerNames())
	}
	return all
}

// Outlook is what a Pod means to the rollout of a Program.
type Outlook struct {
	// Matched is false if the Pod is not one of the SidecarSet's. Nothing else is known
	// of it then.
	Matched bool
	rollout.Pod
	// Changed are the kinds of containers that an update gives another image.
	Changed inplace.Kinds
}

// Look says what a Pod, by its record, means to the rollout of a Program, whose
// Contents are given. The Tally itself decides by the same rules. Namespaces are not
// looked at.
func Look(program *inject.Program, r *podstate.Record, contents Contents) Outlook {
	if !r.Active || r.TooLarge || !program.Selector.Matches(r.Labels.Labels()) {
		return Outlook{}
	}
	s := sidecarSet{name: podstate.MakeName(program.Name()), terms: termsOf(program)}
	if s.verdictOn(r)&matched == 0 {
		return Outlook{}
	}
	now, changed := s.outlook(s.name, r, contents)
	return Outlook{Matched: true, Pod: now, Changed: changed}
}
