package entries

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/entryplan"
)

// apply writes the planned objects, and updates the places of the entries.
func (l *leader) apply(ctx context.Context, v *view, plan entryplan.Plan) error {
	err := l.carryOut(ctx, v, plan)
	if layout := l.webhooks.store.current(); layout != v.layout || v.overflow != nil {
		v.layout = layout
		l.place(v)
	}
	return err
}

// triesToProve is the number of passes in which provisional entries are kept because
// API servers are not proven to use the entries that replace them. An API server that
// does not answer must not keep them for ever.
const triesToProve = 5

// inForce reports whether API servers use the written objects. The order of writes does not
// prove it: an API server compiles each object apart from the others. It may use an older
// copy of one object until the object is written again, while it uses a newer copy of
// another. If an API server does not use an object in time, the next pass writes the object
// again, because the provisional entry is still present.
func (l *leader) inForce(ctx context.Context, written []entryplan.Change) bool {
	ctx, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()
	for _, change := range written {
		if l.unprovenTries >= triesToProve {
			break
		}
		if err := l.webhooks.barrier.await(ctx, change.Object.Name, entryplan.Serial(change.Object)); err != nil {
			log.FromContext(ctx).V(1).Info("Keeping provisional entries", "reason", err.Error())
			l.unprovenTries++
			return false
		}
	}
	l.unprovenTries = 0
	return true
}

// triesToRemove is how often a pass writes the object for provisional entries.
const triesToRemove = 5

// writeOne writes a change. Reviews also write the object for provisional entries. If they
// do so all the time, a plan for this object is old when the leader carries it out. The next
// pass would then write all entries again whose provisional ones are still present, and each
// pass would take longer. So writeOne plans this change anew.
func (l *leader) writeOne(ctx context.Context, v *view, change entryplan.Change) (stale bool, err error) {
	for range triesToRemove {
		stale, err = l.webhooks.write(ctx, change)
		if !stale || err != nil || change.Index != entryplan.Provisional {
			break
		}
		again, left := entryplan.Anew(change, v.layout, l.webhooks.store.current(), v.settings)
		if !left {
			break
		}
		change = again
	}
	return stale, err
}

// deferrableTogether is how many deferrable changes a pass writes. Many objects may have
// entries that settle at the same time, and users who wait for Ready would wait for all of
// these writes.
const deferrableTogether = 2

// carryOut writes changes in their order. A provisional entry is removed only if the
// entry that replaces it is written and in force.
func (l *leader) carryOut(ctx context.Context, v *view, plan entryplan.Plan) error {
	var errs []error
	var written []entryplan.Change // the changes that SidecarSets wait for
	complete, deferrable := true, 0
	for _, change := range plan.Changes {
		if change.Deferrable && deferrable == deferrableTogether {
			l.wake()
			continue
		}
		if change.Index == entryplan.Provisional && !(complete && l.inForce(ctx, written)) {
			if len(v.paced) == 0 {
				l.wake()
			}
			break
		}
		edited, edits := len(plan.Foreign[change.Object.Name]) > 0 || l.places.restores(change), &l.places.edits[change.Index]
		if wait := edits.wait(v.now); edited && wait > 0 && !l.awaited(change) {
			v.paced[change.Index], complete = true, false
			v.wakeAfter(wait)
			continue
		}
		if !l.paces[change.Index].Allow() {
			v.paced[change.Index], complete = true, false
			v.wakeAfter(soon)
			continue
		}
		editor := ""
		if edited {
			editor = l.webhooks.store.editor(ctx, change.Object.Name) // the write may remove it
		}
		stale, err := l.writeOne(ctx, v, change)
		complete = complete && err == nil && !stale
		switch {
		case apierrors.IsInvalid(err):
			errs = append(errs, l.isolate(ctx, v, change, err))
		case err != nil:
			errs = append(errs, err)
		case stale:
			l.wake()
		default:
			if edited {
				edits.note(v.now, editor)
			}
			if change.Deferrable {
				deferrable++
			} else {
				written = append(written, change)
			}
			l.promises.note(change, v.overflow)
			l.tellChange(ctx, v.layout[change.Index], change, plan.Foreign[change.Object.Name])
		}
	}
	return errors.Join(errs...)
}

// awaited reports whether the author of a SidecarSet waits for a change.
func (l *leader) awaited(change entryplan.Change) bool {
	claimed := l.promises.claimed()
	return slices.ContainsFunc(change.Object.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return claimed[w.Name] })
}

// refusals are the entries that the API server refused, by name, with its message.
type refusals map[string]refusal

type refusal struct {
	message string
	at      time.Time
}

// refusedFor is the time for which a refused entry is left out. After it, the leader
// tries again: the API server may have refused the CA bundle, or may have been
// upgraded.
const refusedFor = 10 * time.Minute

// observe removes old refusals, and returns the names of the entries that are still refused.
func (r refusals) observe(wanted []entryplan.Entry, now time.Time) map[string]bool {
	refused := map[string]bool{}
	for _, e := range wanted {
		known, ok := r[e.Name]
		refused[e.Name] = ok && now.Sub(known.at) < refusedFor
	}
	maps.DeleteFunc(r, func(name string, _ refusal) bool { return !refused[name] })
	return refused
}

// isolate finds the entries of an object that the API server refuses, by a dry-run of
// each. The next pass leaves them out.
func (l *leader) isolate(ctx context.Context, v *view, change entryplan.Change, cause error) error {
	found := false
	for _, e := range v.wanted {
		alone, ok := entryplan.Alone(change.Object, e.Name)
		if !ok {
			continue
		}
		if err := l.writer.Update(ctx, alone, client.DryRunAll); apierrors.IsInvalid(err) {
			l.refused[e.Name] = refusal{err.Error(), v.now}
			found = true
		}
	}
	l.wake()
	if found {
		return nil // the conditions of its SidecarSets have the reason
	}
	return cause
}

// tellChange logs what was written. Foreign entries, which the change removed or repaired,
// may have been written by an attacker who has taken over a process of the operator.
func (l *leader) tellChange(ctx context.Context, before *admissionregistrationv1.MutatingWebhookConfiguration, change entryplan.Change, foreign []string) {
	logger := log.FromContext(ctx)
	name := entryplan.ConfigurationName(change.Index)
	if len(foreign) > 0 {
		l.webhooks.m.foreign.Add(float64(len(foreign)))
		logger.Info("Removed or repaired webhook entries that another program had written", "MutatingWebhookConfiguration", name, "entries", foreign)
	}
	switch left := len(change.Object.Webhooks); {
	case left > 0:
		logger.V(1).Info("Wrote webhook entries", "MutatingWebhookConfiguration", name, "entries", left-1)
	case len(before.Webhooks) > 0:
		logger.Info("Removed webhook entries", "MutatingWebhookConfiguration", name)
	default:
		logger.V(1).Info("Removed names of SidecarSets", "MutatingWebhookConfiguration", name)
	}
}
