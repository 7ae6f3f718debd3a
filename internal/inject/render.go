package inject

import (
	"encoding/json"
	"slices"

	"github.com/sidecarset/operator/internal/expr"
	"github.com/sidecarset/operator/internal/podstate"
)

// edits is what the third step makes.
type edits struct{ replacements, additions, insertions []Edit }

// adds reports whether a sidecar of an earlier call gets more.
func (e *edits) adds(t *target) bool {
	return e != nil && slices.ContainsFunc(e.additions, func(edit Edit) bool { return edit.SidecarSet == t.Name() })
}

// render makes the elements as this Pod needs them. All sidecars read the Pod as it was submitted,
// whatever else is injected in the same pass.
func render(s *selected, p *placement, notes *notes) (edits, error) {
	r := renderer{selected: s, annotations: &p.annotations, notes: notes}
	var e edits
	n := len(p.volumes) + len(p.others)
	for _, in := range p.lists {
		n += len(in.sidecars)
	}
	e.insertions = make([]Edit, 0, n)
	for i := range p.lists {
		if err := r.list(&p.lists[i], &e); err != nil {
			return e, err
		}
	}
	e.replacements = append(e.replacements, p.replaced...)
	e.insertions = append(append(e.insertions, p.volumes...), p.others...)
	return e, nil
}

// renderer reads what sidecars take from the Pod's containers, once it is needed.
type renderer struct {
	*selected
	annotations *podstate.AnnotationEdits
	notes       *notes
	sources     []*source
	resources   []containerResources
}

// list renders the sidecars of one list.
func (r *renderer) list(in *podList, e *edits) error {
	added := 0
	for _, s := range in.sidecars {
		switch s.does {
		case replaces:
			body, err := r.body(s)
			if err != nil {
				return err
			}
			e.replacements = append(e.replacements, Edit{SidecarSet: s.target.Name(), List: in.list, Index: s.at, Name: s.name, Body: body})
		case extended:
			if err := r.extend(in, s, e); err != nil {
				return err
			}
		}
	}
	for _, before := range []bool{true, false} {
		for _, s := range in.sidecars {
			if s.does != inserted || s.before != before {
				continue
			}
			body, err := r.body(s)
			if err != nil {
				return err
			}
			e.insertions = append(e.insertions, insertion(s.target, in.list, len(in.containers), s.at+added, part{s.name, body}))
			added++
		}
	}
	return nil
}

// body is the sidecar as it goes into this Pod.
func (r *renderer) body(s placed) (json.RawMessage, error) {
	if s.template == nil {
		return s.body, nil
	}
	return r.fill(s)
}

// fill makes the body of a sidecar that depends on the Pod. It ends early if the call has ended.
func (r *renderer) fill(s placed) (json.RawMessage, error) {
	if err := r.hasEnded(); err != nil {
		return nil, err
	}
	t := s.template
	has := lists{
		env: keyed{list: slices.Clip(t.env)}, mounts: keyed{list: slices.Clip(t.mounts)},
		devices: keyed{list: slices.Clip(t.devices)}, volumes: keyed{list: slices.Clip(t.deviceVolumes)},
	}
	r.share(s, &has)
	r.warningEnv(s, &has.env)
	body := append(make([]byte, 0, len(t.rest)+1024), '{')
	body = appendMember(body, "env", append(has.env.list, t.hotEnv...))
	body = appendMember(body, "volumeMounts", has.mounts.list)
	body = appendMember(body, "volumeDevices", has.devices.list)
	if t.resources != nil {
		var err error
		if body, err = r.appendResources(body, s); err != nil {
			return nil, err
		}
	}
	return append(append(body, t.rest...), '}'), nil
}

// lists are those of a sidecar that take elements from the Pod's containers. volumes are the
// volumes of devices, by name only.
type lists struct{ env, mounts, devices, volumes keyed }

