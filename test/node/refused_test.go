package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

const tightened = `
apiVersion: v1
kind: Namespace
metadata: {name: NAME-open, labels: {for: NAME}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: NAME-open}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      containers: [{name: app, image: "REGISTRY/app:1"}]
---
`

// If the update of a Pod is refused, the status names the Pod. The Pod takes no place of the
// budget and keeps its sidecar. The other Pods are updated.
func TestARefusedPodHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	image(t, "refused:v1")
	image(t, "refused:v2", "VERSION=v2")
	t.Cleanup(func() {
		_, _ = cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "--wait=false", "namespace/refused-open")
	})
	before := startApp(t, "refused", nativeOnly, tightened+strings.Replace(deployment, "replicas: 3", "replicas: 1", 1), 1)
	open := awaitPods(t, "refused-open", "Ready", 1, isReady)
	testkit.Kubectl(t, cluster, "", "label", "namespace", "refused", "pod-security.kubernetes.io/enforce=restricted")
	testkit.AwaitPodsForbidden(t, api, "refused")
	change(t, "refused", map[string]string{nativeImage: registry + "/refused:v2"})
	awaitPods(t, "refused-open", "updated", 1, all(runsAnother(&open[0], "native"), isReady))
	await.Within(t, 2*await.Patience, "the status names the Pod", func(ctx context.Context) error {
		got, err := cluster.Kubectl(ctx, "", "get", "sidecarset", "refused", "-o", "jsonpath={.status.updatedReadyPods} {.status.blockedPods[*].reason} {.status.blockedPods[*].first[*]} {.status.blockedPods[*].message}")
		if want := "1 Refused refused/" + before[0].Name; err == nil && (!strings.HasPrefix(got, want) || !strings.Contains(got, "violates PodSecurity")) {
			err = fmt.Errorf("it says %q, want %q and the reason", got, want)
		}
		return err
	})
	unchanged(t, &before[0], getPod(t, &before[0]), "native")
}
