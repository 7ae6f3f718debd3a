package entries

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/inject"
)

// The leader reads a SidecarSet by name before it removes its need.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apps.kruise.io,resources=sidecarsets,verbs=get

// slotState is what the leader remembers of a slot from one pass to the next.
type slotState struct {
	wanted  []entry.Entry // the entries of the stored SidecarSets
	changed bool          // wanted has changed since the last write
	done    *entry.Slot   // the version that needs no write for wanted, and no need of which has to be judged
	edits   edits
	noPlace map[string]error // why entries have no place, by name
	// refused are the entries that the API server does not take, by name, with its answer. refusedAt is
	// when the last one was refused.
	refused   map[string]error
	refusedAt time.Time
	// unproven is why API servers are not known to use the slot at serial, since when the leader has
	// asked. proven is the last serial that they all used. tries is how often the slot was written
	// again since then, because they did not.
	unproven       error
	serial, proven uint64
	since          time.Time
	tries          int
	again          time.Time // when the slot is written once more; zero if it was
}

// writeAgain is Options.WriteAgain.
func (l *leader) writeAgain() time.Duration { return cmp.Or(l.options.WriteAgain, 30*time.Second) }

// An API server may keep an older copy of a slot, or go back to one, until the object is written. So
// the leader writes a slot again that an API server does not use any more, or does not use soon;
// writesAnew times at most.
const (
	writesAnew  = 5
	notUsedSoon = 5 * time.Second
)

// isStuck reports whether API servers do not use a version of the slot that they should use. If one
// cannot be asked, it is not known.
func (st *slotState) isStuck(s *entry.Slot, now time.Time) bool {
	if _, unknown := errors.AsType[refusedError](st.unproven); unknown {
		return false
	}
	return st.unproven != nil && st.serial == s.Serial && (st.proven == s.Serial || now.Sub(st.since) >= notUsedSoon)
}

// keepSlot brings one slot up to date.
func (l *leader) keepSlot(ctx context.Context, v *view, i int) error {
	st := &l.states[i]
	if err := l.find(ctx, v, i); err != nil || v.slots[i] == nil {
		return err
	}
	s := v.slots[i]
	anew, twice := st.isStuck(s, v.now) && st.tries < writesAnew, !st.again.IsZero() && !v.now.Before(st.again)
	if !twice && !st.again.IsZero() {
		v.wakeAfter(st.again.Sub(v.now))
	}
	if st.done == s && !anew && !twice {
		return nil
	}
	wanted := st.wanted
	if !v.served { // API servers would refuse Pods
		present := s.Entries()
		wanted = slices.DeleteFunc(slices.Clone(wanted), func(e entry.Entry) bool { return !slices.Contains(present, e.Name) })
	}
	if v.now.Sub(st.refusedAt) >= refusedFor {
		st.refused = map[string]error{}
	}
	leftOut := map[string]bool{}
	for name := range st.refused {
		leftOut[name] = true
	}
	doubts := s.Doubts(wanted, entry.Known{Generation: l.sets.generation, Seen: l.catalog.Seen, Reviews: l.reviews, Now: time.Now()})
	verdicts := l.decide(ctx, v, doubts)
	judged := len(verdicts) > 0
	plan := s.Reconcile(wanted, leftOut, verdicts, anew, v.settings)
	if plan.Next == nil && twice {
		anew, plan = true, s.Reconcile(wanted, leftOut, verdicts, true, v.settings)
	}
	st.noPlace, st.edits.stay, st.done = plan.Refused, false, nil
	if plan.Next == nil {
		if v.served {
			st.changed = false
			if len(doubts) == 0 && len(leftOut) == 0 {
				st.done = s
			}
		}
		return nil
	}
	// Nothing but an edit of another program is left as the cause. The author of a SidecarSet does
	// not wait until the leader undoes edits in the same object.
	undoes := !st.changed && !judged && !anew
	if wait := st.edits.wait(v.now); undoes && wait > 0 {
		st.edits.stay = true
		v.wakeAfter(wait)
		return nil
	}
	if anew && !twice {
		st.tries++
	}
	return l.writePlan(ctx, v, i, plan, undoes)
}

