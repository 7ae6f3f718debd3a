package tally

import (
	"cmp"
	"maps"
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

// recreation is the part of a sidecarSet that concerns evictions.
type recreation struct {
	mode   recreate.Mode
	ledger recreate.Ledger
	// since is the first second after the content became current; 0 if it is not known yet.
	since   int64
	inForce bool
	// stopped: the last leader had stopped evicting.
	stopped bool
	// begun: SetCurrent was called. adopts: Pods that the last leader may have evicted,
	// and their replacements, are not adopted yet.
	begun, adopts bool
	// told is the last value passed to queue.SetReplacements; failed is the number of
	// failed replacements at that time; due is the time in seconds at which to
	// recompute it, 0 for never.
	told   rollout.Replacements
	failed int
	due    int64
	// strays are Pods in the queue that do not carry the SidecarSet.
	strays int
	// stuck are the Pods that cannot be updated in place for a reason that their
	// records do not show, with the reason.
	stuck map[*pod]inplace.Reason
}

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
	// Stopped: an earlier leader has stopped evicting Pods, as the status says.
	Stopped bool
}

// Recreates reports whether a SidecarSet wants Pods evicted.
func Recreates(program *inject.Program) bool { return modeOf(program) != recreate.Never }

func modeOf(program *inject.Program) recreate.Mode {
	if program.Set.Spec.UpdateStrategy.Type == appsv1beta1.NotUpdateSidecarSetStrategyType {
		return recreate.Never
	}
	mode, _ := recreate.ModeOf(program.Set.Annotations) // with an error, it is Never
	return mode
}

// SetCurrent sets the stored state of the current content of a SidecarSet. No Pod is updated
// or evicted before this call, because a ControllerRevision must record the content that Pods
// get. SetCurrent does nothing if the content has changed meanwhile, or if the Program expects
// a ControllerRevision of another name: the Program that is compiled from the next status
// expects the right name.
func (t *Tally) SetCurrent(sidecarSet string, c Current) {
	s, ok := t.sets[sidecarSet]
	recorded := contentID{c.Program.Hash, c.Revision}
	if !ok || contentIDOf(s.program) != recorded || s.program.Set.UID != c.Program.Set.UID {
		return
	}
	if s.recorded != recorded {
		s.recorded = recorded
		t.markDue(s)
	}
	if s.queue == nil || s.mode == recreate.Never {
		return
	}
	if c.Stopped && !s.begun {
		s.stopped = true
		s.ledger.Stop()
	}
	s.begun, s.inForce = true, c.InForce
	if since := c.Since.Unix() + 1; since != s.since {
		s.since = since
		t.followAll(s)
	}
	t.replace(s)
}

// followAll calls follow for all Pods that a SidecarSet selects.
func (t *Tally) followAll(s *sidecarSet) {
	t.eachShare(s, func(p *pod, sh *share) { t.follow(p, sh) })
}

func (t *Tally) eachShare(s *sidecarSet, f func(p *pod, sh *share)) {
	for _, ns := range t.namespaces {
		for _, p := range ns.pods {
			for i := range p.shares {
				if sh := &p.shares[i]; sh.set == s {
					f(p, sh)
				}
			}
		}
	}
}

// setRecreation sets which Pods of a Program are evicted. It returns true if the caller
// has to recount all Pods.
func (t *Tally) setRecreation(s *sidecarSet, program *inject.Program) (again bool) {
	mode := modeOf(program)
	s.adopts = mode != recreate.Never && (s.adopts || mode != s.mode && !t.leads())
	again = mode != s.mode
	s.mode = mode
	if s.ledger.SetContent(program.Hash + " " + program.Set.Annotations[appsv1beta1.AnnotationRecreate]) {
		s.since = 0
		again = len(t.takeOver(s)) > 0 || again
	}
	if mode != recreate.Never || !s.ledger.Empty() {
		t.recreating[s] = struct{}{}
	}
	t.replace(s)
	return again
}

