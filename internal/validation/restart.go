package validation

import (
	corev1 "k8s.io/api/core/v1"
)

// The largest numbers of restart rules of a container, and of exit codes of a rule.
const (
	maxRestartRules = 20
	maxExitCodes    = 255
)

// validateRestarts checks when the kubelet restarts a container, which needs a restartPolicy of
// its own before it can have rules.
func validateRestarts(c *corev1.Container, path place) {
	if c.RestartPolicy != nil {
		validateChoice(*c.RestartPolicy, path.Child("restartPolicy"), corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever)
	}
	if c.RestartPolicy == nil && len(c.RestartPolicyRules) > 0 {
		path.Child("restartPolicy").required("restartPolicyRules need a restartPolicy of the container, for exit codes without a rule; set it, for example Never, or remove the rules")
	}
	validateRestartRules(c.RestartPolicyRules, path.Child("restartPolicyRules"))
}

func validateRestartRules(rules []corev1.ContainerRestartRule, path place) {
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
