package integration

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/test/testkit"
)

const restartingSet = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate}
initContainers:
- {name: fetch, image: "example.com/fetch:v1", restartPolicy: OnFailure}
containers:
- name: uploader
  image: example.com/uploader:v1
  restartPolicy: OnFailure
  restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
- {name: agent, image: "example.com/agent:v1", restartPolicy: Always}
`

// A Pod gets sidecars whose restarts differ from its own, and keeps the app's.
func TestContainersRestartByTheirOwnPolicy(t *testing.T) {
	if cluster.Minor() < 36 {
		t.Skip("SKIP: API servers take RestartAllContainers since Kubernetes 1.36")
	}
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, restartingSet)
	awaitInjected(t, set, namespace, "app=web")

	rules := func(action corev1.ContainerRestartRuleAction, code int32) []corev1.ContainerRestartRule {
		return []corev1.ContainerRestartRule{{Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
			Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{code},
		}}}
	}
	ofApp := rules(corev1.ContainerRestartRuleActionRestartAllContainers, 88)
	p := pod(namespace, "restarts", "app=web")
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.Containers[0].RestartPolicy, p.Spec.Containers[0].RestartPolicyRules = new(corev1.ContainerRestartPolicyAlways), ofApp
	create(t, p)

	type restarts struct {
		Name   string
		Policy corev1.ContainerRestartPolicy
		Rules  []corev1.ContainerRestartRule
	}
	var got []restarts
	for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
		got = append(got, restarts{c.Name, *c.RestartPolicy, c.RestartPolicyRules})
	}
	want := []restarts{
		{"fetch", corev1.ContainerRestartPolicyOnFailure, nil},
		{"uploader", corev1.ContainerRestartPolicyOnFailure, rules(corev1.ContainerRestartRuleActionRestart, 42)},
		{"agent", corev1.ContainerRestartPolicyAlways, nil},
		{"app", corev1.ContainerRestartPolicyAlways, ofApp},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("restarts (-want +got):\n%s", diff)
	}
}
