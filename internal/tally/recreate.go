package tally

import (
	"cmp"
	"math"
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

// recreation is the part of a sidecarSet that is about Pods which are evicted.
type recreation struct {
	mode   recreate.Mode
	ledger recreate.Ledger
	// since is the first second after the content became the current one; 0 if that is
	// not known yet.
	since   int64
	inForce bool
	// stopped is since when the last leader evicts nothing more; 0 if it did not stop.
	stopped int64
	// begun: SetCurrent was called. adopts: the last leader may have evicted Pods whose
	// replacements are not adopted yet.
	begun, adopts bool
	// told is what the queue was told last, failed what goes with it, and due when that
	// may change without an event, in seconds; 0 if it does not.
	told    rollout.Replacements
	content string // and the mode, for which the Ledger counts
	failed  int
	due     int64
	// strays are Pods in the queue that do not carry the SidecarSet.
	strays int
	// stuck Pods cannot follow the current content in place, although their records do
	// not show it; with the reason.
	stuck map[*pod]inplace.Reason
}

// Current is what is stored about the current content of a SidecarSet.
type Current struct {
	// Program has that content.
	Program *inject.Program
	// Since is when it became the current one.
	Since time.Time
	// InForce: the next Pod gets it.
	InForce bool
	// Stopped is since when an earlier leader has stopped evicting Pods, as the status
	// says; zero if it has not.
	Stopped time.Time
}

// Recreates reports whether a SidecarSet wants Pods evicted, so that SetCurrent is
// needed.
func Recreates(program *inject.Program) bool {
	mode, _ := recreate.ModeOf(program.Set.Annotations) // with an error, it is Never
	return mode != recreate.Never && program.Set.Spec.UpdateStrategy.Type != appsv1beta1.NotUpdateSidecarSetStrategyType
}

// SetCurrent says what is stored about the current content of a SidecarSet. No Pod is
// evicted before. If the content is another one by now, it does nothing.
func (t *Tally) SetCurrent(sidecarSet string, c Current) {
	s, ok := t.sets[sidecarSet]
	if !ok || s.queue == nil || s.mode == recreate.Never || s.program.Hash != c.Program.Hash {
		return
	}
	if !c.Stopped.IsZero() && !s.begun {
		s.stopped = c.Stopped.Unix()
		s.ledger.Stop()
	}
	s.begun, s.inForce = true, c.InForce
	if since := c.Since.Unix() + 1; since != s.since {
		s.since = since
		t.followAll(s)
	}
	t.replace(s)
}

// followAll looks again at all Pods that a SidecarSet selects.
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

// setRecreation takes over which Pods of a Program are evicted. It returns true if all
// Pods are to be looked at again.
func (t *Tally) setRecreation(s *sidecarSet, program *inject.Program) (again bool) {
	mode := recreate.Never
	if Recreates(program) {
		mode, _ = recreate.ModeOf(program.Set.Annotations)
	}
	s.adopts = mode != recreate.Never && (s.adopts || mode != s.mode && !t.leads())
	again = mode != s.mode || len(t.recreating) > 0 // what a new Pod gets may have changed
	s.mode = mode
	if content := program.Hash + " " + program.Set.Annotations[appsv1beta1.AnnotationRecreate]; content != s.content {
		s.content, s.since = content, 0
		s.ledger.SetContent(content)
		again = len(t.takeOver(s)) > 0 || again
	}
	if mode != recreate.Never || !s.ledger.Empty() {
		t.recreating[s] = struct{}{}
	}
	t.replace(s)
	return again
}

// leads reports whether replacements of Pods that the last leader evicted are known
// by now.
func (t *Tally) leads() bool {
	return t.began != 0 && t.now >= t.began+t.timeouts.CreationSeconds()
}

// replace tells a queue what became of the Pods that were evicted.
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
		t.stir(s)
		t.alter(s)
	}
}

// tick does what time alone changes.
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

// adopt takes over Pods that the last leader may have evicted, and what replaces them.
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
		wasBack := sh.back && (s.stopped == 0 || r.Order.ReadySince < s.stopped)
		if r.Controller != 0 && sh.verdict&updated != 0 && r.Order.Created >= s.since && !wasBack {
			adopted := replacementOf(r)
			adopted.Back = sh.back
			s.ledger.Adopt(adopted)
		}
	})
	s.adopts = false
	t.replace(s)
}

// leave notes that a Pod is not active any more. One that is being deleted still has to
// end.
func (t *Tally) leave(r *podstate.Record) {
	switch {
	case r.Finished:
		t.gone(r.UID)
	case r.Evicted && r.Controller != 0 && !t.leads():
		t.leaving[r.UID] = r
	}
}

// gone says that a Pod does not exist any more, or has finished.
func (t *Tally) gone(uid types.UID) {
	delete(t.leaving, uid)
	for s := range t.recreating {
		if s.ledger.Gone(uid, t.now) {
			t.replace(s)
		}
	}
}

// keep forgets the Pods that a list does not have.
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

// begin notes which Pods are about to be evicted.
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

