package inplace

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/internal/jsonread"
	"github.com/sidecarset/operator/internal/podstate"
)

// Difference is the difference between the hashed parts of two revisions of a SidecarSet.
type Difference struct {
	// Resources are the sidecars whose cpu or memory differs, in the order of the
	// spec, containers first. If Other is true, some may be missing.
	Resources []ResourceChange
	// Restarts: the kubelet restarts a container for it, as its resizePolicy says.
	Restarts bool
	// Other: they differ in more than images, cpu and memory, or a value is removed, so no
	// running Pod can be updated.
	Other bool
}

// ResourceChange is one sidecar with other resources.
type ResourceChange struct {
	Container string
	Init      bool
	Old, New  corev1.ResourceRequirements
}

// Compare compares two specs of SidecarSets, both defaulted, as JSON values. They
// may have members that this build does not know. It changes neither.
func Compare(old, now map[string]any) Difference {
	var d Difference
	d.compare(list(old, "containers"), list(now, "containers"), false)
	if HasNative(old) || HasNative(now) { // only then the hash covers them
		d.compare(list(old, "initContainers"), list(now, "initContainers"), true)
	}
	return d
}

func list(spec map[string]any, name string) []any {
	all, _ := spec[name].([]any)
	return all
}

// HasNative reports whether a spec has a native sidecar, so that its init containers
// are part of its hash.
func HasNative(spec map[string]any) bool {
	return slices.ContainsFunc(list(spec, "initContainers"), isNative)
}

func isNative(container any) bool {
	c, _ := container.(map[string]any)
	return c["restartPolicy"] == string(corev1.ContainerRestartPolicyAlways)
}

func (d *Difference) compare(old, now []any, init bool) {
	if len(old) != len(now) {
		d.Other = true
		return
	}
	for i := range old {
		before, isObject := old[i].(map[string]any)
		after, areObjects := now[i].(map[string]any)
		if !isObject || !areObjects || !reflect.DeepEqual(others(before), others(after)) {
			d.Other = true
			return
		}
		if reflect.DeepEqual(before["resources"], after["resources"]) {
			continue
		}
		change := ResourceChange{Init: init}
		change.Container, _ = after["name"].(string)
		// With a resourcesPolicy the Pod's own containers decide. The resources of a
		// plain init container cannot be changed once it has run.
		if !decode(before["resources"], &change.Old) || !decode(after["resources"], &change.New) ||
			after["resourcesPolicy"] != nil || init && !isNative(after) || !change.isComparable() {
			d.Other = true
			return
		}
		d.Other = d.Other || !change.resizable()
		d.Resources = append(d.Resources, change)
		d.Restarts = d.Restarts || change.restarts(after["resizePolicy"])
	}
}

// restarts reports whether a resizePolicy asks for a restart when a resource that differs
// is changed. It ignores a policy that cannot be read: the API server refuses it.
func (c *ResourceChange) restarts(policies any) bool {
	var all []corev1.ContainerResizePolicy
	return decode(policies, &all) && slices.ContainsFunc(all, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer &&
			(differsIn(p.ResourceName, c.Old.Requests, c.New.Requests) || differsIn(p.ResourceName, c.Old.Limits, c.New.Limits))
	})
}

func differsIn(name corev1.ResourceName, old, now corev1.ResourceList) bool {
	before, had := old[name]
	after, has := now[name]
	return had != has || !podstate.EqualQuantities(before, after)
}

// others is a container without the members that a running Pod can get: image and resources.
func others(container map[string]any) map[string]any {
	out := maps.Clone(container)
	delete(out, "image")
	delete(out, "resources")
	return out
}

// decode decodes a part of a recorded revision. Decoding parses quantities, so they are
// bounded first.
func decode(value any, into any) bool {
	if members, ok := value.(map[string]any); ok {
		for _, list := range []string{"limits", "requests"} {
			quantities, _ := members[list].(map[string]any)
			for _, q := range quantities {
				if text, ok := q.(string); ok && !jsonread.IsShortQuantity(text) {
					return false
				}
			}
		}
	}
	text, err := json.Marshal(value)
	return err == nil && json.Unmarshal(text, into) == nil
}

// isComparable reports whether the values can be compared. It completes them.
func (c *ResourceChange) isComparable() bool {
	for _, list := range []corev1.ResourceList{c.Old.Requests, c.Old.Limits, c.New.Requests, c.New.Limits} {
		for _, q := range list {
			if !podstate.IsShortQuantity(q) {
				return false
			}
		}
	}
	complete(&c.Old)
	complete(&c.New)
	return true
}

// resizable reports whether Kubernetes allows the change: of cpu and memory only,
// and without removing a value.
func (c *ResourceChange) resizable() bool {
	return reflect.DeepEqual(c.Old.Claims, c.New.Claims) && resizableList(c.Old.Requests, c.New.Requests) && resizableList(c.Old.Limits, c.New.Limits)
}

// complete adds the requests that API servers add to Pods: the limit, where there
// is no request.
func complete(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			if r.Requests == nil {
				r.Requests = corev1.ResourceList{}
			}
			r.Requests[name] = limit
		}
	}
}

func resizableList(old, now corev1.ResourceList) bool {
	for name := range old {
		if _, kept := now[name]; !kept {
			return false
		}
	}
	for name, value := range now {
		before, had := old[name]
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && (!had || !podstate.EqualQuantities(before, value)) {
			return false
		}
	}
	return true
}
