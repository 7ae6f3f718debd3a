package entries

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/events"
)

// plan says what the objects have to become.
func (l *leader) plan(ctx context.Context, v *view) (entryplan.Plan, error) {
	going, err := l.uninstalling(ctx, v)
	if err != nil {
		return entryplan.Plan{}, err
	}
	if going {
		return entryplan.Plan{Changes: entryplan.RemoveAll(v.layout)}, nil
	}
	v.problem = l.record(ctx, v)
	l.place(v) // what is missing now will have come back later
	l.expire(ctx, v)
	state := l.state(v)
	plan := entryplan.Next(state, v.settings)
	if plan.Incomplete {
		if state.Complete = l.knowsAllStored(ctx, v); state.Complete {
			plan = entryplan.Next(state, v.settings)
		}
	}
	v.overflow = plan.Overflow
	if plan.Again > 0 {
		v.wakeAfter(plan.Again)
	}
	return plan, nil
}

// record has the names of SidecarSets recorded before their entries are claimed. A claim
// whose name is not recorded waits.
func (l *leader) record(ctx context.Context, v *view) error {
	names := map[string]string{}
	if !l.anew {
		names[entryplan.RecentAny] = ""
	}
	for name, c := range l.claims {
		if planned := l.planned[name]; planned.err == nil && !c.known && !c.recorded {
			names[name] = planned.entry.Contents[name]
		}
	}
	if len(names) == 0 {
		return nil
	}
	layout, err := l.webhooks.store.recordable(ctx)
	if err != nil {
		return err
	}
	if change, ok := entryplan.Record(layout, names, v.settings); ok {
		if !l.paces[change.Index].TryAccept() {
			v.waiting = true
			return nil
		}
		stale, err := l.webhooks.write(ctx, change)
		if stale {
			l.wake()
		}
		if stale || err != nil {
			return err
		}
	}
	v.layout = l.webhooks.store.current()
	l.anew = true
	for name := range names {
		if c, ok := l.claims[name]; ok {
			c.recorded = true
			l.claims[name] = c
		}
	}
	return nil
}

// apply makes the objects hold what is planned, and notes where entries are then.
func (l *leader) apply(ctx context.Context, v *view, plan entryplan.Plan) error {
	err := l.carryOut(ctx, v, plan)
	if layout := l.webhooks.store.current(); layout != v.layout || v.overflow != nil {
		v.layout = layout
		l.place(v)
	}
	return err
}

// triesToProve is how often provisional entries are kept because API servers do not use
// what replaces them. An API server that cannot be asked must not keep them for ever.
const triesToProve = 5

// inForce says whether API servers use what was written. The order of writes is not
// enough: an API server compiles each object apart from the others, and may go on with
// an older copy of one until the object is written again, while it uses a newer copy of
// another. If it does not use an object in time, the next pass writes the object again,
// because the provisional entry is still there.
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

// carryOut makes changes in their order. A provisional entry is removed only if the one
// that replaces it has been written, and is in force.
func (l *leader) carryOut(ctx context.Context, v *view, plan entryplan.Plan) error {
	var errs []error
	var written []entryplan.Change
	complete := true
	for _, change := range plan.Changes {
		if change.Index == entryplan.Provisional && !(complete && l.inForce(ctx, written)) {
			l.wake()
			break
		}
		if !l.paces[change.Index].TryAccept() {
			v.paced[change.Index], v.waiting, complete = true, true, false
			continue
		}
		stale, err := l.webhooks.write(ctx, change)
		complete = complete && err == nil && !stale
		switch {
		case apierrors.IsInvalid(err):
			errs = append(errs, l.isolate(ctx, v, change, err))
		case err != nil:
			errs = append(errs, err)
		case stale:
			l.wake()
		default:
			written = append(written, change)
			l.noteClaims(v, change)
			l.tellChange(ctx, v.layout[change.Index], change, plan.Foreign[change.Object.Name])
		}
	}
	return errors.Join(errs...)
}

// uninstalling says whether the operator is being uninstalled: its Namespace is being
// deleted, or the CustomResourceDefinition has gone with all SidecarSets. Its entries
// would then refuse Pods, and no replica could answer.
func (l *leader) uninstalling(ctx context.Context, v *view) (bool, error) {
	settings, err := l.webhooks.settings(ctx)
	if errors.Is(err, errUninstalling) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	v.settings = settings
	if len(v.programs) == 0 && v.layout.Empty() {
		return false, nil
	}
	return l.definitionIsGone(ctx, v)
}

