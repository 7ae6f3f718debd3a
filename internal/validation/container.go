package validation

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
)

// validateContainers checks both lists. OpenKruise does not apply the rules for containers
// alone to init containers.
func validateContainers(spec *appsv1beta1.SidecarSetSpec, path place) {
	if len(spec.InitContainers)+len(spec.Containers) == 0 {
		path.required("at least one of containers and initContainers must have an element; add a sidecar")
		return
	}
	volumes, names, targets := volumesByName(spec.Volumes), sets.New[string](), new(expr.Targets)
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], path.Child("initContainers").Index(i)
		validateUniqueName(c.Name, names, at.Child("name"))
		validateContainer(&c.Container, volumes, at)
		validateInitContainer(c, at)
		validateSidecar(c, c.IsNative(), targets, at)
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		validateUniqueName(c.Name, names, at.Child("name"))
		validateContainer(&c.Container, volumes, at)
		validateAppContainer(c, at)
		validateSidecar(c, true, targets, at)
	}
	validateHostPortsAcross(spec.Containers, path.Child("containers"))
	validateFileKeyVolumes(spec, path.errs)
	validateHotUpgradeNames(spec, names, path)
}

// validateContainer checks what every container needs, in the order of its
// fields. Members with values that the API server fills in may be absent.
func validateContainer(c *corev1.Container, volumes map[string]*corev1.Volume, path place) {
	validateImage(c.Image, path.Child("image"), "name the image that the sidecar runs")
	validatePorts(c.Ports, path.Child("ports"))
	validateEnvFrom(c.EnvFrom, path.Child("envFrom"))
	validateEnv(c.Env, path.Child("env"))
	validateResources(&c.Resources, path.Child("resources"))
	validateResizePolicy(c.ResizePolicy, path.Child("resizePolicy"))
	validateVolumeMounts(c, volumes, path.Child("volumeMounts"))
	validateVolumeDevices(c, volumes, path.Child("volumeDevices"))
	validateValue(&c.TerminationMessagePolicy, path.Child("terminationMessagePolicy"),
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	validateValue(&c.ImagePullPolicy, path.Child("imagePullPolicy"), pullPolicies...)
	ifSet(c.SecurityContext, path.Child("securityContext"), validateSecurityContext)
	validateRestarts(c, path)
}

var pullPolicies = []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}

// validateInitContainer checks the rules for init containers alone.
func validateInitContainer(c *appsv1beta1.SidecarContainer, path place) {
	if c.IsNative() {
		validateProbes(&c.Container, path)
		return
	}
	for _, member := range []member{
		{"livenessProbe", c.LivenessProbe != nil}, {"readinessProbe", c.ReadinessProbe != nil},
		{"startupProbe", c.StartupProbe != nil}, {"lifecycle", c.Lifecycle != nil},
	} {
		if member.set {
			path.Child(member.name).forbidden("an init container that ends has none; remove it, or set restartPolicy Always")
		}
	}
	for i, policy := range c.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer {
			path.Child("resizePolicy").Index(i).Child("restartPolicy").invalid(policy.RestartPolicy, "an init container that ends is not restarted; remove it, or set restartPolicy Always")
		}
	}
}

// validateAppContainer checks the rules for containers alone.
func validateAppContainer(c *appsv1beta1.SidecarContainer, path place) {
	validateProbes(&c.Container, path)
	validateChoice(c.PodInjectPolicy, path.Child("podInjectPolicy"), injectPolicies...)
	validateChoice(c.ShareVolumePolicy.Type, path.Child("shareVolumePolicy", "type"), sharePolicies...)
	validateTransferEnv(c.TransferEnv, path.Child("transferEnv"))
}

// validateSidecar checks what a SidecarSet adds to a container of either list. stays is true
// for a container and for a native sidecar.
func validateSidecar(c *appsv1beta1.SidecarContainer, stays bool, targets *expr.Targets, path place) {
	if stays {
		validateHotUpgrade(c, path)
	}
	if c.ResourcesPolicy != nil && !stays {
		path.Child("resourcesPolicy").invalid("", "only an init container with restartPolicy Always may have it; remove it, and set resources")
		return
	}
	validateResourcesPolicy(c, targets, path)
}

// validateUniqueName checks the name of a container or volume, and adds it to names.
func validateUniqueName(name string, names sets.Set[string], path place) {
	if name == "" {
		path.required("give it a name that is unique in this SidecarSet")
		return
	}
	path.invalidBy(name, validation.IsDNS1123Label(name))
	validateUnique(name, names, path, "names are unique across containers and initContainers, and among volumes; rename one")
}

func validateImage(image string, path place, remedy string) {
	requireText(image, path, remedy)
	if strings.TrimSpace(image) != image {
		path.invalid(image, "must not begin or end with white space; remove it")
	}
}

var (
	injectPolicies = []appsv1beta1.PodInjectPolicyType{appsv1beta1.BeforeAppContainer, appsv1beta1.AfterAppContainer}
	sharePolicies  = []appsv1beta1.ShareVolumePolicyType{appsv1beta1.ShareVolumePolicyEnabled, appsv1beta1.ShareVolumePolicyDisabled}
)

// validateContainersUpdate lets containers be removed and changed, but neither added nor
// renamed: running Pods could not be updated.
func validateContainersUpdate(containers, old []appsv1beta1.SidecarContainer, path place) {
	stored := make(map[string]*appsv1beta1.SidecarContainer, len(old))
	for i := range old {
		stored[old[i].Name] = &old[i]
	}
	for i := range containers {
		c, at := &containers[i], path.Index(i)
		before := stored[c.Name]
		if before == nil {
			at.Child("name").invalid(c.Name, fmt.Sprintf("container %s is not found in the stored SidecarSet: an update may not add or rename containers; put it into a SidecarSet of its own, or delete this one and create it again", c.Name))
			continue
		}
		was, is := before.UpgradeStrategy.UpgradeType, c.UpgradeStrategy.UpgradeType
		if was != "" && was != is {
			at.Child("upgradeStrategy", "upgradeType").invalid(is, fmt.Sprintf("is immutable; set it back to %s, or delete the SidecarSet and create it again", was))
		}
	}
}
