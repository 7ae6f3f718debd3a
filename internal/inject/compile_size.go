package inject

import (
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// dropCompiled removes from the typed view the parts that have been compiled, which are
// nearly all of it, the annotation that only kubectl apply reads, and managedFields.
func (p *Compiled) dropCompiled() {
	set := p.Set
	delete(set.Annotations, corev1.LastAppliedConfigAnnotation)
	set.ManagedFields = nil
	set.Spec.InitContainers = outlines(set.Spec.InitContainers)
	set.Spec.Containers = outlines(set.Spec.Containers)
}

// outlines returns copies of containers with only the members that decisions read after the
// containers were compiled.
func outlines(containers []appsv1beta1.SidecarContainer) []appsv1beta1.SidecarContainer {
	if containers == nil {
		return nil
	}
	out := make([]appsv1beta1.SidecarContainer, len(containers))
	for i := range containers {
		c := &containers[i]
		out[i] = appsv1beta1.SidecarContainer{
			Container:       corev1.Container{Name: c.Name, Image: c.Image, RestartPolicy: c.RestartPolicy},
			PodInjectPolicy: c.PodInjectPolicy,
			UpgradeStrategy: c.UpgradeStrategy,
		}
	}
	return out
}

// What the fixed parts of a compiled SidecarSet take, as allocated.
const (
	compiledBytes  = 3 << 10 // with the typed view, its metadata and selectors
	containerBytes = 3 << 9  // an outline and a sidecar, with the members of securityContext
	volumeBytes    = 512     // the typed one
	portBytes      = 128
	entryBytes     = 64
)

// estimate is the memory that the compiled SidecarSet takes: mostly the
// bodies.
func (p *Compiled) estimate() int {
	size := compiledBytes + (len(p.Set.Spec.InitContainers)+len(p.Set.Spec.Containers))*containerBytes + len(p.Set.Spec.Volumes)*volumeBytes
	for _, list := range p.objects {
		for i := range list.parts {
			size += entryBytes + len(list.parts[i].body)
		}
	}
	for _, list := range [][]sidecar{p.initContainers, p.containers} {
		for i := range list {
			size += len(list[i].body) + list[i].template.bytes() + len(list[i].ports)*portBytes
		}
	}
	for _, texts := range []map[string]string{p.Set.Annotations, p.Set.Labels} {
		for key, value := range texts {
			size += entryBytes + len(key) + len(value)
		}
	}
	return size
}

func (t *template) bytes() int {
	if t == nil {
		return 0
	}
	size := len(t.rest)
	for _, list := range [][]element{t.env, t.mounts, t.devices, t.hotEnv} {
		for i := range list {
			size += entryBytes + len(list[i].key) + len(list[i].body)
		}
	}
	return size
}
