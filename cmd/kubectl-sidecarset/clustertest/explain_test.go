package clustertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	name := app(t, 1, "")
	list := &corev1.PodList{}
	if err := api.List(t.Context(), list, client.InNamespace(name)); err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %d Pods", err, len(list.Items))
	}
	wants(t, []string{"explain", "-n", name, list.Items[0].Name, name}, "Pod "+name+"/"+list.Items[0].Name, name+": injected, current, revision "+name+"-")
	wants(t, []string{"explain", "-n", name, "deployment.apps/web", name}, "Deployment "+name+"/web", name+": injected, revision "+name+"-", "Brings container log-agent.")
	file := filepath.Join(t.TempDir(), "pod.yaml") // without -s, inject takes the SidecarSets of the cluster
	if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: new, namespace: "+name+", labels: {app: web}}\nspec: {containers: [{name: app, image: app}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wants(t, []string{"inject", "-f", file}, "name: log-agent")
	apply(t, name, strings.ReplaceAll(sidecarSet, "{name: log-agent,", "{name: log-agent, env: [{name: A, value: b}],"))
	wants(t, []string{"explain", "-n", name, list.Items[0].Name, name}, "injected, outdated", "spec.containers[log-agent].env", "kubectl rollout restart deployment/web -n "+name)
	refuses(t, []string{"explain", "-n", name, "nosuch/web"}, "no type nosuch")
}