// share adds what the policies of a sidecar take from the Pod's containers.
func (r *renderer) share(s placed, has *lists) {
	r.transferEnv(s, &has.env)
	if s.template.shareMounts {
		r.shareMounts(&has.mounts, &has.devices, &has.env)
	}
	if s.template.shareDevices {
		r.shareDevices(&has.devices, &has.mounts, &has.volumes)
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
func (r *renderer) transferEnv(s placed, env *keyed) {
	for _, transfer := range s.template.transfers {
		if from := r.source(r.sourceName(transfer)); from != nil {
			for _, name := range transfer.names {
				from.copyVariable(name, env)
			}
		}
	}
}

// sourceName is the container that a transferEnv entry copies from. An
// annotation counts with the value that patchPodMetadata gives it.
func (r *renderer) sourceName(t transfer) string {
	switch {
	case t.label != "":
		return r.pod.Labels[t.label]
	case t.annotation != "":
		name, _ := r.annotations.Get(t.annotation)
		return name
	default:
		return t.container
	}
}

// source finds one of the Pod's own containers. Sidecars that take part count as
// absent, whether the Pod has them already or not: the result is then the same
// as when all are injected together.
func (r *renderer) source(name string) *source {
	if name == "" || r.isSidecar(name) {
		return nil
	}
	for _, s := range r.appContainers() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// appContainers are the Pod's containers as sources.
func (r *renderer) appContainers() []*source {
	if r.sources == nil {
		r.sources = make([]*source, len(r.pod.Containers))
		for i := range r.pod.Containers {
			r.sources[i] = newSource(&r.pod.Containers[i])
		}
	}
	return r.sources
}

// shareMounts appends the mounts of the Pod's own containers where their paths
// are free, and the variables that their sub-paths are made of. Those come along
// even for a mount whose path is taken (T28).
func (r *renderer) shareMounts(mounts, devices, env *keyed) {
	for _, from := range r.appContainers() {
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
func (r *renderer) shareDevices(devices, mounts, volumes *keyed) {
	for _, from := range r.appContainers() {
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
func (r *renderer) appendResources(dst []byte, s placed) ([]byte, error) {
	computed, err := r.computeResources(s)
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

// computeResources computes the resources of a sidecar from the Pod's containers that no SidecarSet
// brings.
func (r *renderer) computeResources(s placed) (*containerResources, error) {
	policy := s.template.resources
	containers, err := r.containerResources()
	if err != nil {
		return nil, policy.error("", err)
	}
	pod, err := r.budget([]string{string(expr.CPU), string(expr.Memory)})
	if err != nil {
		return nil, policy.error("", err)
	}
	return policy.compute(&pod, containers, r.belongsToSidecars)
}

// containerResources are those of the Pod's native sidecars and then of its
// containers. They are read once for all policies, up to the first error.
func (r *renderer) containerResources() ([]containerResources, error) {
	if r.resources != nil {
		return r.resources, nil
	}
	all := make([]containerResources, 0, len(r.pod.InitContainers)+len(r.pod.Containers))
	for list, view := range r.podContainers() {
		if list == InitContainers && !view.isNative() {
			continue
		}
		one, err := parseResources(view)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	r.resources = all
	return all, nil
}

// extend adds to a sidecar of an earlier call what its policies take from the Pod as it is now.
// It adds only what is missing, so that nothing that another webhook has set is changed or
// removed. Resources stay as they were computed.
func (r *renderer) extend(in *podList, s placed, e *edits) error {
	if err := r.hasEnded(); err != nil {
		return err
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
	r.share(s, &has)
	add := func(member string, present json.RawMessage, elements []element) {
		edit := Edit{SidecarSet: s.target.Name(), List: in.list, Index: s.at, Name: s.name}
		if present == nil && len(elements) > 0 {
			edit.member, edit.Body = member, appendList(nil, elements)
			e.additions = append(e.additions, edit)
			return
		}
		for _, element := range elements {
			edit.member, edit.Body = member+"/-", element.body
			e.additions = append(e.additions, edit)
		}
	}
	add("env", found.Env, has.env.list[env:])
	add("volumeMounts", found.VolumeMounts, has.mounts.list[mounts:])
	add("volumeDevices", found.VolumeDevices, has.devices.list[devices:])
	return nil
}

// elementsOf are the elements of a list without what only their sources need.
func elementsOf(list []podElement) []element {
	elements := make([]element, len(list))
	for i := range list {
		elements[i] = list[i].element
	}
	return elements
}

// warningEnv finds what transferEnv does not copy. env is complete.
func (r *renderer) warningEnv(s placed, env *keyed) {
	for _, transfer := range s.template.transfers {
		r.warningTransfer(s, transfer, env)
	}
}

// warningTransfer finds what the sidecar does not have, although an entry of transferEnv names it.
func (r *renderer) warningTransfer(s placed, t transfer, env *keyed) {
	container := r.sourceName(t)
	from := r.source(container)
	for _, name := range t.names {
		if env.has(name) {
			continue
		}
		if from == nil {
			r.notes.tellSidecar(s, WarningTransferEnv, "container %s does not get variable %s of %s", quoted(s.name), quoted(name), r.whyNoSource(t, container))
			continue
		}
		why := ""
		if from.EnvFrom {
			why = ", and what it has from envFrom is not copied"
		}
		r.notes.tellSidecar(s, WarningTransferEnv, "container %s does not get variable %s: container %s does not have it in env%s", quoted(s.name), quoted(name), quoted(container), why)
	}
}

// whyNoSource names the container that an entry of transferEnv copies from, and says why that
// is not one of the app's.
func (r *renderer) whyNoSource(t transfer, container string) string {
	named := "container " + quoted(container).String()
	switch {
	case container == "" && t.label != "":
		return "the container that label " + quoted(t.label).String() + " names, because the Pod does not have that label"
	case container == "" && t.annotation != "":
		return "the container that annotation " + quoted(t.annotation).String() + " names, because the Pod does not have that annotation"
	case r.belongsToSidecars(container):
		return named + ", because a SidecarSet brings it"
	case r.containerAt(InitContainers, container) >= 0:
		return named + ", because it is among the Pod's initContainers"
	default:
		return named + ", which the Pod does not have"
	}
}
