package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateSupported refuses what injection would ignore. Storing such a
// SidecarSet would promise sidecars that Pods do not get.
func validateSupported(spec *appsv1beta1.SidecarSetSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.InjectionStrategy.Revision != nil {
		errs = append(errs, unsupported(path.Child("injectionStrategy", "revision"), "injecting a recorded revision", "remove it"))
	}
	return errs
}

func unsupported(path *field.Path, feature, remedy string) *field.Error {
	return field.Forbidden(path, feature+" is not supported yet; "+remedy)
}