// renewsAlike reports whether two Programs of one SidecarSet are the same to inject.Renews. It
// does not look at the status, and not at the update strategy unless new Pods may get a
// recorded revision: these change often.
func renewsAlike(a, b *inject.Program) bool {
	specA, specB := a.Set.Spec, b.Set.Spec
	if specA.InjectionStrategy.Revision == nil && specB.InjectionStrategy.Revision == nil {
		specA.UpdateStrategy, specB.UpdateStrategy = appsv1beta1.SidecarSetUpdateStrategy{}, appsv1beta1.SidecarSetUpdateStrategy{}
	}
	return maps.Equal(a.Set.Annotations, b.Set.Annotations) && reflect.DeepEqual(specA, specB)
}

// leads reports whether enough time has passed since the start to know the replacements
// of Pods that the last leader evicted.
func (t *Tally) leads() bool {
	return t.began != 0 && t.now >= t.began+t.timeouts.CreationSeconds()
}

// replace passes the numbers about evicted Pods to the queue.
func (t *Tally) replace(s *sidecarSet) {
	if s.queue == nil {
		return
	}
	now, due := s.ledger.Replacements(t.now)
	if s.mode == recreate.Never {
		now.Allowed = 0
	}
	now.Wait = s.adopts || s.since == 0 || !s.inForce
	s.due = due
	if failed := s.ledger.Failed(); now != s.told || failed != s.failed {
		s.told, s.failed = now, failed
		s.queue.SetReplacements(now)
		t.markDue(s)
		t.alter(s)
	}
}

// tick applies the changes that are due without an event.
func (t *Tally) tick(now time.Time) {
	t.now = now.Unix()
	if t.began == 0 && t.watched > 0 {
		t.began = t.now
	}
	for s := range t.recreating {
		switch {
		case s.removed || s.mode == recreate.Never && s.ledger.Empty():
			delete(t.recreating, s)
		case s.adopts && s.since != 0 && t.leads():
			t.adopt(s)
		case s.due != 0 && t.now >= s.due:
			t.replace(s)
		}
	}
}

// adopt adds Pods that the last leader may have evicted, and their possible replacements, to
// the Ledger. A Pod that was ready before this leader began does not end a stop: it may have
// been ready already when the last leader stopped.
func (t *Tally) adopt(s *sidecarSet) {
	for _, r := range t.leaving {
		name := r.Namespace.Value()
		ns := &namespace{name: name, labels: namespaceLabels(t.snapshot, name)}
		if slices.Contains(t.selecting(ns, r.Labels), s) {
			s.ledger.AdoptVictim(r.UID, r.Controller)
		}
	}
	t.eachShare(s, func(p *pod, sh *share) {
		r := p.record
		wasBack := sh.back && (!s.stopped || r.Order.ReadySince < t.began)
		if r.Controller != 0 && sh.verdict&updated != 0 && r.Order.Created >= s.since && !wasBack {
			adopted := replacementOf(r)
			adopted.Back = sh.back
			s.ledger.Adopt(adopted)
		}
	})
	s.adopts = false
	t.replace(s)
	t.markDue(s) // updates in place have waited, too
}

// leave handles a Pod that is no longer active: it has finished, or is being deleted
// and has not ended.
func (t *Tally) leave(r *podstate.Record) {
	switch {
	case r.Finished:
		t.gone(r.UID)
	case r.Evicted && r.Controller != 0 && !t.leads():
		t.leaving[r.UID] = r
	}
}

// gone handles a Pod that does not exist any more, or has finished.
func (t *Tally) gone(uid types.UID) {
	delete(t.leaving, uid)
	for s := range t.recreating {
		if s.ledger.Gone(uid, t.now) {
			t.replace(s)
		}
	}
}

// keep handles Pods that are missing in a complete list as gone.
func (t *Tally) keep(records []*podstate.Record) {
	if len(t.recreating) == 0 && len(t.leaving) == 0 {
		return
	}
	listed := make(map[types.UID]bool, len(records))
	for _, r := range records {
		listed[r.UID] = true
	}
	for uid := range t.leaving {
		if !listed[uid] {
			delete(t.leaving, uid)
		}
	}
	for s := range t.recreating {
		for _, uid := range s.ledger.Pods() {
			if !listed[uid] {
				s.ledger.Gone(uid, t.now)
			}
		}
		t.replace(s)
	}
}

