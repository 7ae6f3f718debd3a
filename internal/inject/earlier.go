package inject

import (
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// replaces reports whether the Pod records another content of the SidecarSet than it gets
// now. Another replica has injected that content in an earlier call for the same Pod, or the
// Pod was created from the manifest of a running one.
func (t target) replaces() bool { return t.skip == "" && t.otherHash }

// takeOut removes two kinds of containers from the Pod: those that claim to be sidecars of
// enforced SidecarSets, and those of an earlier content of a SidecarSet that its present
// content lacks. All steps that follow see a Pod that came without them, so neither their
// position nor their content counts.
//
// The Pod's record decides which containers are of an earlier content. It lists neither plain
// init containers nor volumes, so these stay: a volume cannot be told from the user's own. A
// volume that no container mounts does nothing, because the kubelet does not set it up.
func (c *computation) takeOut() {
	if !slices.ContainsFunc(c.targets, func(t target) bool { return t.disbelieves() || t.replaces() }) {
		return
	}
	pod := *c.pod // the view is the caller's
	pod.InitContainers = c.remove(InitContainers, pod.InitContainers, c.brought(InitContainers))
	pod.Containers = c.remove(Containers, pod.Containers, c.brought(Containers))
	c.pod = &pod
}

// brought returns, by the names of containers, the targets that bring them to a list.
func (c *computation) brought(list List) map[string]*target {
	targets := make(map[string]*target, 2*len(c.targets))
	for s := range sidecarsOf(c.takingPart()) {
		if s.list == list {
			targets[s.name] = s.target
		}
	}
	return targets
}

// remove returns the containers that stay, and plans the removal of the others, the last one
// first. A container that does not claim to be a sidecar always stays.
func (c *computation) remove(list List, all []ContainerView, brought map[string]*target) []ContainerView {
	kept := make([]ContainerView, 0, len(all))
	for i := range all {
		owner := ""
		if all[i].Injected {
			owner = c.takenOutFor(all[i].Name, brought[all[i].Name])
		}
		if owner == "" {
			kept = append(kept, all[i])
			continue
		}
		c.plan.Removals = append(c.plan.Removals, Edit{SidecarSet: owner, List: list, Index: i, Name: all[i].Name})
	}
	slices.Reverse(c.plan.Removals[len(c.plan.Removals)-(len(all)-len(kept)):])
	return kept
}

// takenOutFor names the SidecarSet for which a container that claims to be a sidecar is taken
// out of its list, "" if it stays there. brings is the target that brings a container of that
// name to the same list, nil if there is none.
func (c *computation) takenOutFor(container string, brings *target) string {
	switch {
	case brings == nil:
	case brings.disbelieves():
		return brings.Name()
	default:
		return "" // replaced in its place, or left
	}
	for i := range c.targets {
		if t := &c.targets[i]; t.replaces() && slices.Equal(c.recordedOwners()[container], []string{t.Name()}) {
			return t.Name()
		}
	}
	return ""
}

// recordedOwners returns, by the names of containers, the SidecarSets that injected them by
// the Pod's records, in name order. A container that several records list has several.
func (c *computation) recordedOwners() map[string][]string {
	if c.owners != nil {
		return c.owners
	}
	c.owners = map[string][]string{}
	working := podstate.ParseTexts(c.pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer])
	for sidecarSet, sidecars := range c.hashes.Sidecars() {
		note := func(container string) {
			if of := c.owners[container]; len(of) == 0 || of[len(of)-1] != sidecarSet {
				c.owners[container] = append(of, sidecarSet)
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
	return c.owners
}

// replaced returns the names for Plan.Replaces.
func (c *computation) replaced() (names []string) {
	if c.hashes.Empty() {
		return nil
	}
	for i := range c.targets {
		if t := &c.targets[i]; t.replaces() {
			names = append(names, t.Name())
		}
	}
	for _, edits := range [][]Edit{c.plan.Removals, c.plan.Replacements} {
		for _, e := range edits {
			if e.List == Volumes {
				continue
			}
			for _, owner := range c.recordedOwners()[e.Name] {
				if owner != e.SidecarSet {
					names = append(names, owner)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
