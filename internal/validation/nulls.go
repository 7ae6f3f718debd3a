package validation

import "k8s.io/apimachinery/pkg/util/validation/field"

// validateNulls refuses a null for a pull secret. The schema of the CRD refuses
// it too; a cluster whose CRD is older or edited would store it, and no Pod
// would be injected. A null in any other list becomes an element that lacks its
// name.
func validateNulls(object map[string]any) field.ErrorList {
	path := field.NewPath("spec", "imagePullSecrets")
	var errs field.ErrorList
	list, _ := specOf(object)["imagePullSecrets"].([]any)
	for i, elem := range list {
		if elem == nil {
			errs = append(errs, field.Invalid(path.Index(i), "null", "must be an object with the name of a Secret; correct or remove it"))
		}
	}
	return errs
}
