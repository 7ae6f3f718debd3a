package validation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateHotUpgrade refuses a pair of containers that no Pod could have.
func validateHotUpgrade(c *appsv1beta1.SidecarContainer, path place) {
	if !c.IsHotUpgrade() {
		return
	}
	at := path.Child("upgradeStrategy", "hotUpgradeEmptyImage")
	validateImage(c.UpgradeStrategy.HotUpgradeEmptyImage, at, "HotUpgrade injects a second, idle container; name the image that it runs")
	if working, _ := appsv1beta1.HotUpgradeNames(c.Name); len(working) > validation.DNS1123LabelMaxLength {
		path.Child("name").invalid(c.Name, fmt.Sprintf("must be no more than %d characters, since HotUpgrade adds -1 and -2 to it; choose a shorter name",
			validation.DNS1123LabelMaxLength-(len(working)-len(c.Name))))
	}
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
