package validation

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The most restart rules of a container, and exit codes of a rule.
const (
	maxRestartRules = 20
	maxExitCodes    = 255
)

// validateRestartRules checks by which exit codes a container restarts. They go
// with a restartPolicy of the container, which only native sidecars have.
func validateRestartRules(rules []corev1.ContainerRestartRule, native bool, path *field.Path) field.ErrorList {
	switch {
	case len(rules) == 0:
		return nil
	case !native:
		return field.ErrorList{field.Forbidden(path, "they need a restartPolicy of the container, which only native sidecars have; remove them, or move the sidecar to initContainers with restartPolicy Always")}
	}
	var errs field.ErrorList
	if len(rules) > maxRestartRules {
		errs = append(errs, tooMany(path, len(rules), maxRestartRules))
	}
	for i := range rules {
		rule, at := &rules[i], path.Index(i)
		errs = append(errs, requireValue(rule.Action, at.Child("action"), corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		codes := rule.ExitCodes
		if codes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), "say for which exit codes the rule is, for example {operator: In, values: [42]}"))
			continue
		}
		errs = append(errs, requireValue(codes.Operator, at.Child("exitCodes", "operator"), corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if len(codes.Values) > maxExitCodes {
			errs = append(errs, tooMany(at.Child("exitCodes", "values"), len(codes.Values), maxExitCodes))
		}
	}
	return errs
}

// tooMany is field.TooMany with a remedy.
func tooMany(path *field.Path, count, most int) *field.Error {
	err := field.TooMany(path, count, most)
	err.Detail = fmt.Sprintf("must have at most %d elements; remove some", most)
	return err
}
