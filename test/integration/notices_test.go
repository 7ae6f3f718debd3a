package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// What a Pod does not get of a SidecarSet is told in Events, with all that API servers fill in
// before the webhook is called. A Pod that gets all causes none.
func TestWhatAPodDoesNotGetIsToldInEvents(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: lacks}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
containers:
- name: agent
  image: example.com/agent:v1
  ports: [{name: http, containerPort: 9999}]
  transferEnv:
  - {sourceContainerName: app, envNames: [REGION, ENDPOINT]}
  - {sourceContainerName: proxy, envName: PROXY_PORT}
`)
	content := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: gets}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
containers:
- name: agent
  image: example.com/agent:v1
  ports: [{name: admin, containerPort: 9999}]
  transferEnv: [{sourceContainerName: app, envNames: [HOST]}]
  shareVolumePolicy: {type: enabled}
  volumeMounts: [{name: config, mountPath: /config}, {name: logs, mountPath: /logs}]
volumes:
- {name: config, configMap: {name: config}}
- {name: logs, emptyDir: {}}
`)
	create := func(name, label string) {
		p := pod(namespace, name, label)
		app := &p.Spec.Containers[0]
		app.Name = "app"
		app.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		app.Env = []corev1.EnvVar{{Name: "HOST", Value: "api.example.com"}, {Name: "ENDPOINT", Value: "https://$(HOST)/v1"}}
		app.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "env"}}}}
		app.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/config"}}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}},
			{Name: "logs", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/log/app"}}},
		}
		p.Spec.InitContainers = []corev1.Container{{
			Name: "proxy", Image: "example.com/proxy:v1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
			Env: []corev1.EnvVar{{Name: "PROXY_PORT", Value: "15001"}},
		}}
		if err := api.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	create("gets", "app=gets")
	create("lacks", "app=lacks")
	for _, says := range []string{
		`"agent" does not get variable "REGION": container "app" does not have it in env, and what it has from envFrom is not copied`,
		`"agent" does not get variable "PROXY_PORT" of container "proxy", because it is among the Pod's initContainers`,
		`targetPort "http" reaches port 9999 of container "agent", not port 8080 of container "app"`,
	} {
		await.Eventually(t, "an Event that says "+says, func(ctx context.Context) error {
			list, err := eventsOf(ctx, set)
			if err == nil && !slices.ContainsFunc(list, func(e corev1.Event) bool {
				return e.Reason == appsv1beta1.ReasonInjectionIncomplete && e.Type == corev1.EventTypeWarning &&
					strings.Contains(e.Message, "A Pod in namespace "+namespace) && strings.Contains(e.Message, says)
			}) {
				return fmt.Errorf("there are %v", reasons(list))
			}
			return err
		})
	}
	list, err := eventsOf(t.Context(), content)
	if err != nil || slices.ContainsFunc(list, func(e corev1.Event) bool { return e.Reason == appsv1beta1.ReasonInjectionIncomplete }) {
		t.Errorf("of a Pod that gets all: %v, %v", reasons(list), err)
	}
}
