package inject

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// render makes the body of a sidecar that depends on the Pod. All sidecars read
// the Pod as it was submitted, whatever else is injected in the same pass.
func (c *computation) render(s placed) (json.RawMessage, error) {
	t := s.template
	env := keyed{list: slices.Clip(t.env)}
	mounts, devices := keyed{list: slices.Clip(t.mounts)}, keyed{list: slices.Clip(t.devices)}
	c.transferEnv(t, &env)
	if t.shareMounts {
		c.shareMounts(&mounts, &devices, &env)
	}
	if t.shareDevices {
		c.shareDevices(t, &devices, &mounts)
	}
	body := append(make([]byte, 0, len(t.rest)+1024), '{')
	body = appendMember(body, "env", append(env.list, t.hotEnv...))
	body = appendMember(body, "volumeMounts", mounts.list)
	body = appendMember(body, "volumeDevices", devices.list)
	if t.resources != nil {
		var err error
		if body, err = c.appendResources(body, t.resources); err != nil {
			return nil, err
		}
	}
	return append(append(body, t.rest...), '}'), nil
}

// appendMember appends a list and a comma behind it; an empty list is left out.
func appendMember(dst []byte, name string, list []element) []byte {
	if len(list) == 0 {
		return dst
	}
	dst = append(append(append(dst, '"'), name...), `":[`...)
	for i, e := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, e.body...)
	}
	return append(dst, "],"...)
}

// transferEnv appends what the transferEnv entries copy. A variable that the
// sidecar has already is not copied; a container or a variable that the Pod
// lacks is passed over.
func (c *computation) transferEnv(t *template, env *keyed) {
	for _, transfer := range t.transfers {
		if from := c.source(c.sourceName(transfer)); from != nil {
			for _, name := range transfer.names {
				from.copyVariable(name, env)
			}
		}
	}
}

// sourceName is the container that a transferEnv entry copies from. An
// annotation counts with the value that patchPodMetadata gives it.
func (c *computation) sourceName(t transfer) string {
	switch {
	case t.label != "":
		return c.pod.Labels[t.label]
	case t.annotation != "":
		name, _ := c.annotation(t.annotation)
		return name
	default:
		return t.container
	}
}

// source finds one of the Pod's own containers. Sidecars that take part count as
// absent, whether the Pod has them already or not: the result is then the same
// as when all are injected at once.
func (c *computation) source(name string) *source {
	if name == "" || c.isSidecar(name) {
		return nil
	}
	for _, s := range c.appContainers() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func (c *computation) isSidecar(name string) bool {
	named := func(s sidecar) bool { return s.name == name }
	return slices.ContainsFunc(c.targets, func(t target) bool {
		return t.takesPart() && slices.ContainsFunc(t.containers, named)
	})
}

// appContainers are the Pod's containers as sources.
func (c *computation) appContainers() []*source {
	if c.sources == nil {
		c.sources = make([]*source, len(c.pod.Containers))
		for i := range c.pod.Containers {
			c.sources[i] = newSource(&c.pod.Containers[i])
		}
	}
	return c.sources
}

// shareMounts appends the mounts of the Pod's own containers where their paths
// are free, and the variables that their sub-paths are made of. Those come along
// even for a mount whose path is taken (T28).
func (c *computation) shareMounts(mounts, devices, env *keyed) {
	for _, from := range c.appContainers() {
		if from.Injected { // a user's container may opt out this way, too (T27)
			continue
		}
		for i := range from.mounts {
			m := &from.mounts[i]
			for name := range referencesIn(m.subPathExpr) {
				from.copyVariable(name, env)
			}
			if !mounts.has(m.key) && !devices.has(m.key) {
				mounts.add(m.element)
			}
		}
	}
}

// shareDevices appends the devices of the Pod's own containers where their paths are free.
// Two containers may have one volume at different paths, but one container must not have it
// twice: the first path counts.
func (c *computation) shareDevices(t *template, devices, mounts *keyed) {
	volumes := keyed{list: slices.Clip(t.deviceVolumes)}
	for _, from := range c.appContainers() {
		if from.Injected {
			continue
		}
		for i := range from.devices {
			d := &from.devices[i]
			if !devices.has(d.key) && !mounts.has(d.key) && !volumes.has(d.name) {
				devices.add(d.element)
				volumes.add(element{key: d.name})
			}
		}
	}
}

// appendResources appends the resources that the policy computes from the Pod's containers,
// and a comma behind them.
func (c *computation) appendResources(dst []byte, policy *resourcesPolicy) ([]byte, error) {
	containers, err := c.containerResources()
	if err != nil {
		return nil, policy.error("", err)
	}
	resources, err := policy.resources(containers, c.belongsToSidecars)
	if err != nil || len(resources) == 0 {
		return dst, err
	}
	text, err := json.Marshal(resources)
	if err != nil {
		return nil, policy.error("", err)
	}
	return append(append(append(dst, `"resources":`...), text...), ','), nil
}

// containerResources are those of the Pod's native sidecars and then of its
// containers. They are read once for all policies, up to the first error.
func (c *computation) containerResources() ([]containerResources, error) {
	if c.resources != nil {
		return c.resources, nil
	}
	all := make([]containerResources, 0, len(c.pod.InitContainers)+len(c.pod.Containers))
	add := func(view *ContainerView) error {
		one, err := parseResources(view)
		all = append(all, one)
		return err
	}
	for i := range c.pod.InitContainers {
		if view := &c.pod.InitContainers[i]; view.Raw != nil && view.Raw.RestartPolicy == string(corev1.ContainerRestartPolicyAlways) {
			if err := add(view); err != nil {
				return nil, err
			}
		}
	}
	for i := range c.pod.Containers {
		if err := add(&c.pod.Containers[i]); err != nil {
			return nil, err
		}
	}
	c.resources = all
	return all, nil
}

// belongsToSidecars reports whether a SidecarSet that takes part has a container
// of that name, be it the name in its spec or, of a hot-upgrade pair, in the
// Pod.
func (c *computation) belongsToSidecars(name string) bool {
	named := func(s sidecar) bool { return s.name == name }
	return slices.ContainsFunc(c.targets, func(t target) bool {
		return t.takesPart() && (slices.ContainsFunc(t.containers, named) || slices.ContainsFunc(t.initContainers, named) || slices.Contains(t.hotUpgrade, name))
	})
}
