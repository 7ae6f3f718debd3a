package inject

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// consumer is a container of the Pod after injection.
type consumer struct {
	containerResources
	native bool
	added  bool // by this plan
}

// requests yields what the container requests of each resource.
func (c *consumer) requests() iter.Seq2[string, *amount] {
	return func(yield func(string, *amount) bool) {
		for name, q := range c.Requests {
			if q != nil && !yield(name, q) {
				return
			}
		}
		for name, q := range c.Limits { // API servers fill in a missing request
			if q != nil && c.Requests[name] == nil && !yield(name, q) {
				return
			}
		}
	}
}

// usage is what a Pod requests of one resource. All containers and native sidecars run at the
// same time. Before that the init containers run one by one, each with the native sidecars in
// front of it.
type usage struct{ total, native, peak resource.Quantity }

func (u *usage) add(q resource.Quantity, isInit, isNative bool) {
	if !isInit {
		u.total.Add(q)
		return
	}
	runs := u.native.DeepCopy()
	runs.Add(q)
	if isNative {
		u.total.Add(q)
		u.native = runs
	}
	keepLarger(&u.peak, runs)
}

func (u *usage) sum() resource.Quantity {
	sum := u.total
	keepLarger(&sum, u.peak)
	return sum
}

// demand is what a Pod requests of one resource that added containers request.
type demand struct {
	with, without usage // the added containers
	largest       *consumer
	requested     *amount // by the largest
}

// fitPodResources compares the resources of containers with those that the Pod has as a whole:
// the requests of all together, and the limits one by one. Only resources of added containers
// can be at fault.
func (c *fitter) fitPodResources() error {
	if c.pod.Spec.Resources == nil || c.pod.Spec.OS == string(corev1.Windows) {
		return nil
	}
	inits, err := c.consumers(InitContainers)
	if err != nil {
		return err
	}
	containers, err := c.consumers(Containers)
	if err != nil {
		return err
	}
	demands := demandsOf(inits, containers)
	names := slices.Sorted(maps.Keys(demands))
	budget, err := c.budget(names)
	if err != nil || len(names) == 0 {
		return err
	}
	for i := range containers {
		if err := c.fitLimits(&containers[i], &budget); err != nil {
			return err
		}
	}
	for _, name := range names {
		list, most := requests, budget.Requests[name]
		if most == nil && (name == string(corev1.ResourceCPU) || name == string(corev1.ResourceMemory)) {
			list, most = limits, budget.Limits[name] // API servers fill in the request with the sum of the containers
		}
		if most == nil {
			continue
		}
		if err := c.fitRequests(demands[name], name, list, most); err != nil {
			return err
		}
	}
	return nil
}

// fitLimits checks that an added container has no limit above that of the Pod.
func (c *fitter) fitLimits(container *consumer, budget *containerResources) error {
	if !container.added {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(container.Limits)) {
		limit, most := container.Limits[name], budget.Limits[name]
		if limit != nil && most != nil && limit.Cmp(most.Quantity) > 0 {
			return c.overBudget(container, limits, name, fmt.Sprintf("the limit of %s is above spec.resources.limits.%s of the Pod, which is %s", limit, name, most),
				fmt.Sprintf("set spec.resources.limits.%s of the Pod to %s or more, or lower the limit of the sidecar", name, limit))
		}
	}
	return nil
}

// demandsOf adds up what the containers request of each resource that an added one requests.
func demandsOf(inits, containers []consumer) map[string]*demand {
	demands := map[string]*demand{}
	for _, all := range [][]consumer{inits, containers} {
		for i := range all {
			if !all[i].added {
				continue
			}
			for name, q := range all[i].requests() {
				d := demands[name]
				if d == nil {
					d = new(demand)
					demands[name] = d
				}
				if d.largest == nil || q.Cmp(d.requested.Quantity) > 0 {
					d.largest, d.requested = &all[i], q
				}
			}
		}
	}
	for list, all := range [][]consumer{inits, containers} {
		for i := range all {
			for name, q := range all[i].requests() {
				d := demands[name]
				if d == nil {
					continue
				}
				d.with.add(q.Quantity, list == 0, all[i].native)
				if !all[i].added {
					d.without.add(q.Quantity, list == 0, all[i].native)
				}
			}
		}
	}
	return demands
}

// fitRequests checks that the containers together request no more of a resource than most,
// which is among the limits or requests of the Pod.
func (c *fitter) fitRequests(d *demand, name, list string, most *amount) error {
	with, without := d.with.sum(), d.without.sum()
	if with.Cmp(most.Quantity) <= 0 || without.Cmp(most.Quantity) > 0 {
		return nil
	}
	return c.overBudget(d.largest, requests, name,
		fmt.Sprintf("the sidecar requests %s; so the containers of the Pod together request %s, and spec.resources.%s.%s of the Pod is %s", d.requested, &with, list, name, most),
		fmt.Sprintf("set spec.resources.%s.%s of the Pod to %s or more, or lower the requests of the sidecar", list, name, &with))
}

func (c *fitter) overBudget(of *consumer, list, name, problem, remedy string) error {
	s, _ := c.sidecarNamed(of.name)
	member := ".resources." + list + "." + name
	if s.template != nil && s.template.resources != nil {
		member = ".resourcesPolicy"
	}
	err := s.misfit(member, problem, remedy)
	err.PodResources = true
	return err
}

// consumers are the containers of a list after injection, in order.
func (c *fitter) consumers(list List) ([]consumer, error) {
	occupants := c.after(list, c.edits)
	all := make([]consumer, len(occupants))
	for i, o := range occupants {
		view := o.ContainerView
		if o.edit != nil {
			var body struct {
				Resources     json.RawMessage `json:"resources"`
				RestartPolicy string          `json:"restartPolicy"`
			}
			_ = json.Unmarshal(o.edit.Body, &body) // we wrote it
			view = &ContainerView{Name: o.Name, Resources: body.Resources, RestartPolicy: body.RestartPolicy}
		}
		resources, err := parseResources(view)
		if err != nil {
			return nil, err
		}
		all[i] = consumer{resources, view.isNative(), o.edit != nil}
	}
	return all, nil
}
