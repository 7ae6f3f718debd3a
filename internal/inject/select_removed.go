package inject

import (
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// takeOut removes two kinds of containers from the Pod: those that claim to be sidecars of
// enforced SidecarSets, and those of an earlier revision of a SidecarSet that its present
// revision lacks. All steps that follow see a Pod that came without them, so neither their
// position nor their fields count.
//
// The Pod's record decides which containers are of an earlier revision. It lists neither plain
// init containers nor volumes, so these stay: a volume cannot be told from the user's own. A
// volume that no container mounts does nothing, because the kubelet does not set it up.
func (s *selected) takeOut() {
	if !slices.ContainsFunc(s.targets, func(t target) bool { return t.isEnforced() || t.replaces() }) {
		return
	}
	pod := *s.pod // the view is the caller's
	pod.InitContainers = s.remove(InitContainers, pod.InitContainers, s.brought(InitContainers))
	pod.Containers = s.remove(Containers, pod.Containers, s.brought(Containers))
	s.pod, s.tables = &pod, namedTables{}
}

// brought returns, by the names of containers, the targets that bring them to a list.
func (s *selected) brought(list List) map[string]*target {
	targets := make(map[string]*target, 2*len(s.targets))
	for s := range sidecarsOf(s.takingPart()) {
		if s.list == list {
			targets[s.name] = s.target
		}
	}
	return targets
}

// remove returns the containers that stay, and plans the removal of the others, the last one
// first. A container that does not claim to be a sidecar always stays.
func (s *selected) remove(list List, all []ContainerView, brought map[string]*target) []ContainerView {
	kept := make([]ContainerView, 0, len(all))
	for i := range all {
		owner := ""
		if all[i].Injected {
			owner = s.takenOutFor(all[i].Name, brought[all[i].Name])
		}
		if owner == "" {
			kept = append(kept, all[i])
			continue
		}
		s.removals = append(s.removals, Edit{SidecarSet: owner, List: list, Index: i, Name: all[i].Name})
	}
	slices.Reverse(s.removals[len(s.removals)-(len(all)-len(kept)):])
	return kept
}

// takenOutFor names the SidecarSet for which a container that claims to be a sidecar is taken
// out of its list, "" if it stays there. brings is the target that brings a container of that
// name to the same list, nil if there is none.
func (s *selected) takenOutFor(container string, brings *target) string {
	switch {
	case brings == nil:
	case brings.isEnforced():
		return brings.Name()
	default:
		return "" // replaced in its place, or left
	}
	for i := range s.targets {
		if t := &s.targets[i]; t.replaces() && slices.Equal(s.recordedOwners()[container], []string{t.Name()}) {
			return t.Name()
		}
	}
	return ""
}

// recordedOwners returns, by the names of containers, the SidecarSets that injected them by
// the Pod's records, in name order. A container that several records list has several.
func (s *selected) recordedOwners() map[string][]string {
	if s.owners != nil {
		return s.owners
	}
	s.owners = map[string][]string{}
	working := podstate.ParseTexts(s.pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer])
	for sidecarSet, sidecars := range s.hashes.Sidecars() {
		note := func(container string) {
			if of := s.owners[container]; len(of) == 0 || of[len(of)-1] != sidecarSet {
				s.owners[container] = append(of, sidecarSet)
			}
		}
		for _, name := range sidecars {
			note(name)
			if _, isPair := working[name]; isPair {
				first, second := appsv1beta1.HotUpgradeNames(name)
				note(first)
				note(second)
			}
		}
	}
	return s.owners
}

// heldBack returns the names for Plan.HeldBack.
func (s *selected) heldBack() (names []string) {
	for t := range s.injecting() {
		if t.heldBack != nil {
			names = append(names, t.Name())
		}
	}
	return names
}

// replaced returns the names for Plan.Replaces.
func (s *selected) replaced(edits *edits) (names []string) {
	if s.hashes.Empty() {
		return nil
	}
	for i := range s.targets {
		if t := &s.targets[i]; t.replaces() {
			names = append(names, t.Name())
		}
	}
	for _, edits := range [][]Edit{s.removals, edits.replacements} {
		for _, e := range edits {
			if e.List == Volumes {
				continue
			}
			for _, owner := range s.recordedOwners()[e.Name] {
				if owner != e.SidecarSet {
					names = append(names, owner)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
