package inplace

import (
	"cmp"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// planResize finds out whether resources have to change before the images do. Each of
// the two is a write of its own, and annotations can only go with the images. v is the verdict
// on a Pod whose resources may differ.
func (u *update) planResize(v Verdict) Verdict {
	in, _ := u.pod.Injection(u.Revision.name)
	var from []ResourceChange
	if in.Hash != u.Revision.hash && in.HashWithoutImage != u.Revision.hashWithoutImage {
		from = u.Revision.differences[in.HashWithoutImage].Resources
	}
	z := u.before.Resize
	var begun [][]ResourceChange
	for _, hash := range []podstate.Name{in.ResizeTo, in.ResizeBefore} {
		if hash == 0 || hash == u.Revision.hashWithoutImage {
			continue
		}
		difference, recorded := u.Revision.differences[hash]
		if state, _ := z.Observe(u.Pod); !recorded && state != podstate.ResizeOpen {
			v.Method, v.Reason = Recreate, RevisionUnknown
			return v
		}
		begun = append(begun, difference.Resources)
	}
	plan, reason := PlanResize(u.Pod, from, begun...)
	switch {
	case reason != "":
	case plan.Restarts.Restarts():
		reason = ResizeRestarts
	case len(plan.Containers) > 0:
		u.plan = plan
		return Verdict{Method: Resize, Changed: v.Changed}
	default:
		v = Verdict{Method: Images, Changed: v.Changed}
		if z == nil {
			return v
		}
		state := u.pod.Resize(u.Revision.name)
		_, u.message = z.Observe(u.Pod)
		if state == podstate.ResizeMoving {
			v.Method = Resize
		}
		return v.observed(state)
	}
	v.Method, v.Reason = Recreate, reason
	return v
}

// resize writes the resources, unless the Pod has them and the kubelet carries them out.
// The resize has to be recorded first: then the Pod watch shows when the kubelet is done.
func (u *update) resize(v Verdict) (Update, error) {
	out := Update{Verdict: v, Message: u.message}
	if v.Method != Resize || len(u.plan.Containers) == 0 {
		return out, nil
	}
	names := make([]string, 0, len(u.plan.Containers))
	for _, c := range u.plan.Containers {
		names = append(names, c.Container)
	}
	next := podstate.NewResize(u.before, u.Compiled.HashWithoutImage, names)
	z := u.before.Resize
	var err error
	if z != nil && z.Hash == next.Hash && z.Generation == next.Generation && slices.Equal(z.Containers, next.Containers) {
		out.Patch, err = u.plan.Patch(u.Pod.ResourceVersion)
	} else {
		out.Record, err = json.Marshal(podPatch{Metadata: metadataPatch{
			ResourceVersion: u.Pod.ResourceVersion,
			Annotations:     map[string]string{appsv1beta1.AnnotationInPlace: u.entries.WithResize(u.set, next).Format(u.Pod.UID)},
		}})
	}
	return out, err
}

// Resizing is the plan that changes the cpu and memory of a Pod's sidecars to the
// current revision.
type Resizing struct {
	// Containers are those whose values are to be written now.
	Containers []Resized
	// Restarts are the kinds of the containers that the kubelet restarts because of it.
	Restarts podstate.Kinds
}

// Resized holds the values of one container that have to change.
type Resized struct {
	Container        string
	Init             bool
	Requests, Limits corev1.ResourceList
}

// PlanResize compares a Pod with the revisions of a SidecarSet, three ways: a value is changed
// only if the Pod has it from the revision that it records, or from a revision to which it was
// being resized. from and begun are the changes from these to the current revision. If
// another writer has changed the value, or if Kubernetes would refuse the result, the reason
// says so, and there is no plan. The plan writes nothing if the Pod has all values.
func PlanResize(pod *corev1.Pod, from []ResourceChange, begun ...[]ResourceChange) (Resizing, Reason) {
	p := planner{pod: pod, after: pod.DeepCopy()}
	for i := range from {
		p.change(&from[i], begun)
	}
	for i := range begun {
		for j := range begun[i] {
			if c := begun[i][j]; find(from, c.Container) == nil {
				c.Old = c.New // as the recorded revision has it
				from = append(slices.Clip(from), c)
				p.change(&c, begun)
			}
		}
	}
	switch {
	case p.reason != "":
		return Resizing{}, p.reason
	case qosOf(pod) != qosOf(p.after):
		return Resizing{}, ImmutableFieldChanged
	}
	return p.plan, ""
}

func find(changes []ResourceChange, container string) *ResourceChange {
	if i := slices.IndexFunc(changes, func(c ResourceChange) bool { return c.Container == container }); i >= 0 {
		return &changes[i]
	}
	return nil
}

// planner is one run of PlanResize.
type planner struct {
	pod, after *corev1.Pod
	plan       Resizing
	reason     Reason
}

// change compares the values of one container.
func (p *planner) change(from *ResourceChange, begun [][]ResourceChange) {
	c, live := podstate.Find(p.after.Spec.Containers, from.Container), podstate.Find(p.pod.Spec.Containers, from.Container)
	kind := podstate.Regular
	if from.Init {
		c, live = podstate.Find(p.after.Spec.InitContainers, from.Container), podstate.Find(p.pod.Spec.InitContainers, from.Container)
		kind = podstate.Native
	}
	if c == nil || from.Init && podstate.InitKindOf(c) != podstate.Native {
		p.reason = cmp.Or(p.reason, ImmutableFieldChanged)
		return
	}
	requests, limits := []corev1.ResourceList{from.Old.Requests}, []corev1.ResourceList{from.Old.Limits}
	for _, changes := range begun {
		if c := find(changes, from.Container); c != nil {
			requests, limits = append(requests, c.Old.Requests), append(limits, c.Old.Limits)
		}
	}
	out := Resized{Container: c.Name, Init: from.Init}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		writes := p.value(name, live.Resources.Requests, requests, from.New.Requests, resizedElsewhere(p.pod, from, "f:requests", name))
		if writes {
			put(&out.Requests, &c.Resources.Requests, name, from.New.Requests)
		}
		if p.value(name, live.Resources.Limits, limits, from.New.Limits, resizedElsewhere(p.pod, from, "f:limits", name)) {
			put(&out.Limits, &c.Resources.Limits, name, from.New.Limits)
			writes = true
		}
		if writes && restartsFor(c, name) {
			p.plan.Restarts = p.plan.Restarts.With(kind)
		}
	}
	if out.Requests != nil || out.Limits != nil {
		p.plan.Containers = append(p.plan.Containers, out)
	}
}

