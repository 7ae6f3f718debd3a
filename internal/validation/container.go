package validation

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateContainers checks both lists. Rules that only containers have to obey
// are those that the reference does not apply to init containers.
func validateContainers(spec *appsv1beta1.SidecarSetSpec, path *field.Path) field.ErrorList {
	if len(spec.InitContainers)+len(spec.Containers) == 0 {
		return field.ErrorList{field.Required(path, "at least one of containers and initContainers must have an element; add a sidecar")}
	}
	volumes, names := volumeNames(spec.Volumes), sets.New[string]()
	var errs field.ErrorList
	for i := range spec.InitContainers {
		errs = append(errs, validateContainer(&spec.InitContainers[i], names, volumes, path.Child("initContainers").Index(i))...)
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		errs = append(errs, validateContainer(c, names, volumes, at)...)
		errs = append(errs, validatePodInjectPolicy(c.PodInjectPolicy, at.Child("podInjectPolicy"))...)
		errs = append(errs, validateShareVolumePolicy(c.ShareVolumePolicy.Type, at.Child("shareVolumePolicy", "type"))...)
	}
	return errs
}

// validateContainer checks what every container needs. It adds its name to names.
func validateContainer(c *appsv1beta1.SidecarContainer, names, volumes sets.Set[string], path *field.Path) field.ErrorList {
	errs := validateUniqueName(c.Name, names, path.Child("name"))
	errs = append(errs, validateImage(c.Image, path.Child("image"))...)
	for i := range c.VolumeMounts {
		errs = append(errs, validateVolumeReference(c.VolumeMounts[i].Name, volumes, path.Child("volumeMounts").Index(i).Child("name"))...)
	}
	for i := range c.VolumeDevices {
		errs = append(errs, validateVolumeReference(c.VolumeDevices[i].Name, volumes, path.Child("volumeDevices").Index(i).Child("name"))...)
	}
	return errs
}

// validateUniqueName checks the name of a container or volume, and adds it to names.
func validateUniqueName(name string, names sets.Set[string], path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "give it a name that is unique in this SidecarSet")}
	}
	var errs field.ErrorList
	for _, problem := range validation.IsDNS1123Label(name) {
		errs = append(errs, field.Invalid(path, name, problem))
	}
	if names.Has(name) {
		duplicate := field.Duplicate(path, name)
		duplicate.Detail = "names are unique across containers and initContainers, and among volumes; rename one"
		errs = append(errs, duplicate)
	}
	names.Insert(name)
	return errs
}

func validateImage(image string, path *field.Path) field.ErrorList {
	if image == "" {
		return field.ErrorList{field.Required(path, "name the image that the sidecar runs")}
	}
	if strings.TrimSpace(image) != image {
		return field.ErrorList{field.Invalid(path, image, "must not begin or end with white space; remove it")}
	}
	return nil
}

func validateVolumeReference(name string, volumes sets.Set[string], path *field.Path) field.ErrorList {
	if volumes.Has(name) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "is no volume of this SidecarSet; declare it in spec.volumes")}
}

func validatePodInjectPolicy(policy appsv1beta1.PodInjectPolicyType, path *field.Path) field.ErrorList {
	switch policy {
	case appsv1beta1.BeforeAppContainer, appsv1beta1.AfterAppContainer:
		return nil
	}
	return field.ErrorList{field.NotSupported(path, policy, []appsv1beta1.PodInjectPolicyType{appsv1beta1.BeforeAppContainer, appsv1beta1.AfterAppContainer})}
}

func validateShareVolumePolicy(policy appsv1beta1.ShareVolumePolicyType, path *field.Path) field.ErrorList {
	switch policy {
	case appsv1beta1.ShareVolumePolicyEnabled, appsv1beta1.ShareVolumePolicyDisabled:
		return nil
	}
	return field.ErrorList{field.NotSupported(path, policy, []appsv1beta1.ShareVolumePolicyType{appsv1beta1.ShareVolumePolicyEnabled, appsv1beta1.ShareVolumePolicyDisabled})}
}

// validateContainersUpdate lets containers be removed and changed, but neither
// added nor renamed: running Pods could not follow.
func validateContainersUpdate(containers, old []appsv1beta1.SidecarContainer, path *field.Path) field.ErrorList {
	stored := make(map[string]*appsv1beta1.SidecarContainer, len(old))
	for i := range old {
		stored[old[i].Name] = &old[i]
	}
	var errs field.ErrorList
	for i := range containers {
		c, at := &containers[i], path.Index(i)
		before := stored[c.Name]
		if before == nil {
			errs = append(errs, field.Invalid(at.Child("name"), c.Name,
				fmt.Sprintf("container %s is not found in the stored SidecarSet: an update may not add or rename containers; put it into a SidecarSet of its own, or delete this one and create it again", c.Name)))
			continue
		}
		was, is := before.UpgradeStrategy.UpgradeType, c.UpgradeStrategy.UpgradeType
		if was != "" && was != is {
			errs = append(errs, field.Invalid(at.Child("upgradeStrategy", "upgradeType"), is,
				fmt.Sprintf("is immutable; set it back to %s, or delete the SidecarSet and create it again", was)))
		}
	}
	return errs
}

func isNativeSidecar(c *appsv1beta1.SidecarContainer) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
