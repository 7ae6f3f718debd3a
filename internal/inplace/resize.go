package inplace

import (
	"cmp"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Resizing is the plan that changes the cpu and memory of a Pod's sidecars to the
// current content.
type Resizing struct {
	// Containers are those whose values are to be written now.
	Containers []Resized
	// Restarts are the kinds of the containers that the kubelet restarts because of it.
	Restarts Kinds
	// Sizes has to be recorded on the Pod before it is resized.
	Sizes []Size
}

// Resized holds the values of one container that have to change.
type Resized struct {
	Container        string
	Init             bool
	Requests, Limits corev1.ResourceList
}

// PlanResize compares a Pod with two contents of a SidecarSet, three ways: a value
// is changed only if the Pod still has that of the old content, or one that the
// operator has written since, as the Pod records. If another writer has changed it,
// or if Kubernetes would refuse the result, the reason says so, and there is no plan.
// The plan writes nothing if the Pod has all values.
func PlanResize(pod *corev1.Pod, changes []ResourceChange, recorded []Size) (Resizing, Reason) {
	p := planner{pod: pod, after: pod.DeepCopy(), recorded: recorded}
	for i := range changes {
		c := resizable(p.after, &changes[i])
		if c == nil {
			return Resizing{}, ImmutableFieldChanged
		}
		old, now := &changes[i].Old, &changes[i].New
		p.change(c, false, old.Requests, now.Requests)
		p.change(c, true, old.Limits, now.Limits)
	}
	p.undo()
	switch {
	case p.reason != "":
		return Resizing{}, p.reason
	case qosOf(pod) != qosOf(p.after):
		return Resizing{}, ImmutableFieldChanged
	}
	return p.plan, ""
}

// planner is one run of PlanResize.
type planner struct {
	pod, after *corev1.Pod
	recorded   []Size
	plan       Resizing
	reason     Reason
}

// change sets the values of a container that differ between two contents to those of the second.
func (p *planner) change(c *corev1.Container, limit bool, old, now corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		want, wanted := now[name]
		if !wanted || !differsIn(name, old, now) {
			continue
		}
		size := Size{Container: c.Name, Limit: limit, Resource: name, Values: []string{"", textOf(want)}}
		if before, had := old[name]; had {
			size.Values[0] = textOf(before)
		}
		p.set(c, size)
	}
}

// undo takes back values that an earlier resize has changed, and that do not differ between
// the two contents.
func (p *planner) undo() {
	done := p.plan.Sizes
	for i := range p.recorded {
		size := p.recorded[i]
		if slices.ContainsFunc(done, size.about) {
			continue
		}
		c, _ := containerOf(p.after, size.Container)
		if c == nil {
			continue
		}
		live, present := listOf(c, size.Limit)[size.Resource]
		if size.recorded(live, present) { // else it is another writer's, and may stay
			p.set(c, Size{size.Container, size.Limit, size.Resource, []string{size.from(), size.from()}})
		}
	}
}

// set gives a container the last value of a Size.
func (p *planner) set(c *corev1.Container, size Size) {
	live, present := listOf(c, size.Limit)[size.Resource]
	known := size
	if i := slices.IndexFunc(p.recorded, size.about); i >= 0 {
		known.Values = slices.Concat(size.Values, p.recorded[i].Values)
	}
	switch {
	case is(size.to(), live, present):
	case !known.recorded(live, present):
		p.reason = cmp.Or(p.reason, ResourcesHeldElsewhere)
		return
	case size.to() == "": // Kubernetes removes no value
		p.reason = cmp.Or(p.reason, ImmutableFieldChanged)
		return
	default:
		if present && !is(size.from(), live, present) {
			size.Values = slices.Insert(size.Values, 1, textOf(live))
		}
		p.write(c, size)
	}
	p.plan.Sizes = append(p.plan.Sizes, size)
}

// write adds a value to the plan.
func (p *planner) write(c *corev1.Container, size Size) {
	containers := p.plan.Containers
	if n := len(containers); n == 0 || containers[n-1].Container != c.Name {
		containers = append(containers, Resized{Container: c.Name, Init: Find(p.after.Spec.Containers, c.Name) == nil})
	}
	resized := &containers[len(containers)-1]
	p.plan.Containers = containers
	live, list := &c.Resources.Requests, &resized.Requests
	if size.Limit {
		live, list = &c.Resources.Limits, &resized.Limits
	}
	want, ok := parseQuantity(size.to())
	if !ok {
		p.reason = cmp.Or(p.reason, ResourcesHeldElsewhere)
		return
	}
	for _, list := range []*corev1.ResourceList{live, list} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[size.Resource] = want
	}
	if restartsFor(c, size.Resource) {
		p.plan.Restarts = p.plan.Restarts.With(kindOf(p.pod, c, resized.Init))
	}
}

