package inject

import (
	"encoding/json"
	"slices"
	"strings"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// Compute derives the Plan for one Pod. Equal inputs give equal plans, whatever
// the order of the candidates, and a Pod that already carries the result yields
// an empty plan. With an error, the plan has Skipped only. The error is, or joins,
// *ConflictError, *InvalidError, *RevisionError, *MetadataError, *ResourcesError, *FitError
// and *SizeError: each says what the users have to change.
func Compute(in Input) (Plan, error) {
	c := computation{pod: &in.Pod, targets: choose(&in), records: records{now: in.Now, known: in.Known, calledAgain: in.CalledAgain}}
	c.readRecords()
	if !c.isComplete() {
		if err := c.inject(); err != nil {
			return Plan{Skipped: c.skipped()}, err
		}
	}
	c.report()
	return c.plan, nil
}

// target is a SidecarSet that selects the Pod and what becomes of it.
type target struct {
	*Program
	skip SkipReason // "" while it takes part
	by   string
	// sameHash: the Pod's record says that it was given this very content.
	sameHash bool
	// otherHash: the Pod's record says that it was given another content.
	otherHash bool
	// fresh: sameHash, and the record was written during this admission. What differs from the
	// content is then the work of another webhook, and stays. It is not read if nothing differs
	// and the sidecars take nothing from the Pod.
	fresh bool
	grown bool // what another webhook has added to the Pod is added to its sidecars, too

	paused  bool
	problem error  // why it is not known which revision to inject
	choice  string // what chance decided; "" if chance decides nothing
}

// choose turns the candidates into targets in name order and leaves out those
// that are paused or replaced by a canary.
func choose(in *Input) []target {
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

// computation is one run of Compute: what it knows and the plan it builds.
type computation struct {
	pod     *PodView
	targets []target
	records
	plan      Plan
	sources   []*source            // what sidecars take from the Pod's containers, once it is needed
	resources []containerResources // what policies read of the Pod's containers, once it is needed
	volumes   broughtVolumes
	facts     map[topic]*facts // what becomes the Notices
}

// checkTargets returns an error if a target must not be injected. A SidecarSet that the Pod
// already carries needs nothing more of the Pod: only its names are checked.
func (c *computation) checkTargets() error {
	for i := range c.targets {
		switch t := &c.targets[i]; {
		case t.skip != "" && !t.grows():
		case t.problem != nil:
			return t.problem
		case t.invalid != nil:
			return t.invalid
		}
	}
	if err := c.checkSize(); err != nil {
		return err
	}
	return c.checkNames()
}

// Bounds of what is read of the Pod's containers, as JSON.
const (
	maxBytes  = 3 << 19  // API servers store at most 1.5 MB for a Pod; decoded it takes ten times as much
	maxCopied = 16 << 20 // in all sidecars together that may copy it
)

// checkSize refuses a Pod before its containers are decoded, if they are larger than in any
// real Pod.
func (c *computation) checkSize() error {
	total, copies := len(c.pod.Spec.Resources), 1
	for _, view := range c.podContainers() {
		total += len(view.Env) + len(view.VolumeMounts) + len(view.VolumeDevices) + len(view.Resources) + len(view.Ports)
	}
	for s := range sidecarsOf(c.takingPart()) {
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
func (c *computation) checkNames() error {
	if len(c.targets) == 1 {
		if t := &c.targets[0]; t.skip == "" && t.duplicate != "" {
			return &ConflictError{Kind: kindContainer, Name: t.duplicate, First: t.Name(), Second: t.Name()}
		}
		return nil
	}
	owners := make(map[string]string, 2*len(c.targets))
	for s := range sidecarsOf(c.takingPart()) {
		if first, taken := owners[s.name]; taken {
			return &ConflictError{Kind: kindContainer, Name: s.name, First: first, Second: s.target.Name()}
		}
		owners[s.name] = s.target.Name()
	}
	return nil
}

// inject builds the plan for the targets that the Pod does not carry yet.
func (c *computation) inject() error {
	c.takeOut()
	if err := c.checkTargets(); err != nil {
		return err
	}
	c.plan.podHas = c.pod.Annotations
	if err := c.patchMetadata(); err != nil {
		return err
	}
	c.nameDefaultContainer()
	c.plan.Insertions = make([]Edit, 0, c.countParts())
	if err := c.addContainers(); err != nil {
		return err
	}
	c.recordComputed()
	injects := len(c.plan.Removals)+len(c.plan.Insertions)+len(c.plan.Replacements) > 0
	if injects {
		if err := c.addVolumes(); err != nil {
			return err
		}
		c.addPullSecrets()
		if err := c.fit(); err != nil {
			return err
		}
	}
	c.writeRecords(injects)
	c.notice()
	return nil
}

func (c *computation) countParts() (n int) {
	for t := range c.injecting() {
		n += len(t.initContainers) + len(t.containers) + len(t.volumes) + len(t.pullSecrets)
	}
	return n
}

// placed is one sidecar on its way into a list of the Pod.
type placed struct {
	*sidecar
	target *target
	// at is where it goes: its place, or that of the container before which it is
	// added, in the list as submitted.
	at     int
	insert bool // not in the Pod yet
}

// addContainers merges init containers, sorted by name over all SidecarSets,
// and containers, in the order of SidecarSets and then of their specs.
func (c *computation) addContainers() error {
	inits := podList{InitContainers, c.pod.InitContainers, kindInit}
	apps := podList{Containers, c.pod.Containers, kindContainer}
	sidecars := c.place(nil, InitContainers)
	slices.SortStableFunc(sidecars, func(a, b placed) int { return strings.Compare(a.name, b.name) })
	if err := c.merge(inits, apps, sidecars); err != nil {
		return err
	}
	return c.merge(apps, inits, c.place(sidecars[:0], Containers))
}

// place appends the sidecars of one list.
func (c *computation) place(sidecars []placed, list List) []placed {
	for s := range sidecarsOf(c.takingPart()) {
		if s.list == list {
			sidecars = append(sidecars, s)
		}
	}
	return sidecars
}

// podList is one of the Pod's two lists of containers.
type podList struct {
	list       List
	containers []ContainerView
	kind       string
}

// merge puts sidecars, which come in order, into one list of the Pod: in the place of the
// container that the operator injected there before, or else before or after all containers
// of the Pod.
func (c *computation) merge(in, other podList, sidecars []placed) error {
	for i := range sidecars {
		if err := c.replace(in, other, &sidecars[i]); err != nil {
			return err
		}
	}
	position(in.containers, sidecars)
	added := 0
	for _, before := range []bool{true, false} {
		for _, s := range sidecars {
			if s.insert && s.before == before {
				body, err := c.body(s)
				if err != nil {
					return err
				}
				c.insert(s.target, in.list, len(in.containers), s.at+added, part{s.name, body})
				added++
			}
		}
	}
	return nil
}

// position finds where the new sidecars go. Those of earlier calls are first and
// last in the Pod, unless other webhooks have added containers there since. The
// new ones go between them, in order.
func position(containers []ContainerView, sidecars []placed) {
	isOurs := func(at int, before bool) bool {
		return slices.ContainsFunc(sidecars, func(s placed) bool { return !s.insert && s.at == at && s.before == before })
	}
	front := 0 // number of our sidecars at the front
	for front < len(containers) && isOurs(front, true) {
		front++
	}
	back := len(containers) // from here on all are ours
	for back > 0 && isOurs(back-1, false) {
		back--
	}
	next := 0
	for i := range sidecars {
		switch s := &sidecars[i]; {
		case !s.before:
		case s.insert:
			s.at = next
		case s.at < front:
			next = max(next, s.at+1)
		}
	}
	next = len(containers)
	for i := range slices.Backward(sidecars) {
		switch s := &sidecars[i]; {
		case s.before:
		case s.insert:
			s.at = next
		case s.at >= back:
			next = min(next, s.at)
		}
	}
}

// replace decides about a sidecar whose name the Pod may have already.
func (c *computation) replace(in, other podList, s *placed) error {
	s.at = indexOf(in.containers, s.name)
	if s.target.skip == SkipInjected {
		return c.grow(in, s)
	}
	if s.at < 0 {
		if indexOf(other.containers, s.name) >= 0 { // a name is unique over both lists
			return &ConflictError{Kind: in.kind, Name: s.name, First: s.target.Name(), PodKind: other.kind}
		}
		s.insert = true
		return nil
	}
	found := &in.containers[s.at]
	if !found.Injected {
		return &ConflictError{Kind: in.kind, Name: s.name, First: s.target.Name(), PodKind: in.kind}
	}
	if s.target.fresh || s.target.sameHash && found.Image == s.image {
		return c.grow(in, s)
	}
	body, err := c.body(*s)
	if err != nil {
		return err
	}
	c.plan.Replacements = append(c.plan.Replacements,
		Edit{SidecarSet: s.target.Name(), List: in.list, Index: s.at, Name: s.name, Body: body})
	return nil
}

// body is the sidecar as it goes into this Pod.
func (c *computation) body(s placed) (json.RawMessage, error) {
	if s.template == nil {
		return s.body, nil
	}
	return c.render(s)
}

func indexOf(containers []ContainerView, name string) int {
	for i := range containers {
		if containers[i].Name == name {
			return i
		}
	}
	return -1
}

// insert plans an insertion into a list of the given length.
func (c *computation) insert(t *target, list List, length, index int, p part) {
	c.plan.Insertions = append(c.plan.Insertions,
		Edit{SidecarSet: t.Name(), List: list, Index: index, Name: p.name, Body: p.body, whole: length == 0})
}

// addPullSecrets appends the Secrets that neither the Pod nor an earlier SidecarSet names.
func (c *computation) addPullSecrets() {
	length, brought := len(c.pod.ImagePullSecrets), keyed{}
	for t := range c.injecting() {
		for _, secret := range t.pullSecrets {
			if !slices.Contains(c.pod.ImagePullSecrets, secret.name) && !brought.has(secret.name) {
				c.insert(t, ImagePullSecrets, length, length+len(brought.list), secret)
				brought.add(element{key: secret.name})
			}
		}
	}
}

// report says who takes part, who does not, and whose sidecars the plan changes.
func (c *computation) report() {
	for i := range c.targets {
		if t := &c.targets[i]; t.skip == "" || t.grown {
			c.plan.Injected = append(c.plan.Injected, t.Name())
		}
	}
	c.plan.Skipped = c.skipped()
	c.plan.Replaces = c.replaced()
}

func (c *computation) skipped() (skipped []Skip) {
	for i := range c.targets {
		if t := &c.targets[i]; t.skip != "" && !t.grown {
			skipped = append(skipped, Skip{t.Name(), t.skip, t.by})
		}
	}
	return skipped
}