// find reads a slot that has to have entries and that Slots does not have.
func (l *leader) find(ctx context.Context, v *view, i int) (err error) {
	if v.slots[i] != nil || len(l.states[i].wanted) == 0 {
		return nil
	}
	v.slots[i], v.absent[i] = l.slots.Read(ctx, i)
	if err := v.absent[i]; !errors.Is(err, errNoSlot) && !errors.Is(err, entry.ErrFormat) {
		return err
	}
	return nil // the conditions of its SidecarSets have the reason
}

// writePlan writes the next version of a slot.
func (l *leader) writePlan(ctx context.Context, v *view, i int, plan entry.Plan, undoes bool) error {
	s, st, by := v.slots[i], &l.states[i], ""
	if undoes {
		by = l.slots.editor(ctx, i) // the write may remove it
	}
	left := len(plan.Next.Webhooks)
	rebundled := v.settings != nil && !bytes.Equal(s.Bundle(), v.settings.Bundle)
	if rebundled && l.options.FreshBundle != nil {
		if fresh, err := l.options.FreshBundle(ctx); err != nil || !bytes.Equal(fresh, v.settings.Bundle) {
			l.wake()
			return err
		}
	}
	written, err := l.write(ctx, s, plan.Next)
	switch {
	case apierrors.IsInvalid(err) && v.settings != nil:
		return l.isolate(ctx, v, i, err)
	case err != nil:
		return err
	case written == nil:
		l.wake()
		_, err := l.slots.Read(ctx, i)
		return err
	}
	if undoes {
		st.edits.note(v.now, by)
		l.m.restored.Inc()
	}
	v.slots[i], st.changed = l.slots.At(i), false
	switch {
	case rebundled:
		st.again = v.now.Add(l.writeAgain())
	case !v.now.Before(st.again):
		st.again = time.Time{}
	}
	l.tellWrite(ctx, s, left, plan.Foreign)
	return nil
}

// tellWrite logs what was written. Foreign webhooks, which the write removed, may have been
// written by an attacker who has taken over a process of the operator.
func (l *leader) tellWrite(ctx context.Context, before *entry.Slot, left int, foreign []string) {
	logger := log.FromContext(ctx).WithValues("MutatingWebhookConfiguration", before.Object.Name)
	if len(foreign) > 0 {
		l.m.foreign.Add(float64(len(foreign)))
		logger.Info("Removed webhook entries that another program had written", "entries", foreign)
	}
	switch {
	case left > 0:
		logger.V(1).Info("Wrote webhook entries", "entries", left-1)
	case !before.IsEmpty():
		logger.Info("Removed webhook entries")
	}
}

// maxReads bounds the SidecarSets that a pass reads by name. The next pass reads others.
const maxReads = 64

// decide reads the SidecarSets of the needs in doubt that reads can decide about, and judges these needs.
// The reads begin after the version of the slot was seen that the leader writes from, and the write
// has that version as a precondition.
func (l *leader) decide(ctx context.Context, v *view, doubts []entry.Doubt) entry.Verdicts {
	facts, verdicts := map[string]entry.Fact{}, entry.Verdicts{}
	for i := range doubts {
		d := &doubts[i]
		if !d.Due {
			v.wakeAfter(d.Wait)
			continue
		}
		for _, name := range append([]string{d.Need.Name}, d.Others...) {
			if err := l.fact(ctx, v, name, facts); err != nil {
				log.FromContext(ctx).V(1).Info("Keeping a SidecarSet's need", "SidecarSet", d.Need.Name, "reason", err.Error())
			}
		}
		c, read := d.Case(facts, l.moved)
		if verdict := c.Judge(); read && verdict != (entry.Verdict{}) {
			verdicts[d.Is()] = verdict
			continue
		}
		v.wakeAfter(soon)
	}
	return verdicts
}

