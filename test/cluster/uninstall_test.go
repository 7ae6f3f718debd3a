package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// The README's command removes everything, even if no replica runs that could clean up. If
// entries remained, they would refuse Pods for ever.
func TestTheReadmesCommandIsACompleteUninstall(t *testing.T) {
	operator.NeedReplicas(t)
	c := testkit.StartCluster(t, stand.Options{Full: true})
	for name, alive := range map[string]bool{"while the operator runs": true, "when it does not": false} {
		t.Run(name, func(t *testing.T) {
			installed, err := deploy.Install(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			replica, err := installed.StartReplica(t.Context(), 20)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(replica.Process.Stop)
			await.Eventually(t, "a SidecarSet", func(ctx context.Context) error {
				_, err := c.Kubectl(ctx, selectsAll, "apply", "-f", "-")
				return err
			})
			if _, err := c.Kubectl(t.Context(), "", "wait", "--for=condition=Ready", "sidecarset/all", "--timeout=180s"); err != nil {
				t.Fatal(err)
			}
			if !alive {
				replica.Kill()
			}
			if _, err := c.Kubectl(t.Context(), "", "delete", "-k", filepath.Join(deploy.Root(), "config/default"), "--ignore-not-found", "--timeout="+await.Patience.String()); err != nil {
				t.Fatal(err)
			}
			await.Eventually(t, "nothing of it", func(ctx context.Context) error {
				left, err := c.Kubectl(ctx, "", "get", "-o", "name", "--ignore-not-found", "-A",
					"mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings,flowschemas,prioritylevelconfigurations,leases,rolebindings,roles,endpointslices",
					"-l", "app.kubernetes.io/part-of=sidecarset")
				if err == nil && left == "" {
					left, err = c.Kubectl(ctx, "", "get", "mutatingwebhookconfigurations", "-o", "name")
				}
				if err == nil && left != "" {
					err = fmt.Errorf("there are %s", left)
				}
				return err
			})
			if _, err := c.Kubectl(t.Context(), "", "-n", "default", "run", "selected", "--image=example.com/app:v1", "--labels=app=web", "--dry-run=server"); err != nil {
				t.Errorf("a Pod that was selected: %v", err)
			}
		})
	}
}

const selectsAll = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: all, annotations: {sidecarset.io/timeout-seconds: "30"}}
spec:
  selector: {matchLabels: {app: web}}
  updateStrategy: {type: NotUpdate}
  containers: [{name: side, image: "example.com/side:v1"}]
`