// definitionIsGone says whether SidecarSets have no CustomResourceDefinition. The
// snapshot cannot tell: an API server may end the watch of SidecarSets before it has
// sent all deletions, and the last SidecarSets that the snapshot holds then stay in it.
func (l *leader) definitionIsGone(ctx context.Context, v *view) (bool, error) {
	if len(v.programs) > 0 && v.now.Sub(l.definitionSeen) < definitionRecheck {
		return false, nil
	}
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	switch err := l.live.Get(ctx, client.ObjectKey{Name: appsv1beta1.Resource.GroupResource().String()}, crd); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading the CustomResourceDefinition: %w", err)
	}
	l.definitionSeen = v.now
	return crd.DeletionTimestamp != nil && len(v.programs) == 0, nil
}

func (l *leader) state(v *view) entryplan.State {
	refused := map[string]bool{}
	for _, e := range v.wanted {
		known, ok := l.refused[e.Name]
		refused[e.Name] = ok && v.now.Sub(known.at) < refusedFor
	}
	maps.DeleteFunc(l.refused, func(name string, _ refusal) bool { return !refused[name] })
	l.windows.Observe(v.layout, v.wanted, v.now)
	return entryplan.State{
		Layout:   v.layout,
		Wanted:   v.wanted,
		Claimed:  l.claimed(),
		Windows:  l.windows,
		Now:      v.now,
		Window:   l.webhooks.options.AdmissionWindow + l.webhooks.options.Trust + l.webhooks.options.Trust/2,
		Refused:  refused,
		CanServe: v.served,
		Expired:  l.provisional.Expired(),
		Room:     l.provisional.Room(),
	}
}

// isolate finds the entries of an object that the API server refuses, by dry-run
// and one at a time. The next pass leaves them out.
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
		return nil // the conditions of its SidecarSets say so
	}
	return cause
}

// tellChange says what was written. Foreign entries, which are gone or as they should
// be now, may be the work of a process of ours that another program has taken over.
func (l *leader) tellChange(ctx context.Context, before *admissionregistrationv1.MutatingWebhookConfiguration, change entryplan.Change, foreign []string) {
	logger := log.FromContext(ctx)
	name := entryplan.ConfigurationName(change.Index)
	if len(foreign) > 0 {
		l.webhooks.m.foreign.Add(float64(len(foreign)))
		logger.Info("Undid webhook entries that somebody else had written", "MutatingWebhookConfiguration", name, "entries", foreign)
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

// place notes since which serial each entry has been where it is.
func (l *leader) place(v *view) {
	if v.settings == nil {
		return
	}
	wanted := v.wanted
	if v.overflow != nil {
		wanted = append(slices.Clone(wanted), *v.overflow)
	}
	names, edited := map[string]bool{}, map[int]bool{}
	for _, e := range wanted {
		names[e.Name] = true
		before, was := l.placed[e.Name]
		i, holds := v.layout.Holds(e, v.settings)
		switch {
		case !holds && was:
			l.webhooks.m.restored.Inc()
			edited[before.configuration] = true
			delete(l.placed, e.Name)
			l.lost[e.Name] = true
		case holds && (!was || before.configuration != i):
			l.placed[e.Name] = placement{i, entryplan.Serial(v.layout[i])}
			if l.lost[e.Name] {
				delete(l.lost, e.Name)
				l.tellRestored(v, e, v.layout[i].Name)
			}
		}
	}
	for i := range edited {
		l.edits[i].note(v.now)
	}
	maps.DeleteFunc(l.placed, func(name string, _ placement) bool { return !names[name] })
	maps.DeleteFunc(l.lost, func(name string, _ bool) bool { return !names[name] })
}

// tellRestored has an Event written about each SidecarSet that an entry serves.
func (l *leader) tellRestored(v *view, e entryplan.Entry, configuration string) {
	for _, member := range e.Members {
		if program, ok := v.catalog.Get(member); ok {
			l.webhooks.options.Tell(events.EntryRestored(events.Of(program.Set), configuration))
		}
	}
}
