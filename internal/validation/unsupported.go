package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateSupported refuses what injection would ignore. Storing such a
// SidecarSet would promise sidecars that Pods do not get.
func validateSupported(spec *appsv1beta1.SidecarSetSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range spec.InitContainers {
		errs = append(errs, validateContainerSupported(&spec.InitContainers[i], path.Child("initContainers").Index(i))...)
	}
	for i := range spec.Containers {
		errs = append(errs, validateContainerSupported(&spec.Containers[i], path.Child("containers").Index(i))...)
	}
	if spec.InjectionStrategy.Revision != nil {
		errs = append(errs, unsupported(path.Child("injectionStrategy", "revision"), "injecting a recorded revision", "remove it"))
	}
	return errs
}

func validateContainerSupported(c *appsv1beta1.SidecarContainer, path *field.Path) (errs field.ErrorList) {
	if c.ResourcesPolicy != nil {
		errs = append(errs, unsupported(path.Child("resourcesPolicy"), "computing resources", "remove it and set resources"))
	}
	return errs
}

func unsupported(path *field.Path, feature, remedy string) *field.Error {
	return field.Forbidden(path, feature+" is not supported yet; "+remedy)
}
