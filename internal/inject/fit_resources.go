package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// gracePeriod is terminationGracePeriodSeconds of the Pod as API servers use it.
func (v *SpecView) gracePeriod() int64 {
	seconds, err := strconv.ParseInt(string(v.GracePeriod), 10, 64)
	switch {
	case err != nil:
		return corev1.DefaultTerminationGracePeriodSeconds
	case seconds < 0:
		return 1
	}
	return seconds
}

// quantities are the resources of a container or of the whole Pod.
type quantities struct {
	Limits   map[string]amount `json:"limits"`
	Requests map[string]amount `json:"requests"`
}

// request is what a container requests. API servers fill in a missing request from the limit.
func (q *quantities) request(name string) (amount, bool) {
	if request, ok := q.Requests[name]; ok {
		return request, true
	}
	limit, ok := q.Limits[name]
	return limit, ok
}

// consumer is a container of the Pod after injection.
type consumer struct {
	quantities
	name   string
	native bool
	added  bool // by this plan
}

// fitPodResources compares the resources of containers with those that the Pod has as a whole:
// the requests of all together, and the limits one by one.
func (c *computation) fitPodResources() error {
	if c.pod.Spec.Resources == nil || c.pod.Spec.OS == string(corev1.Windows) {
		return nil
	}
	var budget quantities
	if err := utiljson.Unmarshal(c.pod.Spec.Resources, &budget); err != nil {
		return fmt.Errorf("reading spec.resources of the Pod: %w", err)
	}
	inits, err := c.consumers(InitContainers, c.pod.InitContainers)
	if err != nil {
		return err
	}
	containers, err := c.consumers(Containers, c.pod.Containers)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(budget.Limits)) {
		most := budget.Limits[name]
		for i := range containers {
			if limit, ok := containers[i].Limits[name]; ok && containers[i].added && limit.Cmp(most.Quantity) > 0 {
				return c.overBudget(&containers[i], limits, name, fmt.Sprintf("the limit of %s is above spec.resources.limits.%s of the Pod, which is %s", &limit, name, &most),
					fmt.Sprintf("set spec.resources.limits.%s of the Pod to %s or more, or lower the limit of the sidecar", name, &limit))
			}
		}
		if _, ok := budget.Requests[name]; !ok && (name == string(corev1.ResourceCPU) || name == string(corev1.ResourceMemory)) {
			// API servers fill in the request of the Pod with the sum of its containers.
			if err := c.fitRequests(inits, containers, name, limits, most); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(budget.Requests)) {
		if err := c.fitRequests(inits, containers, name, requests, budget.Requests[name]); err != nil {
			return err
		}
	}
	return nil
}

// fitRequests checks that the containers together request no more of a resource than most,
// which is among the limits or requests of the Pod.
func (c *computation) fitRequests(inits, containers []consumer, name, list string, most amount) error {
	with := together(inits, containers, name, func(*consumer) bool { return true })
	without := together(inits, containers, name, func(c *consumer) bool { return !c.added })
	if with.Cmp(most.Quantity) <= 0 || without.Cmp(most.Quantity) > 0 {
		return nil
	}
	var largest *consumer
	var requested amount
	for _, all := range [][]consumer{inits, containers} {
		for i := range all {
			if q, ok := all[i].request(name); ok && all[i].added && (largest == nil || q.Cmp(requested.Quantity) > 0) {
				largest, requested = &all[i], q
			}
		}
	}
	if largest == nil {
		return nil
	}
	return c.overBudget(largest, requests, name,
		fmt.Sprintf("the sidecar requests %s; so the containers of the Pod together request %s, and spec.resources.%s.%s of the Pod is %s", &requested, &with, list, name, &most),
		fmt.Sprintf("set spec.resources.%s.%s of the Pod to %s or more, or lower the requests of the sidecar", list, name, &with))
}

// together is what a Pod requests of a resource: all containers and native sidecars run at the
// same time, and before that the init containers, one by one, each with the native sidecars in
// front of it.
func together(inits, containers []consumer, name string, counts func(*consumer) bool) resource.Quantity {
	var total, native, peak resource.Quantity
	for i := range containers {
		if q, ok := containers[i].request(name); ok && counts(&containers[i]) {
			total.Add(q.Quantity)
		}
	}
	for i := range inits {
		q, ok := inits[i].request(name)
		if !ok || !counts(&inits[i]) {
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
	t, s := c.sidecarNamed(of.name)
	if s.template != nil && s.template.resources != nil {
		return s.misfit(t, ".resourcesPolicy", problem, remedy)
	}
	return s.misfit(t, ".resources."+list+"."+name, problem, remedy)
}

// consumers are the containers of a list after injection, in order.
func (c *computation) consumers(list List, views []ContainerView) ([]consumer, error) {
	all := make([]consumer, len(views))
	for i := range views {
		all[i].name = views[i].Name
		raw := views[i].Raw
		if raw == nil {
			continue
		}
		all[i].native = raw.RestartPolicy == string(corev1.ContainerRestartPolicyAlways)
		if len(raw.Resources) > 0 {
			if err := utiljson.Unmarshal(raw.Resources, &all[i].quantities); err != nil {
				return nil, fmt.Errorf("reading the resources of container %q: %w", cut(views[i].Name), err)
			}
		}
	}
	for i := range c.plan.Replacements {
		if e := &c.plan.Replacements[i]; e.List == list {
			all[e.Index] = consumerOf(e)
		}
	}
	for i := range c.plan.Insertions {
		if e := &c.plan.Insertions[i]; e.List == list {
			all = slices.Insert(all, e.Index, consumerOf(e))
		}
	}
	return all, nil
}

func consumerOf(e *Edit) consumer {
	var body struct {
		Resources     quantities `json:"resources"`
		RestartPolicy string     `json:"restartPolicy"`
	}
	_ = json.Unmarshal(e.Body, &body) // we wrote it
	return consumer{body.Resources, e.Name, body.RestartPolicy == string(corev1.ContainerRestartPolicyAlways), true}
}