// begin tells the Ledger which Pods are about to be evicted.
func (t *Tally) begin(s *sidecarSet, takes []rollout.Take) {
	for _, take := range takes {
		if take.Way == inplace.Recreate { // the queue holds only Pods that are there
			s.ledger.Begin(take.UID, t.pod(take.Namespace, take.Name).record.Controller)
		}
	}
}

// observe tells the Ledger about a Pod that its SidecarSet selects: whether it is
// available, and whether it carries the current content.
func (t *Tally) observe(p *pod, sh *share, available, carries bool) {
	s := sh.set
	if !s.ledger.Empty() && p.record.Controller != 0 {
		older := s.since == 0 || p.record.Order.Created < s.since
		r := replacementOf(p.record)
		r.Back, r.Outdated, r.InVain = available && (carries || older), !carries && older, available && !carries && !older
		if p.fresh {
			s.ledger.Added(r, t.now)
		} else {
			s.ledger.Changed(r)
		}
		t.takeOver(s)
		t.replace(s)
	}
	sh.away = sh.away && !available
}

func replacementOf(r *podstate.Record) recreate.Replacement {
	return recreate.Replacement{UID: r.UID, Namespace: r.Namespace, Name: r.Name, Controller: r.Controller}
}

// takeOver marks replacements that the Ledger no longer tracks and that are still
// unavailable. They are in flight until they are available.
func (t *Tally) takeOver(s *sidecarSet) (taken []*pod) {
	for _, r := range s.ledger.Left() {
		p := t.pod(r.Namespace, r.Name)
		if p == nil { // it is being deleted: the Ledger is told when it is gone
			s.ledger.AdoptVictim(r.UID, r.Controller)
			continue
		}
		if sh := p.shareOf(s); sh != nil && p.record.UID == r.UID {
			sh.away = true
			t.group(sh, s.concernOf(p.record, sh))
			taken = append(taken, p)
		}
	}
	return taken
}

func (p *pod) shareOf(s *sidecarSet) *share {
	for i := range p.shares {
		if sh := &p.shares[i]; sh.set == s {
			return sh
		}
	}
	return nil
}

// answer updates the queue after the API server has answered an eviction.
func (t *Tally) answer(s *sidecarSet) {
	for _, p := range t.takeOver(s) {
		t.follow(p, p.shareOf(s))
	}
	t.replace(s)
}

// mayEvict reports whether a Pod may be evicted, and the reason if it may not. The
// reason is empty if the SidecarSet's mode does not apply to the Pod.
func (t *Tally) mayEvict(p *pod, sh *share, injected bool, way inplace.Way) (bool, inplace.Reason) {
	s := sh.set
	q := recreate.Question{
		Mode: s.mode, Pod: p.record, Injected: injected, Way: way, Since: s.since, ReplacementCurrent: true,
	}
	q.Recorded, q.Away = records(p.record, s.name), sh.away
	if s.since == 0 {
		q.Since = math.MaxInt64 // the queue waits until it is known
	}
	evictable, reason := recreate.Judge(q)
	if !evictable {
		return false, reason
	}
	programs := make([]*inject.Program, len(p.shares))
	for i := range p.shares {
		programs[i] = p.shares[i].set.program
	}
	q.ReplacementCurrent = t.excluded.Eligible(p.record.Namespace.Value(), p.record.Facts.Mirror) &&
		inject.Renews(programs, s.label, p.record.Labels.Labels())
	return recreate.Judge(q)
}

// records reports whether a Pod records a content of a SidecarSet.
func records(r *podstate.Record, sidecarSet podstate.Name) bool {
	in, listed := r.Injection(sidecarSet)
	return listed && in.Hash != 0
}

// followStray updates a SidecarSet's queue for a Pod that does not carry it, or lacks one of
// its sidecars. A Pod that was updated in place keeps its place of the budget until it is
// back, also if a sidecar was added meanwhile.
func (t *Tally) followStray(p *pod, sh *share) {
	s, r := sh.set, p.record
	evictable, reason := false, recreate.NotInjected
	if sh.verdict&uninjected != 0 && s.mode != recreate.Never {
		var why inplace.Reason
		evictable, why = t.mayEvict(p, sh, false, inplace.Recreate)
		reason = cmp.Or(why, reason)
	}
	inFlight := (sh.away || !sh.over && r.Progress(s.name).InFlight()) && !p.lost
	if !evictable && !inFlight {
		t.unfollow(p, sh)
		return
	}
	t.enter(sh, rollout.Pod{
		UID: r.UID, Namespace: r.Namespace, Name: r.Name, Labels: r.Labels,
		Way: inplace.Recreate, Evictable: evictable, Reason: reason, Ready: true, InFlight: inFlight,
		Order: podstate.Order{Created: r.Order.Created},
	}, part{moves: true, stray: true, down: inFlight && !r.Ready})
}

