package integration

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/test/testkit"
)

// The operator fills in only some members of a startup probe, so that the SidecarSet's hash
// equals that of the reference. In the Pod, the API server fills in the others.
func TestStartupProbesOfPodsAreComplete(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: web}}
containers: [{name: side, image: "example.com/side:v1", startupProbe: {httpGet: {port: 8080}}}]
`)
	awaitInjected(t, set, namespace, "app=web")
	stored := field(set.Object, "spec", "containers").([]any)[0].(map[string]any)["startupProbe"]
	want := map[string]any{"httpGet": map[string]any{"path": "/", "port": int64(8080), "scheme": "HTTP"}, "successThreshold": int64(1)}
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}

	p := pod(namespace, "selected", "app=web")
	create(t, p)
	index := map[string]int{p.Spec.Containers[0].Name: 0, p.Spec.Containers[1].Name: 1}["side"]
	probe := *p.Spec.Containers[index].StartupProbe
	probe.ProbeHandler = corev1.ProbeHandler{}
	if diff := cmp.Diff(corev1.Probe{TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}, probe); diff != "" {
		t.Errorf("in the Pod (-want +got):\n%s", diff)
	}
}
