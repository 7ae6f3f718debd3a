package inject

import (
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// selected is what the first step finds out. No later step decides anything in it again.
type selected struct {
	pod       *PodView          // without the containers that are taken out
	submitted map[string]string // the annotations of the Pod
	targets   []target          // in name order
	removals  []Edit
	now       time.Time
	known     func(string) bool
	ended     func() error
	hashes    podstate.Hashes
	listed    []string
	owners    map[string][]string // of recordedOwners, once they are needed
	tables    namedTables
	all       []placed // the sidecars that the Pod has after injection, once they are needed
}

// target is a SidecarSet that selects the Pod and what becomes of it.
type target struct {
	*Compiled
	skip SkipReason // "" while it takes part
	by   string
	// sameHash: the Pod's record says that it was given this very revision.
	sameHash bool
	// otherHash: the Pod's record says that it was given another revision.
	otherHash bool
	// fresh: sameHash, and the record was written during this admission. What differs from the
	// revision is then the work of another webhook, and stays. It is not read if nothing differs
	// and the sidecars take nothing from the Pod.
	fresh bool

	// heldBack is the current revision, while new Pods get the stable revision; else nil.
	heldBack *Compiled

	paused  bool
	problem error  // why it is not known which revision to inject
	choice  string // what chance decided; "" if chance decides nothing
}

// choose turns the candidates into targets, reads what the Pod records of them, and takes out what
// must not stay.
func choose(in *Input) selected {
	s := selected{pod: &in.Pod, submitted: in.Pod.Annotations, targets: targetsOf(in), now: in.Now, known: in.Known, ended: in.Ended}
	s.readRecords()
	s.takeOut()
	return s
}

// targetsOf turns the candidates into targets in name order and leaves out those
// that are paused or replaced by a canary.
func targetsOf(in *Input) []target {
	targets := make([]target, 0, len(in.Candidates))
	choices := podstate.ParseTexts(in.Pod.Annotations[appsv1beta1.AnnotationRevisionChoice])
	for _, candidate := range in.Candidates {
		targets = append(targets, candidate.resolve(&in.Pod, choices))
	}
	byName := func(a, b target) int { return strings.Compare(a.Name(), b.Name()) }
	if !slices.IsSortedFunc(targets, byName) {
		slices.SortFunc(targets, byName)
	}
	mirror := podstate.IsMirror(in.Pod.Annotations)
	for i := range targets {
		switch t := &targets[i]; {
		case mirror:
			t.skip = SkipMirrorPod
		case t.paused:
			t.skip = SkipPaused
		}
	}
	dropBases(targets)
	return targets
}

// dropBases leaves out every SidecarSet that a canary among the targets names
// as its base, so a canary that is paused or selects other Pods replaces nothing.
func dropBases(targets []target) {
	// Marks are set after the search: a canary whose own canary takes its place
	// still replaces its base.
	for i := range targets {
		canary := &targets[i]
		if canary.baseOfCanary == "" || (canary.skip != "" && canary.skip != SkipCanary) {
			continue
		}
		for j := range targets {
			if base := &targets[j]; base.Name() == canary.baseOfCanary && base.skip == "" {
				base.skip, base.by = SkipCanary, canary.Name()
			}
		}
	}
}

// check returns an error if a target must not be injected. A SidecarSet that the Pod
// already has needs nothing more of the Pod: only its names are checked.
func (s *selected) check() error {
	for i := range s.targets {
		switch t := &s.targets[i]; {
		case t.skip != "" && !t.grows():
		case t.problem != nil:
			return t.problem
		case t.invalid != nil:
			return t.invalid
		}
	}
	if err := s.checkSize(); err != nil {
		return err
	}
	return s.checkNames()
}

// Bounds of what is read of the Pod's containers, as JSON.
const (
	maxBytes  = 3 << 19  // API servers store at most 1.5 MB for a Pod; decoded it takes ten times as much
	maxCopied = 16 << 20 // in all sidecars together that may copy it
)

// checkSize refuses a Pod before its containers are decoded, if they are larger than in any
// real Pod.
func (s *selected) checkSize() error {
	total, copies := len(s.pod.Spec.Resources), 1
	for _, view := range s.podContainers() {
		total += len(view.Env) + len(view.VolumeMounts) + len(view.VolumeDevices) + len(view.Resources) + len(view.Ports)
	}
	for s := range sidecarsOf(s.takingPart()) {
		if s.template != nil {
			copies++
		}
	}
	if most := min(maxBytes, maxCopied/copies); total > most {
		return &SizeError{Bytes: total, Most: most}
	}
	return nil
}

// checkNames refuses two sidecars of one name. The placement of one does not see the other,
// and the API server would deny the Pod without naming their SidecarSets.
func (s *selected) checkNames() error {
	if len(s.targets) == 1 {
		if t := &s.targets[0]; t.skip == "" && t.duplicate != "" {
			return &ConflictError{Kind: kindContainer, Name: t.duplicate, First: t.Name(), Second: t.Name()}
		}
		return nil
	}
	owners := make(map[string]string, 2*len(s.targets))
	for s := range sidecarsOf(s.takingPart()) {
		if first, taken := owners[s.name]; taken {
			return &ConflictError{Kind: kindContainer, Name: s.name, First: first, Second: s.target.Name()}
		}
		owners[s.name] = s.target.Name()
	}
	return nil
}

// recent is how old a record may be to count as written during this very admission, which
// takes seconds. Another replica may have written it for a SidecarSet that this replica
// does not know yet, so it is kept.
const recent = time.Minute

// readRecords finds out which targets the Pod has already.
func (s *selected) readRecords() {
	if s.pod.Annotations == nil {
		return
	}
	s.hashes = podstate.ParseHashes(s.pod.Annotations[appsv1beta1.AnnotationHash])
	s.listed = podstate.ParseInjectedList(s.pod.Annotations[appsv1beta1.AnnotationInjectedList])
	for i := range s.targets {
		t := &s.targets[i]
		has := s.hashes.Has(t.Name())
		if t.heldBack != nil && !t.enforced && s.hashes.Hash(t.Name()) == t.heldBack.Hash {
			// An earlier call has injected it. A Pod is not changed twice.
			t.Compiled, t.heldBack = t.heldBack, nil
		}
		same := has && s.hashes.Hash(t.Name()) == t.Hash
		t.otherHash = has && !same
		if t.enforced {
			continue
		}
		t.sameHash = same
		if t.skip != "" || t.problem != nil || !same {
			continue
		}
		carried := s.carries(t)
		if !carried || t.copies {
			t.fresh = s.now.Sub(s.hashes.UpdatedAt(t.Name())).Abs() < recent
			carried = s.carries(t)
		}
		if carried {
			t.skip = SkipInjected
		}
	}
}

// carries reports whether the Pod has all sidecars of a target.
func (s *selected) carries(t *target) bool {
	return s.carriesIn(InitContainers, t, t.initContainers) && s.carriesIn(Containers, t, t.containers)
}

// carriesIn reports whether a list of the Pod has all these sidecars, with the expected
// images, unless another webhook can have changed them. Bodies are not compared: the API
// server completes them after each webhook.
func (s *selected) carriesIn(list List, t *target, sidecars []sidecar) bool {
	containers := s.views(list)
	for i := range sidecars {
		one := &sidecars[i]
		at := s.containerAt(list, one.name)
		if at < 0 || !containers[at].Injected {
			return false
		}
		if image := containers[at].Image; image != one.image && !t.fresh {
			other := s.containerAt(list, one.sibling) // swapped by a hot upgrade
			if one.sibling == "" || image != one.siblingImage || other < 0 || containers[other].Image != one.image {
				return false
			}
		}
	}
	return true
}

// isComplete reports whether nothing is left to do: every target is skipped, and those that
// the Pod has are listed and take nothing more from it.
func (s *selected) isComplete() bool {
	for i := range s.targets {
		switch t := &s.targets[i]; t.skip {
		case "":
			return false
		case SkipInjected:
			if _, listed := slices.BinarySearch(s.listed, t.Name()); !listed || t.grows() {
				return false
			}
		}
	}
	return true
}

// replaces reports whether the Pod records another revision of the SidecarSet than it gets
// now. Another replica has injected that revision in an earlier call for the same Pod, or the
// Pod was created from the manifest of a running one.
func (t target) replaces() bool { return t.skip == "" && t.otherHash }

// isEnforced reports whether the SidecarSet is injected whatever the Pod claims about it.
func (t target) isEnforced() bool { return t.enforced && t.skip == "" }

// grows reports whether the sidecars, which an earlier call of this admission injected, may
// take more from the Pod: another webhook may have added to the Pod's containers since.
func (t *target) grows() bool { return t.fresh && t.copies }

// takesPart reports whether the Pod has the SidecarSet after injection: added now, or
// already there.
func (t *target) takesPart() bool { return t.skip == "" || t.skip == SkipInjected }

// injecting yields the targets that this plan decides about.
func (s *selected) injecting() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for i := range s.targets {
			if t := &s.targets[i]; t.skip == "" && !yield(t) {
				return
			}
		}
	}
}

