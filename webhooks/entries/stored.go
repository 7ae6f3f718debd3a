package entries

import (
	"errors"
	"maps"
	"slices"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/sample"
	"github.com/sidecarset/operator/internal/validation"
)

// storedSets are the stored SidecarSets, by name.
type storedSets map[string]*storedSet

// storedSet is what the leader has worked out about one SidecarSet. It is valid for one Program
// and one recorded revision that the Program injects.
type storedSet struct {
	program, history *inject.Program

	entry   entry.Entry
	err     error  // why there is none
	refuse  error  // why no Pod can be injected
	nothing string // why the SidecarSet can select no Pod
	// conflict is the first problem with an older SidecarSet, because of which a review would have
	// refused this one. Both were stored within the delay of a watch.
	conflict string

	since    time.Time // when the leader first saw the UID and the generation
	security judgedSecurity
}

// observe updates the state for the stored SidecarSets, and returns the entries that they need.
func (all storedSets) observe(catalog *match.Snapshot, excludedNamespaces []string, now time.Time) (wanted []entry.Entry) {
	var changed []*storedSet
	for _, program := range catalog.Programs() {
		name := program.Name()
		one, history := all[name], catalog.History(name)
		if one == nil || one.program != program || one.history != history {
			since := now
			if set := program.Set; one != nil && one.program.Set.UID == set.UID && one.program.Set.Generation == set.Generation {
				since = one.since
			}
			one = &storedSet{program: program, history: history, refuse: whyRefused(program, history), since: since}
			one.nothing = validation.SelectsNothing(&program.Set.Spec, excludedNamespaces)
			one.entry, one.err = entry.Of(program.Set)
			all[name], changed = one, append(changed, one)
		}
		if one.err == nil {
			wanted = append(wanted, one.entry)
		}
	}
	before := len(all)
	maps.DeleteFunc(all, func(name string, _ *storedSet) bool { return !catalog.Has(name) })
	if len(changed) > 0 || len(all) < before {
		all.findConflicts(changed)
	}
	return wanted
}

// findConflicts looks for conflicts of the SidecarSets that have changed, and of those that had one.
func (all storedSets) findConflicts(changed []*storedSet) {
	sets := make([]*appsv1beta1.SidecarSet, 0, len(all))
	for _, one := range all {
		sets = append(sets, one.program.Set)
	}
	of := func(one *storedSet, others []*appsv1beta1.SidecarSet) []string {
		found := validation.FindConflicts(one.program.Set, others)
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
			stale[other], stale[one.program.Name()] = true, true
		}
	}
	for name, one := range all {
		if stale[name] {
			one.conflict = ""
			of(one, slices.DeleteFunc(slices.Clone(sets), func(other *appsv1beta1.SidecarSet) bool { return !isBefore(other, one.program.Set) }))
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

// generation returns the generation of the SidecarSet that a need is of; false if the snapshot
// does not have it.
func (all storedSets) generation(n entry.Need) (int64, bool) {
	one := all[n.Name]
	if one == nil || entry.ShortUID(one.program.Set.UID) != n.UID {
		return 0, false
	}
	return one.program.Set.Generation, true
}

// stored returns a function that reports whether the snapshot has the SidecarSet of a need, in any
// generation, with the selectors of an entry.
func (w *Widener) stored() func(entry string, n entry.Need) bool {
	snapshot := w.catalog.Current()
	if snapshot == nil {
		return func(string, entry.Need) bool { return false }
	}
	return func(name string, n entry.Need) bool {
		program, ok := snapshot.Get(n.Name)
		if !ok || entry.ShortUID(program.Set.UID) != n.UID {
			return false
		}
		e, err := entry.Of(program.Set)
		return err == nil && e.Name == name
	}
}

// whyRefused returns the error that any Pod would get; nil if there is none. It injects
// into an empty Pod, and ignores errors that the content of another Pod could avoid.
func whyRefused(program, history *inject.Program) error {
	_, err := inject.Compute(inject.Input{
		Pod:        inject.PodView{Labels: sample.Labels(program.Set.Spec.Selector)},
		Candidates: []inject.Candidate{{Current: program, History: history}},
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
