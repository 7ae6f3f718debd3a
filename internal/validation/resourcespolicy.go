package validation

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
)

// validateResourcesPolicy checks the resourcesPolicy of the container at path,
// if it has one. The mode is the schema's business. An expression is refused
// where it cannot work in any Pod; whether its result is negative or too large
// depends on the Pod.
func validateResourcesPolicy(c *appsv1beta1.SidecarContainer, path *field.Path) field.ErrorList {
	policy := c.ResourcesPolicy
	if policy == nil {
		return nil
	}
	path = path.Child("resourcesPolicy")
	if len(c.Resources.Limits)+len(c.Resources.Requests) > 0 {
		return field.ErrorList{field.Invalid(path, "", "cannot be combined with resources.limits and resources.requests, which it computes; remove them or the policy")}
	}
	errs := validateTargetRegex(policy.TargetContainersNameRegex, path.Child("targetContainersNameRegex"))
	return append(errs, validateResourcesExpr(&policy.ResourcesExpr, path.Child("resourcesExpr"))...)
}

func validateTargetRegex(text string, path *field.Path) field.ErrorList {
	if text == "" {
		return field.ErrorList{field.Required(path, "choose the target containers by name; .* means all of them")}
	}
	if _, err := regexp.Compile(text); err != nil {
		return field.ErrorList{field.Invalid(path, text, "invalid regular expression: "+err.Error()+"; correct it (RE2)")}
	}
	return nil
}

func validateResourcesExpr(e *appsv1beta1.ResourcesExpr, path *field.Path) field.ErrorList {
	if e.Limits == nil && e.Requests == nil {
		return field.ErrorList{field.Invalid(path, "", "at least one of limits and requests must be set; add the one to compute")}
	}
	var errs field.ErrorList
	if l, at := e.Limits, path.Child("limits"); l != nil {
		errs = append(errs, validateExpr(l.CPU, expr.CPU, at)...)
		errs = append(errs, validateExpr(l.Memory, expr.Memory, at)...)
	}
	if r, at := e.Requests, path.Child("requests"); r != nil {
		errs = append(errs, validateExpr(r.CPU, expr.CPU, at)...)
		errs = append(errs, validateExpr(r.Memory, expr.Memory, at)...)
	}
	return errs
}

// validateExpr checks the expression in the member of path that computes the variable.
func validateExpr(text string, variable expr.Variable, path *field.Path) field.ErrorList {
	if text == "" {
		return nil
	}
	if _, err := expr.Parse(text, variable); err != nil {
		return field.ErrorList{field.Invalid(path.Child(string(variable)), text, "invalid expression: "+err.Error())}
	}
	return nil
}
