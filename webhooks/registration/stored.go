package registration

import (
	"errors"
	"maps"
	"slices"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/internal/sample"
	"github.com/sidecarset/operator/internal/validation"
)

// storedSets are the stored SidecarSets, by name.
type storedSets map[string]*storedSet

// storedSet is what the leader has worked out about one SidecarSet. It is valid for one compiled SidecarSet
// and one recorded revision that the compiled SidecarSet injects.
type storedSet struct {
	compiled, history *inject.Compiled

	webhook podwebhook.Webhook
	err     error  // why there is none
	refuse  error  // why no Pod can be injected
	nothing string // why the SidecarSet can select no Pod
	// conflict is the first problem with an older SidecarSet, because of which a review would have
	// refused this one. Both were stored within the delay of a watch.
	conflict string

	since    time.Time // when the leader first saw the UID and the generation
	security judgedSecurity
}

// observe updates the state for the stored SidecarSets, and returns the webhooks that they need.
func (all storedSets) observe(store *match.Snapshot, excludedNamespaces []string, now time.Time) (wanted []podwebhook.Webhook) {
	var changed []*storedSet
	for _, compiled := range store.SidecarSets() {
		name := compiled.Name()
		one, history := all[name], store.History(name)
		if one == nil || one.compiled != compiled || one.history != history {
			since := now
			if set := compiled.Set; one != nil && one.compiled.Set.UID == set.UID && one.compiled.Set.Generation == set.Generation {
				since = one.since
			}
			one = &storedSet{compiled: compiled, history: history, refuse: whyRefused(compiled, history), since: since}
			one.nothing = validation.SelectsNothing(&compiled.Set.Spec, excludedNamespaces)
			one.webhook, one.err = podwebhook.Of(compiled.Set)
			all[name], changed = one, append(changed, one)
		}
		if one.err == nil {
			wanted = append(wanted, one.webhook)
		}
	}
	before := len(all)
	maps.DeleteFunc(all, func(name string, _ *storedSet) bool { return !store.Has(name) })
	if len(changed) > 0 || len(all) < before {
		all.findConflicts(changed)
	}
	return wanted
}

// findConflicts looks for conflicts of the SidecarSets that have changed, and of those that had one.
func (all storedSets) findConflicts(changed []*storedSet) {
	sets := make([]*appsv1beta1.SidecarSet, 0, len(all))
	for _, one := range all {
		sets = append(sets, one.compiled.Set)
	}
	of := func(one *storedSet, others []*appsv1beta1.SidecarSet) []string {
		found := validation.FindConflicts(one.compiled.Set, others)
		if len(found.Refusing()) == 0 {
			return nil
		}
		one.conflict = found.Texts()[0]
		return found.Refusing()
	}
	stale := map[string]bool{}
	for name, one := range all {
		stale[name] = one.conflict != ""
	}
	for _, one := range changed {
		for _, other := range of(one, sets) {
			stale[other], stale[one.compiled.Name()] = true, true
		}
	}
	for name, one := range all {
		if stale[name] {
			one.conflict = ""
			of(one, slices.DeleteFunc(slices.Clone(sets), func(other *appsv1beta1.SidecarSet) bool { return !isBefore(other, one.compiled.Set) }))
		}
	}
}

// isBefore reports whether a SidecarSet was created before another one.
func isBefore(a, b *appsv1beta1.SidecarSet) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// generation returns the generation of the SidecarSet that a dependency is of; false if the snapshot
// does not have it.
func (all storedSets) generation(n podwebhook.Dependency) (int64, bool) {
	one := all[n.Name]
	if one == nil || podwebhook.ShortUID(one.compiled.Set.UID) != n.UID {
		return 0, false
	}
	return one.compiled.Set.Generation, true
}

// stored returns a function that reports whether the snapshot has the SidecarSet of a dependency, in any
// generation, with the selectors of a webhook.
func (w *Registrar) stored() func(webhook string, n podwebhook.Dependency) bool {
	snapshot := w.store.Current()
	if snapshot == nil {
		return func(string, podwebhook.Dependency) bool { return false }
	}
	return func(name string, n podwebhook.Dependency) bool {
		compiled, ok := snapshot.Get(n.Name)
		if !ok || podwebhook.ShortUID(compiled.Set.UID) != n.UID {
			return false
		}
		e, err := podwebhook.Of(compiled.Set)
		return err == nil && e.Name == name
	}
}

// whyRefused returns the error that any Pod would get; nil if there is none. It injects
// into an empty Pod, and ignores errors that the content of another Pod could avoid.
func whyRefused(compiled, history *inject.Compiled) error {
	_, err := inject.Compute(inject.Input{
		Pod:        inject.PodView{Labels: sample.Labels(compiled.Set.Spec.Selector)},
		Candidates: []inject.Candidate{{Current: compiled, History: history}},
		Known:      func(string) bool { return true },
	})
	var invalid *inject.InvalidError
	var missing *inject.RevisionError
	var conflict *inject.ConflictError
	if errors.As(err, &invalid) || errors.As(err, &missing) || errors.As(err, &conflict) {
		return err
	}
	return nil
}
