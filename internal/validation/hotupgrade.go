package validation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateHotUpgrade refuses a pair of containers that no Pod could have.
func validateHotUpgrade(c *appsv1beta1.SidecarContainer, path *field.Path) field.ErrorList {
	if !c.IsHotUpgrade() {
		return nil
	}
	at := path.Child("upgradeStrategy", "hotUpgradeEmptyImage")
	errs := validateImage(c.UpgradeStrategy.HotUpgradeEmptyImage, at)
	if c.UpgradeStrategy.HotUpgradeEmptyImage == "" {
		errs[0].Detail = "HotUpgrade injects a second, idle container; name the image that it runs"
	}
	if working, _ := appsv1beta1.HotUpgradeNames(c.Name); len(working) > validation.DNS1123LabelMaxLength {
		errs = append(errs, field.Invalid(path.Child("name"), c.Name, fmt.Sprintf("must be no more than %d characters, since HotUpgrade adds -1 and -2 to it; choose a shorter name",
			validation.DNS1123LabelMaxLength-(len(working)-len(c.Name)))))
	}
	return errs
}

// validateHotUpgradeNames looks for containers that have the name of one of a
// pair, and for pairs that want one port of the node. Names holds all names of
// the SidecarSet.
func validateHotUpgradeNames(spec *appsv1beta1.SidecarSetSpec, names sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.IsNative() {
			errs = append(errs, validatePairNames(c, names, path.Child("initContainers").Index(i))...)
		}
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		errs = append(errs, validatePairNames(c, names, at)...)
		errs = append(errs, validatePairPorts(c, at)...)
	}
	return errs
}

func validatePairNames(c *appsv1beta1.SidecarContainer, names sets.Set[string], path *field.Path) field.ErrorList {
	if !c.IsHotUpgrade() {
		return nil
	}
	var errs field.ErrorList
	for _, name := range c.PodContainerNames() {
		if names.Has(name) {
			errs = append(errs, field.Invalid(path.Child("name"), c.Name, fmt.Sprintf("HotUpgrade injects it as %s, which is another container of this SidecarSet; rename one", name)))
		}
	}
	return errs
}

func validatePairPorts(c *appsv1beta1.SidecarContainer, path *field.Path) field.ErrorList {
	if !c.IsHotUpgrade() {
		return nil
	}
	var errs field.ErrorList
	for i := range c.Ports {
		if c.Ports[i].HostPort != 0 {
			errs = append(errs, field.Invalid(path.Child("ports").Index(i).Child("hostPort"), c.Ports[i].HostPort, "HotUpgrade injects two containers, which cannot share a port of the node; remove it or use ColdUpgrade"))
		}
	}
	return errs
}
