package inject

import (
	"iter"
	"slices"
	"strconv"
)

// takesPart reports whether the Pod carries the SidecarSet after injection: added now, or
// already there.
func (t *target) takesPart() bool { return t.skip == "" || t.skip == SkipInjected }

// injecting yields the targets that this plan decides about.
func (c *computation) injecting() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for i := range c.targets {
			if t := &c.targets[i]; t.skip == "" && !yield(t) {
				return
			}
		}
	}
}

// takingPart yields the targets that take part.
func (c *computation) takingPart() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for i := range c.targets {
			if t := &c.targets[i]; t.takesPart() && !yield(t) {
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
func (c *computation) sidecarNamed(name string) (s placed, ok bool) {
	for s := range sidecarsOf(c.takingPart()) {
		if s.name == name {
			return s, true
		}
	}
	return placed{}, false
}

// isSidecar reports whether the Pod has a sidecar of that name after injection.
func (c *computation) isSidecar(name string) bool {
	_, ok := c.sidecarNamed(name)
	return ok
}

// belongsToSidecars reports whether it is the name of a sidecar that the Pod has after
// injection, be it that in the spec of its SidecarSet or, of a hot-upgrade pair, in the Pod.
func (c *computation) belongsToSidecars(name string) bool {
	for t := range c.takingPart() {
		if slices.Contains(t.hotUpgrade, name) {
			return true
		}
	}
	return c.isSidecar(name)
}

// isInjectedNow reports whether this plan decides about a container that the Pod has.
func (c *computation) isInjectedNow(view *ContainerView) bool {
	if !view.Injected {
		return false // of that name no sidecar is injected
	}
	s, ok := c.sidecarNamed(view.Name)
	return ok && s.target.skip == ""
}

// hasContainer reports whether the Pod has a container of that name after injection.
func (c *computation) hasContainer(name string) bool {
	return c.isSidecar(name) || indexOf(c.pod.InitContainers, name) >= 0 || indexOf(c.pod.Containers, name) >= 0
}

// podContainers yields the containers of the Pod, with the list of each.
func (c *computation) podContainers() iter.Seq2[List, *ContainerView] {
	return func(yield func(List, *ContainerView) bool) {
		for _, list := range [...]List{InitContainers, Containers} {
			views := c.views(list)
			for i := range views {
				if !yield(list, &views[i]) {
					return
				}
			}
		}
	}
}

func (c *computation) views(list List) []ContainerView {
	if list == InitContainers {
		return c.pod.InitContainers
	}
	return c.pod.Containers
}

// occupant is a container of the Pod after injection. The view of one that this plan adds has
// no more than its name.
type occupant struct {
	*ContainerView
	edit *Edit // nil for one that this plan neither adds nor replaces
}

// after is a list of the Pod after injection.
func (c *computation) after(list List) []occupant {
	views := c.views(list)
	all := make([]occupant, len(views), len(views)+len(c.plan.Insertions))
	for i := range views {
		all[i].ContainerView = &views[i]
	}
	for i := range c.plan.Replacements {
		if e := &c.plan.Replacements[i]; e.List == list {
			all[e.Index].edit = e
		}
	}
	for i := range c.plan.Insertions {
		if e := &c.plan.Insertions[i]; e.List == list {
			all = slices.Insert(all, e.Index, occupant{&ContainerView{Name: e.Name}, e})
		}
	}
	return all
}

// quoted is a name that the author of the Pod may have chosen, as texts have it.
type quoted string

func (q quoted) String() string { return strconv.Quote(string(q[:min(len(q), maxContainerName)])) }

// ownerOf says in a message whose a container is. t is nil for one of the Pod's own.
func ownerOf(container string, t *target) string {
	if t == nil {
		return "container " + quoted(container).String() + " of the Pod"
	}
	return "container " + strconv.Quote(container) + " of SidecarSet " + strconv.Quote(t.Name())
}
