package validation

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateUpdateStrategy refuses a rolling update of native sidecars, which
// nothing carries out.
func validateUpdateStrategy(spec *appsv1beta1.SidecarSetSpec, path *field.Path) field.ErrorList {
	if spec.UpdateStrategy.Type != appsv1beta1.RollingUpdateSidecarSetStrategyType {
		return nil
	}
	var native []string
	for i := range spec.InitContainers {
		if isNativeSidecar(&spec.InitContainers[i]) {
			native = append(native, spec.InitContainers[i].Name)
		}
	}
	if len(native) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("type"), spec.UpdateStrategy.Type,
		"native sidecars (initContainers with restartPolicy Always: "+strings.Join(native, ", ")+") are not updated in place yet; set updateStrategy.type NotUpdate")}
}