// fact reads a SidecarSet by name, unless it was read for this slot before.
func (l *leader) fact(ctx context.Context, v *view, name string, facts map[string]entry.Fact) error {
	if _, known := facts[name]; known {
		return nil
	}
	if v.reads++; v.reads > maxReads {
		l.wake()
		return errors.New("the next pass reads it")
	}
	fact, err := l.read(ctx, name)
	if err == nil {
		facts[name] = fact
	}
	return err
}

// read reads a SidecarSet by name.
func (l *leader) read(ctx context.Context, name string) (entry.Fact, error) {
	fact := entry.Fact{Began: time.Now()}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(appsv1beta1.Kind)
	switch err := l.live.Get(ctx, client.ObjectKey{Name: name}, object); {
	case apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return fact, nil
	case err != nil:
		return fact, fmt.Errorf("reading SidecarSet %s: %w", name, err)
	}
	fact.Stored, fact.UID, fact.Generation = true, entry.ShortUID(object.GetUID()), object.GetGeneration()
	program, err := inject.Compile(object.Object)
	if program == nil {
		log.FromContext(ctx).V(1).Info("SidecarSet cannot be used as it is stored", "SidecarSet", name, "reason", err.Error())
		return fact, nil // nor is it in the snapshot
	}
	if e, err := entry.Of(program.Set); err == nil {
		fact.Entry = e.Name
	}
	return fact, nil
}

// moved reports whether every reachable API server uses the entry that a fact names, with a need
// of that SidecarSet.
func (l *leader) moved(fact entry.Fact, n entry.Need) bool {
	n.Generation = fact.Generation
	i := entry.SlotOf(fact.Entry)
	s := l.slots.At(i)
	return s != nil && s.Holds(fact.Entry, n) && l.prober.passed(i, s.Serial)
}

// refusedFor is the time for which refused entries are left out. After it, the leader tries again:
// the API server may have refused the CA bundle, or may have been upgraded.
const refusedFor = 10 * time.Minute

// isolate finds the entries of a slot that the API server refuses, by a dry-run of
// each. The next pass leaves them out.
func (l *leader) isolate(ctx context.Context, v *view, i int, cause error) error {
	st, found := &l.states[i], false
	for _, e := range st.wanted {
		alone := v.slots[i].Reconcile([]entry.Entry{e}, nil, v.slots[i].DropAll(), true, v.settings).Next
		if err := l.writer.Update(ctx, alone, client.DryRunAll); apierrors.IsInvalid(err) {
			st.refused[e.Name], st.refusedAt, found = err, v.now, true
		}
	}
	l.wake()
	if found {
		return nil // the conditions of its SidecarSets have the reason
	}
	return cause
}

// edits counts how often the leader undid changes of a slot by other programs.
type edits struct {
	count int
	last  time.Time
	by    string // the field manager of the last change; "" if it is not known
	stay  bool   // the last change is not undone yet
}

// Five edits by other programs, each within two minutes of the last, mean that another
// program keeps editing the object. Until it stops, Ready stays False, even while the
// entry is correct. The leader waits for a second before it undoes the second edit, and then
// twice as long each time.
const (
	editsOfAProgram = 5
	pauseOfEdits    = 2 * longestWait
	longestWait     = time.Minute
)

func (e *edits) note(now time.Time, by string) {
	if now.Sub(e.last) >= pauseOfEdits {
		e.count = 0
	}
	e.count++
	e.last, e.by = now, by
}

func (e *edits) goOn(now time.Time) bool {
	return e.count >= editsOfAProgram && now.Sub(e.last) < pauseOfEdits
}

// wait is how long the next edit stays.
func (e *edits) wait(now time.Time) time.Duration {
	if e.count == 0 || now.Sub(e.last) >= pauseOfEdits {
		return 0
	}
	return min(time.Second<<min(e.count-1, 6), longestWait) - now.Sub(e.last)
}
