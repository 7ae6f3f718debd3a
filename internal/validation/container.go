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
	volumes, names := volumesByName(spec.Volumes), sets.New[string]()
	var errs field.ErrorList
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], path.Child("initContainers").Index(i)
		errs = append(errs, validateUniqueName(c.Name, names, at.Child("name"))...)
		errs = append(errs, validateContainer(&c.Container, volumes, at)...)
		errs = append(errs, validateRestartRules(c.RestartPolicyRules, c.IsNative(), at.Child("restartPolicyRules"))...)
		errs = append(errs, validateInitContainer(c, at)...)
		errs = append(errs, validateSidecar(c, c.IsNative(), at)...)
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		errs = append(errs, validateUniqueName(c.Name, names, at.Child("name"))...)
		errs = append(errs, validateContainer(&c.Container, volumes, at)...)
		errs = append(errs, validateRestartRules(c.RestartPolicyRules, false, at.Child("restartPolicyRules"))...)
		errs = append(errs, validateAppContainer(c, at)...)
		errs = append(errs, validateSidecar(c, true, at)...)
	}
	errs = append(errs, validateHostPortsAcross(spec.Containers, path.Child("containers"))...)
	errs = append(errs, validateFileKeyVolumes(spec, path)...)
	return append(errs, validateHotUpgradeNames(spec, names, path)...)
}

// validateContainer checks what every container needs, in the order of its
// fields. Members with values that the API server fills in may be absent.
func validateContainer(c *corev1.Container, volumes map[string]*corev1.Volume, path *field.Path) field.ErrorList {
	errs := validateImage(c.Image, path.Child("image"))
	errs = append(errs, validatePorts(c.Ports, path.Child("ports"))...)
	errs = append(errs, validateEnvFrom(c.EnvFrom, path.Child("envFrom"))...)
	errs = append(errs, validateEnv(c.Env, path.Child("env"))...)
	errs = append(errs, validateResources(&c.Resources, path.Child("resources"))...)
	errs = append(errs, validateResizePolicy(c.ResizePolicy, path.Child("resizePolicy"))...)
	errs = append(errs, validateVolumeMounts(c, volumes, path.Child("volumeMounts"))...)
	errs = append(errs, validateVolumeDevices(c, volumes, path.Child("volumeDevices"))...)
	errs = append(errs, validateValue(c.TerminationMessagePolicy, path.Child("terminationMessagePolicy"),
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validateValue(c.ImagePullPolicy, path.Child("imagePullPolicy"), pullPolicies...)...)
	return append(errs, validateSecurityContext(c.SecurityContext, path.Child("securityContext"))...)
}

var pullPolicies = []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}

// validateInitContainer checks what only init containers have to obey.
func validateInitContainer(c *appsv1beta1.SidecarContainer, path *field.Path) field.ErrorList {
	if c.IsNative() {
		return validateProbes(&c.Container, path)
	}
	var errs field.ErrorList
	if c.RestartPolicy != nil {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), *c.RestartPolicy, []corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyAlways}))
	}
	for _, member := range []member{
		{"livenessProbe", c.LivenessProbe != nil}, {"readinessProbe", c.ReadinessProbe != nil},
		{"startupProbe", c.StartupProbe != nil}, {"lifecycle", c.Lifecycle != nil},
	} {
		if member.set {
			errs = append(errs, field.Forbidden(path.Child(member.name), "an init container that ends has none; remove it, or set restartPolicy Always"))
		}
	}
	for i, policy := range c.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer {
			errs = append(errs, field.Invalid(path.Child("resizePolicy").Index(i).Child("restartPolicy"), policy.RestartPolicy, "an init container that ends is not restarted; remove it, or set restartPolicy Always"))
		}
	}
	return errs
}

// validateAppContainer checks what only containers have to obey.
func validateAppContainer(c *appsv1beta1.SidecarContainer, path *field.Path) (errs field.ErrorList) {
	if c.RestartPolicy != nil {
		errs = append(errs, field.Forbidden(path.Child("restartPolicy"), "only init containers have one; remove it, or move the sidecar to initContainers"))
	}
	errs = append(errs, validateProbes(&c.Container, path)...)
	errs = append(errs, validatePodInjectPolicy(c.PodInjectPolicy, path.Child("podInjectPolicy"))...)
	errs = append(errs, validateShareVolumePolicy(c.ShareVolumePolicy.Type, path.Child("shareVolumePolicy", "type"))...)
	return append(errs, validateTransferEnv(c.TransferEnv, path.Child("transferEnv"))...)
}

// validateSidecar checks what a SidecarSet adds to a container of either list.
// One that stays is a container or a native sidecar.
func validateSidecar(c *appsv1beta1.SidecarContainer, stays bool, path *field.Path) (errs field.ErrorList) {
	if stays {
		errs = append(errs, validateHotUpgrade(c, path)...)
	}
	if c.ResourcesPolicy != nil && !stays {
		return append(errs, field.Invalid(path.Child("resourcesPolicy"), "", "an init container may have it with restartPolicy Always only; remove it and set resources"))
	}
	return append(errs, validateResourcesPolicy(c, path)...)
}

// validateUniqueName checks the name of a container or volume, and adds it to names.
func validateUniqueName(name string, names sets.Set[string], path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "give it a name that is unique in this SidecarSet")}
	}
	errs := invalid(path, name, validation.IsDNS1123Label(name))
	if names.Has(name) {
		errs = append(errs, duplicate(path, name, "names are unique across containers and initContainers, and among volumes; rename one"))
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

func validatePodInjectPolicy(policy appsv1beta1.PodInjectPolicyType, path *field.Path) field.ErrorList {
	return validateChoice(policy, path, appsv1beta1.BeforeAppContainer, appsv1beta1.AfterAppContainer)
}

func validateShareVolumePolicy(policy appsv1beta1.ShareVolumePolicyType, path *field.Path) field.ErrorList {
	return validateChoice(policy, path, appsv1beta1.ShareVolumePolicyEnabled, appsv1beta1.ShareVolumePolicyDisabled)
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
