package validation

import (
	corev1 "k8s.io/api/core/v1"
)

// The largest numbers of restart rules of a container, and of exit codes of a rule.
const (
	maxRestartRules = 20
	maxExitCodes    = 255
)

// validateRestartRules checks the exit codes by which a container restarts. The rules need a
// restartPolicy of the container, which only native sidecars have.
func validateRestartRules(rules []corev1.ContainerRestartRule, native bool, path place) {
	switch {
	case len(rules) == 0:
		return
	case !native:
		path.forbidden("they need a restartPolicy of the container, which only native sidecars have; remove them, or move the sidecar to initContainers with restartPolicy Always")
		return
	}
	if len(rules) > maxRestartRules {
		path.tooMany(len(rules), maxRestartRules)
	}
	for i := range rules {
		rule, at := &rules[i], path.Index(i)
		requireValue(rule.Action, at.Child("action"), corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		codes := rule.ExitCodes
		if codes == nil {
			at.Child("exitCodes").required("say for which exit codes the rule is, for example {operator: In, values: [42]}")
			continue
		}
		requireValue(codes.Operator, at.Child("exitCodes", "operator"), corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if len(codes.Values) > maxExitCodes {
			at.Child("exitCodes", "values").tooMany(len(codes.Values), maxExitCodes)
		}
	}
}
