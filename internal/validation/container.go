package validation

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
)

// validateContainers checks what a SidecarSet adds to containers.
func validateContainers(spec *appsv1beta1.SidecarSetSpec, path place) {
	if len(spec.InitContainers)+len(spec.Containers) == 0 {
		path.required("at least one of containers and initContainers must have an element; add a sidecar")
		return
	}
	names, targets := sets.New[string](), new(expr.Targets)
	for c := range containersOf(spec) {
		at := place{c.path, path.errs}
		names.Insert(c.Name)
		validateImage(c.Image, at.Child("image"))
		validateSidecar(c, targets, at)
	}
	validateHotUpgradeNames(spec, names, path)
}

// validateSidecar checks what a SidecarSet adds to a container. OpenKruise does not apply the
// rules for containers alone to init containers.
func validateSidecar(c located, targets *expr.Targets, path place) {
	if !c.init {
		validateChoice(c.PodInjectPolicy, path.Child("podInjectPolicy"), injectPolicies...)
		validateChoice(c.ShareVolumePolicy.Type, path.Child("shareVolumePolicy", "type"), sharePolicies...)
		validateTransferEnv(c.TransferEnv, path.Child("transferEnv"))
	}
	stays := !c.init || c.IsNative()
	if stays {
		validateHotUpgrade(c.SidecarContainer, path)
	}
	if c.ResourcesPolicy != nil && !stays {
		path.Child("resourcesPolicy").invalid("", "only an init container with restartPolicy Always may have it; remove it, and set resources")
		return
	}
	validateResourcesPolicy(c.SidecarContainer, targets, path)
}

// validateImage refuses white space around the name of an image. API servers find it only in
// Pods, not in templates.
func validateImage(image string, path place) {
	if strings.TrimSpace(image) != image {
		path.invalid(image, "must not begin or end with white space; remove it")
	}
}

var (
	injectPolicies = []appsv1beta1.PodInjectPolicyType{appsv1beta1.BeforeAppContainer, appsv1beta1.AfterAppContainer}
	sharePolicies  = []appsv1beta1.ShareVolumePolicyType{appsv1beta1.ShareVolumePolicyEnabled, appsv1beta1.ShareVolumePolicyDisabled}
)

// validateTransferEnv checks how entries find the name of their source container: in a label
// or annotation of the Pod. An entry that copies nothing is accepted, with a warning.
func validateTransferEnv(entries []appsv1beta1.TransferEnvVar, path place) {
	for i := range entries {
		from := entries[i].SourceContainerNameFrom
		if from == nil || from.FieldRef == nil {
			continue
		}
		ref, at := from.FieldRef, path.Index(i).Child("sourceContainerNameFrom", "fieldRef")
		requireText(ref.APIVersion, at.Child("apiVersion"), "set it to v1")
		if ref.APIVersion != "" && ref.APIVersion != "v1" {
			at.Child("apiVersion").invalid(ref.APIVersion, "must be v1; correct it")
		}
		fieldPath := at.Child("fieldPath")
		requireText(ref.FieldPath, fieldPath, "name a label or annotation of the Pod, for example metadata.labels['app']")
		if ref.FieldPath != "" && !validateSubscript(ref.FieldPath, fieldPath) {
			fieldPath.invalid(ref.FieldPath, "error converting fieldPath: only metadata.labels['<key>'] and metadata.annotations['<key>'] can name a container; correct it")
		}
	}
}

// validateSubscript checks a path that names one label or annotation, and reports whether it
// is such a path.
func validateSubscript(path string, at place) (subscripted bool) {
	parent, key, found := strings.Cut(path, "['")
	key, closed := strings.CutSuffix(key, "']")
	if !found || !closed {
		return false
	}
	switch parent {
	case "metadata.annotations":
		key = strings.ToLower(key)
	case "metadata.labels":
	default:
		at.invalid(path, "only metadata.labels and metadata.annotations have keys; correct it")
		return true
	}
	at.invalidBy(path, validation.IsQualifiedName(key))
	return true
}

// validateHotUpgrade refuses a pair of containers that no Pod could have.
func validateHotUpgrade(c *appsv1beta1.SidecarContainer, path place) {
	if !c.IsHotUpgrade() {
		return
	}
	if member, problem := c.HotUpgradeProblem(); problem != "" {
		if missing, is := strings.CutPrefix(problem, "is missing: "); is {
			path.add(field.Required(path.Path.Child(member), missing))
		} else {
			path.add(field.Invalid(path.Path.Child(member), field.OmitValueType{}, problem))
		}
		return
	}
	validateImage(c.UpgradeStrategy.HotUpgradeEmptyImage, path.Child("upgradeStrategy", "hotUpgradeEmptyImage"))
}

// validateHotUpgradeNames looks for containers that have the name of one of a pair, and for
// pairs that ask for a port of the node. names has all names of the SidecarSet.
func validateHotUpgradeNames(spec *appsv1beta1.SidecarSetSpec, names sets.Set[string], path place) {
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.IsNative() && c.IsHotUpgrade() {
			validatePairNames(c, names, path.Child("initContainers").Index(i))
		}
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		if !c.IsHotUpgrade() {
			continue
		}
		validatePairNames(c, names, at)
		for j, port := range c.Ports {
			if port.HostPort != 0 {
				at.Child("ports").Index(j).Child("hostPort").invalid(port.HostPort, "HotUpgrade injects two containers, which cannot share a port of the node; remove it or use ColdUpgrade")
			}
		}
	}
}

func validatePairNames(c *appsv1beta1.SidecarContainer, names sets.Set[string], path place) {
	for _, name := range c.PodContainerNames() {
		if names.Has(name) {
			path.Child("name").invalid(c.Name, fmt.Sprintf("HotUpgrade injects it as %s, which is another container of this SidecarSet; rename one", name))
		}
	}
}

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

// located is a container of a SidecarSet and its place.
type located struct {
	*appsv1beta1.SidecarContainer
	path *field.Path
	init bool // of initContainers
}

// containersOf yields the containers of a SidecarSet, the init containers first.
func containersOf(spec *appsv1beta1.SidecarSetSpec) iter.Seq[located] {
	return func(yield func(located) bool) {
		for i := range spec.InitContainers {
			if !yield(located{&spec.InitContainers[i], field.NewPath("spec", "initContainers").Index(i), true}) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(located{&spec.Containers[i], field.NewPath("spec", "containers").Index(i), false}) {
				return
			}
		}
	}
}

// namesInPod are the names that the container has in Pods.
func (c located) namesInPod() []string {
	if c.init {
		return c.PodInitContainerNames()
	}
	return c.PodContainerNames()
}

// usedVolumes are the names of the volumes that are added to Pods.
func usedVolumes(spec *appsv1beta1.SidecarSetSpec) sets.Set[string] {
	used := sets.New[string]()
	for c := range containersOf(spec) {
		used.Insert(slices.Collect(c.UsedVolumes())...)
	}
	return used
}