// value reports whether one value has to be written: it is not the wanted one, and it is one of
// the old ones. The first of them is from the recorded revision. If that has no value, the
// API server may have set a default when the Pod was created. Such a default may be replaced.
func (p *planner) value(name corev1.ResourceName, live corev1.ResourceList, old []corev1.ResourceList, want corev1.ResourceList, elsewhere bool) bool {
	_, had := old[0][name]
	_, wanted := want[name]
	changes := func(list corev1.ResourceList) bool { return differsIn(name, list, want) }
	known := slices.ContainsFunc(old, func(list corev1.ResourceList) bool { return !differsIn(name, live, list) })
	switch {
	case !changes(live), !slices.ContainsFunc(old, changes):
		return false
	case known, !had && wanted && !elsewhere:
		if !wanted { // Kubernetes removes no value
			p.reason = cmp.Or(p.reason, ImmutableFieldChanged)
		}
		return wanted
	case changes(old[0]): // else the value of another writer may stay
		p.reason = cmp.Or(p.reason, ResourcesHeldElsewhere)
	}
	return false
}

// put adds a value to the plan and to the Pod as it will be.
func put(planned, after *corev1.ResourceList, name corev1.ResourceName, want corev1.ResourceList) {
	for _, list := range []*corev1.ResourceList{planned, after} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = want[name]
	}
}

// resizedElsewhere reports whether another writer has resized a value of a container, as far
// as the Pod's managedFields say.
func resizedElsewhere(pod *corev1.Pod, c *ResourceChange, list string, name corev1.ResourceName) bool {
	containers := "f:containers"
	if c.Init {
		containers = "f:initContainers"
	}
	path := []string{"f:spec", containers, `k:{"name":"` + c.Container + `"}`, "f:resources", list, "f:" + string(name)}
	for _, entry := range pod.ManagedFields {
		if entry.Subresource != "resize" || entry.Manager == FieldManager || entry.FieldsV1 == nil {
			continue
		}
		var fields map[string]any
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			return true
		}
		for _, step := range path {
			fields, _ = fields[step].(map[string]any)
		}
		if fields != nil {
			return true
		}
	}
	return false
}

func restartsFor(c *corev1.Container, name corev1.ResourceName) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.ResourceName == name && p.RestartPolicy == corev1.RestartContainer
	})
}

// qosOf is the quality of service class that a Pod with these resources has.
func qosOf(pod *corev1.Pod) corev1.PodQOSClass {
	var all []*corev1.ResourceRequirements
	if pod.Spec.Resources != nil {
		all = append(all, pod.Spec.Resources)
	} else {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				all = append(all, &list[i].Resources)
			}
		}
	}
	some, guaranteed := false, true
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			some = some || !request.IsZero() || !limit.IsZero()
			guaranteed = guaranteed && !limit.IsZero() && podstate.EqualQuantities(request, limit)
		}
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// Patch renders the plan as a strategic merge patch of the Pod's subresource
// resize, with the resourceVersion of the Pod that it was made for as precondition.
func (r Resizing) Patch(resourceVersion string) ([]byte, error) {
	spec := map[string][]any{}
	for _, c := range r.Containers {
		list := "containers"
		if c.Init {
			list = "initContainers"
		}
		spec[list] = append(spec[list], map[string]any{"name": c.Container, "resources": corev1.ResourceRequirements{Requests: c.Requests, Limits: c.Limits}})
	}
	return json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": resourceVersion}, "spec": spec})
}
