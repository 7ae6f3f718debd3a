package inject

import (
	"encoding/json"
	"slices"
)

// render makes the body of a sidecar that depends on the Pod. All sidecars read
// the Pod as it was submitted, whatever else is injected in the same pass.
func (c *computation) render(s placed) (json.RawMessage, error) {
	t := s.template
	has := lists{
		env: keyed{list: slices.Clip(t.env)}, mounts: keyed{list: slices.Clip(t.mounts)},
		devices: keyed{list: slices.Clip(t.devices)}, volumes: keyed{list: slices.Clip(t.deviceVolumes)},
	}
	c.share(s, &has)
	c.noticeEnv(s, &has.env)
	body := append(make([]byte, 0, len(t.rest)+1024), '{')
	body = appendMember(body, "env", append(has.env.list, t.hotEnv...))
	body = appendMember(body, "volumeMounts", has.mounts.list)
	body = appendMember(body, "volumeDevices", has.devices.list)
	if t.resources != nil {
		var err error
		if body, err = c.appendResources(body, s); err != nil {
			return nil, err
		}
	}
	return append(append(body, t.rest...), '}'), nil
}

// lists are those of a sidecar that take elements from the Pod's containers. volumes are the
// volumes of devices, by name only.
type lists struct{ env, mounts, devices, volumes keyed }

// share adds what the policies of a sidecar take from the Pod's containers.
func (c *computation) share(s placed, has *lists) {
	c.transferEnv(s, &has.env)
	if s.template.shareMounts {
		c.shareMounts(&has.mounts, &has.devices, &has.env)
	}
	if s.template.shareDevices {
		c.shareDevices(&has.devices, &has.mounts, &has.volumes)
	}
}

// appendMember appends a list and a comma behind it; an empty list is left out.
func appendMember(dst []byte, name string, list []element) []byte {
	if len(list) == 0 {
		return dst
	}
	dst = append(append(append(dst, '"'), name...), `":`...)
	return append(appendList(dst, list), ',')
}

func appendList(dst []byte, list []element) []byte {
	dst = append(dst, '[')
	for i, e := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, e.body...)
	}
	return append(dst, ']')
}

// transferEnv appends what the transferEnv entries copy. A variable that the
// sidecar has already is not copied; a container or a variable that the Pod
// lacks is passed over.
func (c *computation) transferEnv(s placed, env *keyed) {
	for _, transfer := range s.template.transfers {
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
func (c *computation) shareDevices(devices, mounts, volumes *keyed) {
	for _, from := range c.appContainers() {
		if from.Injected {
			continue
		}
		for i := range from.devices {
			d := &from.devices[i]
			if !volumes.has(d.volume) && !devices.has(d.key) && !mounts.has(d.key) {
				devices.add(d.element)
				volumes.add(element{key: d.volume})
			}
		}
	}
}

// appendResources appends the resources that the policy of a sidecar computes, and a comma
// behind them.
func (c *computation) appendResources(dst []byte, s placed) ([]byte, error) {
	computed, err := c.computeResources(s, c.belongsToSidecars)
	if err != nil {
		return nil, err
	}
	resources := s.template.resources.resources(computed)
	if len(resources) == 0 {
		return dst, nil
	}
	text, err := json.Marshal(resources)
	if err != nil {
		return nil, s.template.resources.error("", err)
	}
	return append(append(append(dst, `"resources":`...), text...), ','), nil
}

// computeResources computes the resources of a sidecar from the Pod's containers that are not
// excluded.
func (c *computation) computeResources(s placed, excluded func(name string) bool) (*containerResources, error) {
	policy := s.template.resources
	containers, err := c.containerResources()
	if err != nil {
		return nil, policy.error("", err)
	}
	pod, err := c.budget()
	if err != nil {
		return nil, policy.error("", err)
	}
	computed, err := policy.compute(&pod, containers, excluded)
	if err != nil {
		return nil, err
	}
	return computed, c.noteComputed(s, computed)
}

// containerResources are those of the Pod's native sidecars and then of its
// containers. They are read once for all policies, up to the first error.
func (c *computation) containerResources() ([]containerResources, error) {
	if c.resources != nil {
		return c.resources, nil
	}
	all := make([]containerResources, 0, len(c.pod.InitContainers)+len(c.pod.Containers))
	for list, view := range c.podContainers() {
		if list == InitContainers && !view.isNative() {
			continue
		}
		one, err := parseResources(view)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	c.resources = all
	return all, nil
}
