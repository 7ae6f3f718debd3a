package inject

import (
	"encoding/json"
	"fmt"
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

// fitPodResources compares the resources of containers with those that the Pod has as a whole:
// the requests of all together, and the limits one by one.
func (c *computation) fitPodResources() error {
	if c.pod.Spec.Resources == nil || c.pod.Spec.OS == string(corev1.Windows) {
		return nil
	}
	budget, err := c.budget()
	if err != nil {
		return err
	}
	inits, err := c.consumers(InitContainers)
	if err != nil {
		return err
	}
	containers, err := c.consumers(Containers)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(budget.Limits)) {
		most := budget.Limits[name]
		if most == nil {
			continue
		}
		for i := range containers {
			if limit := containers[i].Limits[name]; limit != nil && containers[i].added && limit.Cmp(most.Quantity) > 0 {
				return c.overBudget(&containers[i], limits, name, fmt.Sprintf("the limit of %s is above spec.resources.limits.%s of the Pod, which is %s", limit, name, most),
					fmt.Sprintf("set spec.resources.limits.%s of the Pod to %s or more, or lower the limit of the sidecar", name, limit))
			}
		}
		if budget.Requests[name] == nil && (name == string(corev1.ResourceCPU) || name == string(corev1.ResourceMemory)) {
			// API servers fill in the request of the Pod with the sum of its containers.
			if err := c.fitRequests(inits, containers, name, limits, most); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(budget.Requests)) {
		if most := budget.Requests[name]; most != nil {
			if err := c.fitRequests(inits, containers, name, requests, most); err != nil {
				return err
			}
		}
	}
	return nil
}

// fitRequests checks that the containers together request no more of a resource than most,
// which is among the limits or requests of the Pod.
func (c *computation) fitRequests(inits, containers []consumer, name, list string, most *amount) error {
	with := together(inits, containers, name, func(*consumer) bool { return true })
	without := together(inits, containers, name, func(c *consumer) bool { return !c.added })
	if with.Cmp(most.Quantity) <= 0 || without.Cmp(most.Quantity) > 0 {
		return nil
	}
	var largest *consumer
	var requested *amount
	for _, all := range [][]consumer{inits, containers} {
		for i := range all {
			if q := all[i].request(name); q != nil && all[i].added && (largest == nil || q.Cmp(requested.Quantity) > 0) {
				largest, requested = &all[i], q
			}
		}
	}
	if largest == nil {
		return nil
	}
	return c.overBudget(largest, requests, name,
		fmt.Sprintf("the sidecar requests %s; so the containers of the Pod together request %s, and spec.resources.%s.%s of the Pod is %s", requested, &with, list, name, most),
		fmt.Sprintf("set spec.resources.%s.%s of the Pod to %s or more, or lower the requests of the sidecar", list, name, &with))
}

// together is what a Pod requests of a resource: all containers and native sidecars run at the
// same time, and before that the init containers, one by one, each with the native sidecars in
// front of it.
func together(inits, containers []consumer, name string, counts func(*consumer) bool) resource.Quantity {
	var total, native, peak resource.Quantity
	for i := range containers {
		if q := containers[i].request(name); q != nil && counts(&containers[i]) {
			total.Add(q.Quantity)
		}
	}
	for i := range inits {
		q := inits[i].request(name)
		if q == nil || !counts(&inits[i]) {
			continue
		}
		runs := native.DeepCopy()
		runs.Add(q.Quantity)
		if inits[i].native {
			total.Add(q.Quantity)
			native = runs
		}
		keepLarger(&peak, runs)
	}
	keepLarger(&total, peak)
	return total
}

func (c *computation) overBudget(of *consumer, list, name, problem, remedy string) error {
	s, _ := c.sidecarNamed(of.name)
	if s.template != nil && s.template.resources != nil {
		return s.misfit(".resourcesPolicy", problem, remedy)
	}
	return s.misfit(".resources."+list+"."+name, problem, remedy)
}

// consumers are the containers of a list after injection, in order.
func (c *computation) consumers(list List) ([]consumer, error) {
	occupants := c.after(list)
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
