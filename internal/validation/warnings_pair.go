package validation

import (
	"slices"

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

// pairVolumes finds volumes that name a hot-upgrade sidecar.
func (w *warner) pairVolumes(spec *appsv1beta1.SidecarSetSpec, path *field.Path) {
	pairs := sets.New[string]()
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
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
