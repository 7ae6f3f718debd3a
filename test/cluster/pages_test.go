package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// The commands that install, change and remove the operator, on a control plane whose nodes only
// pretend to run the Pods. Each block finds config/default installed; of install.md also what the
// blocks before have left.
func TestPagesInstall(t *testing.T) {
	c := apart(t)
	dir := testkit.Checkout(t, deploy.Root())
	testkit.Shell(t, c, dir, foreign())
	pages, err := filepath.Glob(filepath.Join(dir, "docs/*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	for _, page := range pages {
		for i, commands := range testkit.Blocks(t, page, "sh install") {
			if i == 0 || filepath.Base(page) != "install.md" {
				testkit.Shell(t, c, dir, "kubectl apply --server-side --force-conflicts -k config/default")
			}
			commands = strings.ReplaceAll(commands, "pod NAME", "pod $(kubectl -n sidecarset-system get pods -o jsonpath='{.items[0].metadata.name}')")
			testkit.Shell(t, c, dir, commands)
			if !strings.Contains(commands, "kubectl delete -k") && !strings.Contains(commands, "kubectl delete namespace") {
				continue
			}
			if err := nothingIsLeft(t.Context(), c); err != nil {
				t.Errorf("%s: after\n%s%v", page, commands, err)
			}
		}
	}
}

// foreign makes nodes, and what cert-manager serves.
func foreign() string {
	var all strings.Builder
	all.WriteString("kubectl apply -f - <<'END'\n")
	for i := range 6 {
		fmt.Fprintf(&all, `
apiVersion: v1
kind: Node
metadata: {name: pretended-%[1]d, annotations: {kwok.x-k8s.io/node: fake}, labels: {kubernetes.io/hostname: pretended-%[1]d, kubernetes.io/os: linux}}
status: {capacity: {cpu: 1k, memory: 1Ti, pods: 1k}, allocatable: {cpu: 1k, memory: 1Ti, pods: 1k}}
---`, i)
	}
	for plural, kind := range map[string]string{"certificates": "Certificate", "issuers": "Issuer"} {
		fmt.Fprintf(&all, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {plural: %[1]s, kind: %[2]s}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---`, plural, kind)
	}
	return all.String() + "\nEND\nkubectl wait --for=condition=Established crd certificates.cert-manager.io issuers.cert-manager.io"
}
