package validation

import (
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
)

// validateResourcesPolicy checks the resourcesPolicy of the container at path, if it has one.
// The schema checks the mode. An expression is refused if it cannot work in any Pod; whether
// its result is negative or too large depends on the Pod. The policies of one SidecarSet share
// targets.
func validateResourcesPolicy(c *appsv1beta1.SidecarContainer, targets *expr.Targets, path place) {
	policy := c.ResourcesPolicy
	if policy == nil {
		return
	}
	path = path.Child("resourcesPolicy")
	if len(c.Resources.Limits)+len(c.Resources.Requests) > 0 {
		path.invalid("", "cannot be combined with resources.limits and resources.requests, which it computes; remove them or the policy")
		return
	}
	validateTargetRegex(policy.TargetContainersNameRegex, targets, path.Child("targetContainersNameRegex"))
	validateResourcesExpr(&policy.ResourcesExpr, path.Child("resourcesExpr"))
}

func validateTargetRegex(text string, targets *expr.Targets, path place) {
	if text == "" {
		path.required("choose the target containers by name; .* means all of them")
		return
	}
	if _, err := targets.Compile(text); err != nil {
		path.invalid(text[:min(len(text), expr.MaxTargetLength)], "invalid regular expression: "+err.Error()+"; correct it (RE2)")
	}
}

func validateResourcesExpr(e *appsv1beta1.ResourcesExpr, path place) {
	if e.Limits == nil && e.Requests == nil {
		path.invalid("", "at least one of limits and requests must be set; add the one to compute")
		return
	}
	if l, at := e.Limits, path.Child("limits"); l != nil {
		validateExpr(l.CPU, expr.CPU, at)
		validateExpr(l.Memory, expr.Memory, at)
	}
	if r, at := e.Requests, path.Child("requests"); r != nil {
		validateExpr(r.CPU, expr.CPU, at)
		validateExpr(r.Memory, expr.Memory, at)
	}
}

// validateExpr checks the expression in the member of path that computes the variable.
func validateExpr(text string, variable expr.Variable, path place) {
	if text == "" {
		return
	}
	if _, err := expr.Parse(text, variable); err != nil {
		path.Child(string(variable)).invalid(text, "invalid expression: "+err.Error())
	}
}
