package entries

import (
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/validation"
)

// promises holds the leader's state for each stored SidecarSet, by name: the entry that
// it needs, and whether that entry is written.
type promises map[string]*promise

// promise is the state of one SidecarSet. It is valid for one Program and one recorded
// revision that the Program injects.
type promise struct {
	program, history *inject.Program

	entry   entryplan.Entry
	err     error  // why there is none
	refuse  error  // why no Pod can be injected
	nothing string // why the SidecarSet can select no Pod

	claim
}

// claim is the state of one content of a SidecarSet. Ready waits until the leader has written
// the entry for that content, and API servers use that write. An API server that is behind
// may use an older serial with the path /pods, and a leader that was replaced may be about
// to write that path.
type claim struct {
	content string    // see entryplan.Content
	since   time.Time // when the leader first saw it
	known   bool      // its status is Ready from an earlier leader
	// recorded says that the name is recorded for this content, so that replicas look up
	// the SidecarSet.
	recorded bool
	written  placement // of that write of the entry; zero before
}

// observe updates the state for the stored SidecarSets, and returns the entries that
// they need.
func (p promises) observe(catalog *match.Snapshot, excludedNamespaces []string, now time.Time) (wanted []entryplan.Entry) {
	for _, program := range catalog.Programs() {
		name := program.Name()
		one, history := p[name], catalog.History(name)
		if one == nil || one.program != program || one.history != history {
			one = &promise{program: program, history: history, refuse: whyRefused(program, history), claim: p.claim(program, now)}
			one.nothing = validation.SelectsNothing(&program.Set.Spec, excludedNamespaces)
			one.entry, one.err = entryplan.Of(program.Set)
			p[name] = one
		}
		if one.err == nil {
			wanted = append(wanted, one.entry)
		}
	}
	maps.DeleteFunc(p, func(name string, _ *promise) bool { return !catalog.Has(name) })
	return entryplan.Combine(wanted)
}

// claim returns the current claim, or a new one if the content has changed. For a SidecarSet
// that this leader sees first, it reads in the status whether an earlier leader wrote Ready.
func (p promises) claim(program *inject.Program, now time.Time) claim {
	set, before := program.Set, p[program.Name()]
	content := entryplan.Content(set)
	if before != nil && before.content == content {
		return before.claim
	}
	ready := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
	known := before == nil && ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == set.Generation
	return claim{content: content, since: now, known: known}
}

// unrecorded returns the contents, by name, of the SidecarSets whose names have to be
// recorded.
func (p promises) unrecorded() map[string]string {
	contents := map[string]string{}
	for name, one := range p {
		if one.err == nil && !one.known && !one.recorded {
			contents[name] = one.content
		}
	}
	return contents
}

// recorded notes that names of SidecarSets are recorded.
func (p promises) recorded(names map[string]string) {
	for name := range names {
		p[name].recorded = true
	}
}

// open reports whether the entry has to be written for the claim.
func (p *promise) open() bool {
	return p.err == nil && !p.known && p.recorded && p.written.serial == 0
}

// claimed returns the names of the entries to write for SidecarSets whose claim is open.
func (p promises) claimed() map[string]bool {
	claimed := map[string]bool{}
	for _, one := range p {
		if one.open() {
			claimed[one.entry.Name] = true
		}
	}
	return claimed
}

// note closes the open claims whose entries are in a change that was written.
func (p promises) note(change entryplan.Change, overflow *entryplan.Entry) {
	layout := entryplan.Layout{}
	layout[change.Index] = change.Object
	for _, one := range p {
		if !one.open() {
			continue
		}
		if _, _, ok := layout.Locate(one.servedBy(overflow)); ok {
			one.written = placement{change.Index, entryplan.Serial(change.Object)}
		}
	}
}

// coarse reports whether a SidecarSet shares the entry for all Pods.
func (p *promise) coarse(overflow *entryplan.Entry) bool {
	return overflow != nil && slices.Contains(overflow.Members, p.program.Name())
}

// servedBy returns the name of the entry through which API servers call the operator
// for a SidecarSet.
func (p *promise) servedBy(overflow *entryplan.Entry) string {
	if p.coarse(overflow) {
		return overflow.Name
	}
	return p.entry.Name
}

// whyRefused returns the error that any Pod would get; nil if there is none. It injects
// into an empty Pod, and ignores errors that the content of another Pod could avoid.
func whyRefused(program, history *inject.Program) error {
	_, err := inject.Compute(inject.Input{
		Pod:        inject.PodView{Labels: sampleLabels(program.Set.Spec.Selector), Parts: ^inject.Parts(0)},
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
