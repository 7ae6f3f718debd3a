package validation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// pairResources finds variables of a hot-upgrade sidecar that name the sidecar: its two
// containers have other names in Pods.
func (w *warner) pairResources(c *appsv1beta1.SidecarContainer, path *field.Path) {
	if !c.IsHotUpgrade() {
		return
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.ResourceFieldRef != nil && from.ResourceFieldRef.ContainerName == c.Name {
			w.add(path.Child("env").Index(i).Child("valueFrom", "resourceFieldRef", "containerName"), "no container of a Pod is called %s, since HotUpgrade adds -1 and -2; remove containerName, which means the container itself", c.Name)
		}
	}
}

// pairPorts finds ports of a hot-upgrade sidecar. In a Pod on the node's network the API server
// makes each of them a port of the node, which only one container can have.
func (w *warner) pairPorts(c *appsv1beta1.SidecarContainer, path *field.Path) {
	if c.IsHotUpgrade() && len(c.Ports) > 0 {
		w.add(path.Child("ports"), "HotUpgrade gives them to two containers, so that a Pod with hostNetwork is refused; remove them, since a container can listen without them, or do not select such Pods")
	}
}

// pairProbes finds probes of a hot-upgrade sidecar that do not tell its two containers apart,
// because both have the Pod's address.
func (w *warner) pairProbes(c *appsv1beta1.SidecarContainer, path *field.Path) {
	if !c.IsHotUpgrade() {
		return
	}
	for _, of := range []struct {
		name  string
		probe *corev1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
		if p := of.probe; p != nil && (p.HTTPGet != nil || p.TCPSocket != nil || p.GRPC != nil) {
			w.add(path.Child(of.name), "HotUpgrade probes both containers at the same port of the Pod, so that one of them can answer for the other, and a hot upgrade goes on before the new one serves; use exec")
		}
	}
}

// pairVolumes finds volumes that name a hot-upgrade sidecar.
func (w *warner) pairVolumes(spec *appsv1beta1.SidecarSetSpec, path *field.Path) {
	pairs := sets.New[string]()
	for c := range containersOf(spec) {
		if c.IsHotUpgrade() {
			pairs.Insert(c.Name)
		}
	}
	check := func(items []corev1.DownwardAPIVolumeFile, at *field.Path) {
		for i := range items {
			if ref := items[i].ResourceFieldRef; ref != nil && pairs.Has(ref.ContainerName) {
				w.add(at.Index(i).Child("resourceFieldRef", "containerName"), "no container of a Pod is called %s, since HotUpgrade adds -1 and -2; name %[1]s-1", ref.ContainerName)
			}
		}
	}
	for i := range spec.Volumes {
		v, at := &spec.Volumes[i], path.Index(i)
		if v.DownwardAPI != nil {
			check(v.DownwardAPI.Items, at.Child("downwardAPI", "items"))
		}
		if v.Projected == nil {
			continue
		}
		for j := range v.Projected.Sources {
			if source := v.Projected.Sources[j].DownwardAPI; source != nil {
				check(source.Items, at.Child("projected", "sources").Index(j).Child("downwardAPI", "items"))
			}
		}
	}
}