// takingPart yields the targets that take part.
func (s *selected) takingPart() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for i := range s.targets {
			if t := &s.targets[i]; t.takesPart() && !yield(t) {
				return
			}
		}
	}
}

// sidecarsOf yields the sidecars of targets, the init containers of each before its other containers.
func sidecarsOf(targets iter.Seq[*target]) iter.Seq[placed] {
	return func(yield func(placed) bool) {
		for t := range targets {
			for _, list := range [...][]sidecar{t.initContainers, t.containers} {
				for i := range list {
					if !yield(placed{sidecar: &list[i], target: t}) {
						return
					}
				}
			}
		}
	}
}

// sidecarNamed returns a sidecar that the Pod has after injection.
func (s *selected) sidecarNamed(name string) (found placed, ok bool) {
	if s.all == nil {
		s.all = slices.Collect(sidecarsOf(s.takingPart()))
	}
	i := find(s.all, &s.tables.sidecars, name, func(p *placed) string { return p.name })
	if i < 0 {
		return placed{}, false
	}
	return s.all[i], true
}

// isSidecar reports whether the Pod has a sidecar of that name after injection.
func (s *selected) isSidecar(name string) bool {
	_, ok := s.sidecarNamed(name)
	return ok
}

// belongsToSidecars reports whether it is the name of a sidecar that the Pod has after
// injection, be it that in the spec of its SidecarSet or, of a hot-upgrade pair, in the Pod.
func (s *selected) belongsToSidecars(name string) bool {
	for t := range s.takingPart() {
		if slices.Contains(t.hotUpgrade, name) {
			return true
		}
	}
	return s.isSidecar(name)
}