// Covers reports whether a Pod that records these Sizes may be resized: recorded has all
// values that the plan writes, and those that they replace.
func (r Resizing) Covers(recorded []Size) bool {
	return !slices.ContainsFunc(r.Sizes, func(s Size) bool {
		i := slices.IndexFunc(recorded, s.about)
		return i < 0 || recorded[i].to() != s.to() || !slices.Contains(recorded[i].Values, s.Values[len(s.Values)-2])
	})
}

func resizable(pod *corev1.Pod, change *ResourceChange) *corev1.Container {
	if !change.Init {
		return Find(pod.Spec.Containers, change.Container)
	}
	c := Find(pod.Spec.InitContainers, change.Container)
	if c == nil || InitKindOf(c) != Native {
		return nil
	}
	return c
}

func kindOf(pod *corev1.Pod, c *corev1.Container, init bool) Kind {
	if init {
		return InitKindOf(c)
	}
	return KindOf(pod, c)
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
			guaranteed = guaranteed && !limit.IsZero() && equal(request, limit)
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
	type resources struct {
		Requests corev1.ResourceList `json:"requests,omitempty"`
		Limits   corev1.ResourceList `json:"limits,omitempty"`
	}
	type container struct {
		Name      string    `json:"name"`
		Resources resources `json:"resources"`
	}
	var patch struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Spec struct {
			InitContainers []container `json:"initContainers,omitempty"`
			Containers     []container `json:"containers,omitempty"`
		} `json:"spec"`
	}
	patch.Metadata.ResourceVersion = resourceVersion
	for _, c := range r.Containers {
		list := &patch.Spec.Containers
		if c.Init {
			list = &patch.Spec.InitContainers
		}
		*list = append(*list, container{c.Container, resources{c.Requests, c.Limits}})
	}
	return json.Marshal(patch)
}

// ResizeState is the progress of a resize.
type ResizeState uint8

// The states of a resize.
const (
	// NoResize: none is under way.
	NoResize ResizeState = iota
	// ResizeOpen: the Pod's spec does not have the values yet, or not any more.
	ResizeOpen
	// ResizeMoving: the kubelet has not carried it out yet.
	ResizeMoving
	// ResizeDone: the containers have the values of the spec.
	ResizeDone
	// ResizePutOff: the node does not have enough free resources now. The kubelet tries
	// again.
	ResizePutOff
	// ResizeExcluded: the kubelet refuses it, and does not try again.
	ResizeExcluded
	// ResizeBroken: the kubelet tried, and tries again.
	ResizeBroken
	// ResizeUnanswered: the kubelet has reported nothing for five minutes.
	ResizeUnanswered
)

// Why returns the reason for which a Pod is not updated in this state, if the state may last.
func (s ResizeState) Why() Reason { return lasting[s] }

var lasting = map[ResizeState]Reason{
	ResizePutOff: ResizeDeferred, ResizeExcluded: ResizeInfeasible, ResizeBroken: ResizeFailed, ResizeUnanswered: ResizeTimedOut,
}

// ObserveResize reads from a Pod's status how far the kubelet is with the resources of
// these containers, as the Pod's spec has them, and the kubelet's message about that. A
// message about other containers does not count once these containers have their resources.
func ObserveResize(pod *corev1.Pod, containers []string) (state ResizeState, message string) {
	if len(containers) == 0 {
		return ResizeDone, ""
	}
	if observed := pod.Status.ObservedGeneration; observed != 0 && observed < pod.Generation {
		return ResizeMoving, ""
	}
	pending := ResizeMoving
	for i := range pod.Status.Conditions {
		switch c := &pod.Status.Conditions[i]; {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible:
			pending, message = ResizeExcluded, c.Message
		case c.Type == corev1.PodResizePending:
			pending, message = ResizePutOff, c.Message
		case c.Type == corev1.PodResizeInProgress && c.Reason == corev1.PodReasonError:
			return ResizeBroken, c.Message
		case c.Type == corev1.PodResizeInProgress:
			return ResizeMoving, c.Message
		}
	}
	for _, name := range containers {
		c, status := containerOf(pod, name)
		if c == nil || status == nil || !has(c.Resources, status) {
			return pending, message
		}
	}
	return ResizeDone, ""
}

// has reports whether a container has the cpu and memory of its spec. The runtime
// rounds tiny values of cpu. What the kubelet has allocated is exact, so that counts
// for requests.
func has(spec corev1.ResourceRequirements, status *corev1.ContainerStatus) bool {
	if status.Resources == nil {
		return false
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if want, ok := spec.Requests[name]; ok {
			allocated, exact := status.AllocatedResources[name]
			if actual := status.Resources.Requests[name]; !equal(actual, want) && !(exact && equal(allocated, want)) {
				return false
			}
		}
		if want, ok := spec.Limits[name]; ok {
			if actual := status.Resources.Limits[name]; !equal(actual, want) {
				return false
			}
		}
	}
	return true
}