// SetStuck records why a Pod that was taken cannot be updated in place, although its
// record does not show it. An empty reason means that it can. The reason is kept until
// the content changes; meanwhile the Pod is evicted if the SidecarSet's mode asks for
// it. SetStuck does nothing if the content is not the current one.
func (t *Tally) SetStuck(content *inject.Program, take rollout.Take, reason inplace.Reason) {
	s, p := t.sets[content.Name()], t.pod(take.Namespace, take.Name)
	if s == nil || s.queue == nil || s.program.Hash != content.Hash || p == nil || p.record.UID != take.UID || s.stuck[p] == reason {
		return
	}
	if sh := p.shareOf(s); sh != nil {
		if s.stuck[p] = reason; reason == "" {
			delete(s.stuck, p)
		}
		t.follow(p, sh)
	}
}

// consider decides whether a matched Pod is to be evicted. A Pod that is stuck and must
// not be evicted stays in the queue for an update in place.
func (t *Tally) consider(p *pod, sh *share, now *rollout.Pod) {
	s := sh.set
	if why := s.stuck[p]; why != "" && (now.Way == inplace.Images || now.Way == inplace.Resize) {
		if evictable, _ := t.mayEvict(p, sh, true, inplace.Recreate); evictable {
			now.Way, now.Evictable, now.Reason = inplace.Recreate, true, why
		}
		return
	}
	evictable, reason := t.mayEvict(p, sh, true, now.Way)
	now.Evictable, now.Reason = evictable, cmp.Or(reason, now.Reason)
}

// Evicted returns a Pod that the API server has evicted. It counts against the budget
// until its replacement is available.
func (t *Tally) Evicted(sidecarSet string, take rollout.Take) {
	if s, ok := t.sets[sidecarSet]; ok && s.queue != nil {
		s.ledger.Accepted(take.UID, t.now)
		s.queue.Hold(take, recreate.Evicted, "")
		t.answer(s)
		t.markDue(s)
		t.alter(s)
	}
}

// NotEvicted is called if the API server has not evicted a Pod. The caller also returns
// the Pod to the queue.
func (t *Tally) NotEvicted(sidecarSet string, take rollout.Take) {
	if s, ok := t.sets[sidecarSet]; ok && s.queue != nil {
		s.ledger.Cancel(take.UID)
		t.answer(s)
	}
}

// Recreation is the state of the recreation of a SidecarSet's Pods.
type Recreation struct {
	// Begun: SetCurrent was called, so the other fields are valid.
	Begun bool
	// Stopped: no Pod is evicted until a replacement becomes ready or the SidecarSet changes.
	Stopped bool
	// Failed replacements exist and have not become ready in time.
	Failed int
	// Uninjected Pods are to be evicted.
	Uninjected int
}

// MayEvict reports whether a Pod that Due returned for eviction still may be evicted, by a
// newer record. contents and since are those of Due, and take is the Take that Due returned.
// stuck: the Pod cannot be updated in place for a reason that the record does not show.
func MayEvict(program *inject.Program, contents Contents, since int64, take rollout.Take, r *podstate.Record, stuck bool) bool {
	if !selects(program, r) {
		return false
	}
	mode, _ := recreate.ModeOf(program.Set.Annotations)
	q := recreate.Question{Mode: mode, Pod: r, Since: since, ReplacementCurrent: true, Way: inplace.Recreate}
	q.Recorded, q.Away = records(r, podstate.MakeName(program.Name())), take.InFlight
	if seen := Look(program, r, contents); seen.Matched {
		q.Injected, q.Way = true, seen.Way
		if stuck && (seen.Way == inplace.Images || seen.Way == inplace.Resize) {
			q.Way = inplace.Recreate
		}
	}
	evictable, _ := recreate.Judge(q)
	return evictable
}