// isInjectedNow reports whether this plan decides about a container that the Pod has.
func (s *selected) isInjectedNow(view *ContainerView) bool {
	if !view.Injected {
		return false // of that name no sidecar is injected
	}
	found, ok := s.sidecarNamed(view.Name)
	return ok && found.target.skip == ""
}

// podContainers yields the containers of the Pod, with the list of each.
func (s *selected) podContainers() iter.Seq2[List, *ContainerView] {
	return func(yield func(List, *ContainerView) bool) {
		for _, list := range [...]List{InitContainers, Containers} {
			views := s.views(list)
			for i := range views {
				if !yield(list, &views[i]) {
					return
				}
			}
		}
	}
}

func (s *selected) views(list List) []ContainerView {
	if list == InitContainers {
		return s.pod.InitContainers
	}
	return s.pod.Containers
}

// containerAt is the place of the container of that name in a list of the Pod; -1 if it has none.
func (s *selected) containerAt(list List, name string) int {
	table := &s.tables.containers
	if list == InitContainers {
		table = &s.tables.inits
	}
	return find(s.views(list), table, name, func(v *ContainerView) string { return v.Name })
}

// quoted is a name that the creator of the Pod may have chosen, as texts have it.
type quoted string

func (q quoted) String() string { return strconv.Quote(string(q[:min(len(q), maxContainerName)])) }

// ownerOf says in a message whose a container is. t is nil for one of the Pod's own.
func ownerOf(container string, t *target) string {
	if t == nil {
		return "container " + quoted(container).String() + " of the Pod"
	}
	return "container " + strconv.Quote(container) + " of SidecarSet " + strconv.Quote(t.Name())
}

// injected are the SidecarSets whose sidecars the plan adds or adds to, in name order.
func (s *selected) injected(edits *edits) (names []string) {
	for i := range s.targets {
		if t := &s.targets[i]; t.skip == "" || edits.adds(t) {
			names = append(names, t.Name())
		}
	}
	return names
}

// skipped are the other ones. edits are nil without a plan.
func (s *selected) skipped(edits *edits) (skipped []Skip) {
	for i := range s.targets {
		if t := &s.targets[i]; t.skip != "" && !edits.adds(t) {
			skipped = append(skipped, Skip{t.Name(), t.skip, t.by})
		}
	}
	return skipped
}

// occupant is a container of the Pod after injection. The view of one that this plan adds has
// no more than its name.
type occupant struct {
	*ContainerView
	edit *Edit // nil for one that this plan neither adds nor replaces
}

// after is a list of the Pod after injection.
func (s *selected) after(list List, edits *edits) []occupant {
	views := s.views(list)
	all := make([]occupant, len(views), len(views)+len(edits.insertions))
	for i := range views {
		all[i].ContainerView = &views[i]
	}
	for i := range edits.replacements {
		if e := &edits.replacements[i]; e.List == list {
			all[e.Index].edit = e
		}
	}
	for i := range edits.insertions {
		if e := &edits.insertions[i]; e.List == list {
			all = slices.Insert(all, e.Index, occupant{&ContainerView{Name: e.Name}, e})
		}
	}
	return all
}

// hasEnded returns why the call has ended, nil while it continues.
func (s *selected) hasEnded() error {
	if s.ended == nil {
		return nil
	}
	return s.ended()
}

// keeps reports whether another SidecarSet's record stays: it exists, or the
// record is so new that it must come from this admission.
func (s *selected) keeps(name string) bool {
	if s.known == nil || s.known(name) {
		return true
	}
	return s.hashes.UpdatedAt(name).After(s.now.Add(-recent))
}
