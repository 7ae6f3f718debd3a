package inject

import (
	"encoding/json"
	"maps"
	"slices"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
	"github.com/sidecarset/operator/internal/podstate"
)

// grows reports whether the sidecars, which an earlier call of this admission injected, may
// take more from the Pod: another webhook may have added to the Pod's containers since.
func (t *target) grows() bool { return t.fresh && t.copies }

// grow adds to a sidecar of an earlier call what its policies take from the Pod as it is now.
// It adds only what is missing, so that nothing that another webhook has set is changed or
// removed.
func (c *computation) grow(in podList, s *placed) error {
	if s.template == nil || !s.target.grows() {
		return nil
	}
	found, own := newSource(&in.containers[s.at]), s.template
	has := lists{ // what the sidecar brought counts, even if another webhook has removed it
		env: keyed{list: slices.Concat(found.env.list, own.env)}, mounts: keyed{list: slices.Concat(elementsOf(found.mounts), own.mounts)},
		devices: keyed{list: slices.Concat(elementsOf(found.devices), own.devices)}, volumes: keyed{list: slices.Clip(own.deviceVolumes)},
	}
	for i := range found.devices {
		has.volumes.add(element{key: found.devices[i].volume})
	}
	env, mounts, devices := len(has.env.list), len(has.mounts.list), len(has.devices.list)
	c.share(*s, &has)
	c.addElements(in.list, s, "env", found.Env, has.env.list[env:])
	c.addElements(in.list, s, "volumeMounts", found.VolumeMounts, has.mounts.list[mounts:])
	c.addElements(in.list, s, "volumeDevices", found.VolumeDevices, has.devices.list[devices:])
	return c.renewResources(in, s)
}

// elementsOf are the elements of a list without what only their sources need.
func elementsOf(list []podElement) []element {
	elements := make([]element, len(list))
	for i := range list {
		elements[i] = list[i].element
	}
	return elements
}

// addElements plans the addition of elements to a list of a container, which may be absent.
func (c *computation) addElements(list List, s *placed, member string, present json.RawMessage, elements []element) {
	if present == nil && len(elements) > 0 {
		c.add(list, s, member, appendList(nil, elements))
		return
	}
	for _, e := range elements {
		c.add(list, s, member+"/-", e.body)
	}
}

func (c *computation) add(list List, s *placed, member string, body json.RawMessage) {
	s.target.grown = true
	c.plan.Additions = append(c.plan.Additions, Edit{SidecarSet: s.target.Name(), List: list, Index: s.at, Name: s.name, Body: body, member: member})
}

// renewResources computes the resources of a sidecar anew, from the Pod as it is now. The
// Pod records what an earlier call computed. If the limit or the request of cpu is another one
// now, another webhook has set it, and both stay; the same holds for memory. They stay together,
// because a request must not be larger than its limit.
func (c *computation) renewResources(in podList, s *placed) error {
	policy, view := s.template.resources, &in.containers[s.at]
	text, recorded := c.recordedComputed()[s.name]
	if policy == nil || !recorded {
		return nil
	}
	var before containerResources
	if err := utiljson.Unmarshal(text, &before); err != nil {
		return nil //nolint:nilerr // damaged by another program, which says nothing about the resources
	}
	has, err := parseResources(view)
	if err != nil {
		return policy.error("", err)
	}
	// Another replica may have injected SidecarSets that this one does not know yet.
	now, err := c.computeResources(*s, func(name string) bool {
		return c.belongsToSidecars(name) || len(c.recordedOwners()[name]) > 0
	})
	if err != nil {
		return err
	}
	renewed := map[string]any{}
	if raw := view.Resources; raw != nil {
		if err := utiljson.Unmarshal(raw, &renewed); err != nil {
			return policy.error("", err)
		}
	}
	changed := false
	for _, v := range []expr.Variable{expr.CPU, expr.Memory} {
		if has.equals(&before, v) && !has.equals(now, v) {
			changed = true
			now.setIn(renewed, string(v))
		}
	}
	if !changed {
		return nil
	}
	if text, err = json.Marshal(renewed); err != nil {
		return policy.error("", err)
	}
	c.add(in.list, s, "resources", text)
	return nil
}

// equals reports whether two containers have the same limit and the same request.
func (r *containerResources) equals(other *containerResources, v expr.Variable) bool {
	same := func(a, b *amount) bool { return a == b || a != nil && b != nil && a.Cmp(b.Quantity) == 0 }
	return same(r.Limits[string(v)], other.Limits[string(v)]) && same(r.request(string(v)), other.request(string(v)))
}

// setIn sets the limit and the request of a name in the resources of a container.
func (r *containerResources) setIn(resources map[string]any, name string) {
	for _, list := range []string{limits, requests} {
		amounts, _ := resources[list].(map[string]any)
		switch value := r.list(list)[name]; {
		case value == nil:
			delete(amounts, name)
		case amounts == nil:
			resources[list] = map[string]any{name: value}
		default:
			amounts[name] = value
		}
	}
}

// noteComputed notes what the Pod is to record of the resources that a policy has computed.
// Nothing is recorded for enforced SidecarSets, because they believe nothing in the Pod.
func (c *computation) noteComputed(s placed, computed *containerResources) error {
	if !c.calledAgain || s.target.enforced {
		return nil
	}
	text, err := json.Marshal(computed)
	if c.computed == nil {
		c.computed = map[string]json.RawMessage{}
	}
	c.computed[s.name] = text
	return err
}

func (c *computation) recordedComputed() map[string]json.RawMessage {
	return podstate.ParseObjects(c.pod.Annotations[appsv1beta1.AnnotationComputedResources])
}

// recordComputed records what policies have computed in this call, next to what they have
// computed in others.
func (c *computation) recordComputed() {
	if len(c.computed) == 0 {
		return
	}
	all := c.recordedComputed()
	maps.Copy(all, c.computed)
	c.annotate(appsv1beta1.AnnotationComputedResources, podstate.FormatObjects(all))
}