// takeOver marks the Pods that the Ledger does not wait for any more, and that are away
// because of the operator. They are in flight until they are available.
func (t *Tally) takeOver(s *sidecarSet) (taken []*pod) {
	for _, r := range s.ledger.Left() {
		p := t.pod(r.Namespace, r.Name)
		if p == nil || p.record.UID != r.UID {
			continue
		}
		if sh := p.shareOf(s); sh != nil {
			sh.away = true
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

// answer takes over what the answer of the API server to an eviction means.
func (t *Tally) answer(s *sidecarSet) {
	for _, p := range t.takeOver(s) {
		t.follow(p, p.shareOf(s))
	}
	t.replace(s)
}

// mayEvict says whether a Pod may be evicted, and why not; the reason is empty if the
// SidecarSet does not ask for it.
func (t *Tally) mayEvict(p *pod, sh *share, injected bool, way inplace.Way) (bool, inplace.Reason) {
	s := sh.set
	q := recreate.Question{
		Mode: s.mode, Pod: recreate.TraitsOf(p.record), Injected: injected, Way: way, Since: s.since, ReplacementCurrent: true,
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

// records reports whether a Pod says that it carries a content of a SidecarSet.
func records(r *podstate.Record, sidecarSet podstate.Name) bool {
	in, listed := r.Injection(sidecarSet)
	return listed && in.Hash != 0
}

// stray is what a Pod without the SidecarSet is to its rollout; false if it stays as it
// is.
func (t *Tally) stray(p *pod, sh *share) (rollout.Pod, bool) {
	s, r := sh.set, p.record
	if sh.verdict&uninjected == 0 || s.mode == recreate.Never {
		return rollout.Pod{}, false
	}
	evictable, reason := t.mayEvict(p, sh, false, inplace.Recreate)
	return rollout.Pod{
		UID: r.UID, Namespace: r.Namespace, Name: r.Name, Labels: r.Labels,
		Way: inplace.Recreate, Evictable: evictable, Reason: cmp.Or(reason, recreate.NotInjected), Ready: true, InFlight: sh.away && !p.lost,
		Order: podstate.Order{Created: r.Order.Created},
	}, evictable || sh.away
}

// SetStuck says why a Pod that was taken cannot follow a content in place, although its
// record does not show it. An empty reason says that it can after all. It is remembered
// until the content changes: if the SidecarSet asks for it, the Pod is to be evicted. It
// does nothing if the content is not the current one.
func (t *Tally) SetStuck(content *inject.Program, take rollout.Take, reason inplace.Reason) {
	s, p := t.sets[content.Name()], t.pod(take.Namespace, take.Name)
	if s == nil || s.queue == nil || s.program.Hash != content.Hash || p == nil || p.record.UID != take.UID || s.stuck[p] == reason {
		return
	}
	if sh := p.shareOf(s); sh != nil {
		s.setStuck(p, reason)
		t.follow(p, sh)
	}
}

func (s *sidecarSet) setStuck(p *pod, reason inplace.Reason) {
	if reason == "" {
		delete(s.stuck, p)
		return
	}
	s.stuck[p] = reason
}

// consider says whether a matched Pod is to be evicted. One that is stuck and must not be
// evicted is given out to be updated in place, as if it were not stuck.
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

// Evicted gives back a Pod that the API server has evicted, so that its place of the
// budget is taken until its replacement is back.
func (t *Tally) Evicted(sidecarSet string, take rollout.Take) {
	if s, ok := t.sets[sidecarSet]; ok && s.queue != nil {
		s.ledger.Accepted(take.UID, t.now)
		s.queue.Hold(take, recreate.Evicted, "")
		t.answer(s)
		t.stir(s)
		t.alter(s)
	}
}

// NotEvicted says that the API server has not evicted a Pod. The caller then gives it
// back to the queue.
func (t *Tally) NotEvicted(sidecarSet string, take rollout.Take) {
	if s, ok := t.sets[sidecarSet]; ok && s.queue != nil {
		s.ledger.Cancel(take.UID)
		t.answer(s)
	}
}

// Recreation is how far the recreation of Pods is.
type Recreation struct {
	// Begun: SetCurrent was called, so that the others are known.
	Begun bool
	// Stopped: nothing more is evicted until the SidecarSet changes.
	Stopped bool
	// Failed replacements exist and have not become ready in time.
	Failed int
	// Uninjected Pods are to be evicted.
	Uninjected int
}

// Recreation returns how far the recreation of a SidecarSet's Pods is.
func (t *Tally) Recreation(sidecarSet string) Recreation {
	s, ok := t.sets[sidecarSet]
	if !ok || s.mode == recreate.Never {
		return Recreation{}
	}
	return Recreation{Begun: s.begun, Stopped: s.ledger.Stopped(), Failed: s.failed, Uninjected: s.strays}
}

// MayEvict says whether a Pod that Due gave out to be evicted still may be, by a newer
// record. contents and since are those of Due, and take is what it gave out. stuck: the Pod cannot follow in place,
// although the record does not show it.
func MayEvict(program *inject.Program, contents Contents, since int64, take rollout.Take, r *podstate.Record, stuck bool) bool {
	if !r.Active || r.TooLarge || !program.Selector.Matches(r.Labels.Labels()) {
		return false
	}
	mode, _ := recreate.ModeOf(program.Set.Annotations)
	q := recreate.Question{Mode: mode, Pod: recreate.TraitsOf(r), Since: since, ReplacementCurrent: true, Way: inplace.Recreate}
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
