package clustertest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/cli"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/transcript"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// A shell that runs kubectl sidecarset gets this program, under the plugin's name.
const plugin = "kubectl-sidecarset"

func init() {
	if filepath.Base(os.Args[0]) == plugin {
		os.Exit(cli.Run(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, "test"))
	}
}

// What the README's reader has, who has applied its SidecarSet.
const fivePods = `
kubectl create namespace shop --dry-run=client -o yaml | kubectl apply -f -
sed 's/replicas: 3/replicas: 5/' docs/plugin/web.yaml | kubectl apply -f -
kubectl -n shop rollout status deployment/web
kubectl wait sidecarset/log-agent --timeout=5m --for=jsonpath='{.status.updatedReadyPods}'=5
kubectl wait sidecarset/log-agent --timeout=5m --for=jsonpath='{.status.conditions[?(@.type=="Progressing")].reason}'=Complete`

// What the readers of other pages have beside that.
var before = map[string]string{
	"docs/first-sidecarset.md": "kubectl delete namespace shop; kubectl delete sidecarsets --all; sed s/1.36/1.37/ config/samples/workloads/sidecarsets/exporter.yaml >exporter.yaml",
	"docs/gitops.md":           "kubectl create namespace argocd",
	"docs/tasks/bad-image.md":  "kubectl sidecarset set image log-agent log-agent=example.com/log-agent:v2",
	"docs/rollouts.md":         "sed s/:v1/:v3/ docs/plugin/sidecarsets.yaml >log-agent.yaml",
	"docs/monitoring.md": `kubectl create namespace monitoring
kubectl apply -f - <<'END'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {plural: prometheusrules, kind: PrometheusRule}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
END
kubectl wait --for=condition=Established crd/prometheusrules.monitoring.coreos.com`,
	"docs/tasks/log-agent.md": "cp docs/plugin/web.yaml deployment.yaml",
	// The version before, and four Pods. Nothing proves itself for a minute here.
	"docs/tasks/staged-rollout.md": `sed -i 's/"60"/"0"/' staged.yaml
sed 's/agent:v2/agent:v1/; s/90%/0/' staged.yaml | kubectl apply -f -
kubectl wait --for=condition=Ready sidecarset/staged
sed 's/replicas: 3/replicas: 4/; s/: web/: staged/; s/sidecars: logging/sidecars: staged/; s/app: web/app: staged/' docs/plugin/web.yaml | kubectl apply -f -
kubectl -n shop rollout status deployment/staged`,
}

// What a reader puts in place of names.
var names = strings.NewReplacer(
	"pod/NAME", "pod/$(kubectl -n shop get pods -o jsonpath='{.items[0].metadata.name}')", "deploy/NAME", "deploy/web", " NAMESPACE", " shop",
	" NAME", " log-agent", "CONTAINER", "log-agent")

var (
	watches = regexp.MustCompile(`(?m)^(.*--watch)$`) // a reader ends it
	age     = regexp.MustCompile(`(?m)\d+[sm]\S*$`)
	differs = regexp.MustCompile(`(?m)^(kubectl sidecarset (plan|diff) .*)$`)
	named   = regexp.MustCompile(`(?m)^  name: (.*)$`)
)

// The commands of the pages succeed, in the order of each page. docs/docs_test.go says which test
// runs those that a page marks. Tests beside this one would see that all SidecarSets are deleted.
func TestCommandsOfThePages(t *testing.T) {
	bin := t.TempDir()
	program, err := os.Executable()
	if err == nil {
		err = os.Symlink(program, filepath.Join(bin, plugin))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Cleanup(func() {
		for _, what := range []string{"sidecarsets --all", "namespace shop argocd monitoring", "clusterrolebinding prometheus-sidecarset", "crd prometheusrules.monitoring.coreos.com"} {
			args := append([]string{"delete", "--ignore-not-found"}, strings.Fields(what)...)
			if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", args...); err != nil {
				t.Error(err)
			}
		}
	})
	pages, err := filepath.Glob(filepath.Join(deploy.Root(), "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := filepath.Glob(filepath.Join(deploy.Root(), "docs/*/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("README.md", showTheSidecarSet)
	empties := filepath.Join(deploy.Root(), "docs/first-sidecarset.md") // begins with an empty cluster, so it comes last
	for _, page := range append(slices.DeleteFunc(append(pages, tasks...), func(page string) bool { return page == empties }), empties) {
		blocks := testkit.Blocks(t, page, "sh")
		if len(blocks) == 0 {
			continue
		}
		name, _ := filepath.Rel(deploy.Root(), page)
		t.Run(name, func(t *testing.T) {
			dir := reader(t, page)
			testkit.Shell(t, cluster, dir, before[name])
			for _, commands := range blocks {
				if _, err := exec.LookPath("jq"); err != nil && strings.Contains(commands, "| jq ") {
					t.Run("jq", func(t *testing.T) { t.Skip("SKIP: a command of this page needs jq, which is not installed") })
					continue
				}
				commands = watches.ReplaceAllString(names.Replace(commands), "timeout --signal=INT 1 $1 || [ $$? = 124 ]")
				commands = differs.ReplaceAllString(commands, "$1 || [ $$? = 2 ]")
				t.Logf("%s\n%s", commands, testkit.Shell(t, cluster, dir, commands))
			}
		})
	}
}

// reader returns a checkout that has also the SidecarSets that the page shows, in files of their names.
func reader(t *testing.T, page string) (dir string) {
	t.Helper()
	dir = testkit.Checkout(t, deploy.Root())
	for _, manifest := range testkit.Blocks(t, page, "yaml") {
		if found := named.FindStringSubmatch(manifest); found != nil && strings.Contains(manifest, "kind: SidecarSet") {
			if err := os.WriteFile(filepath.Join(dir, found[1]+".yaml"), []byte(manifest), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// What the README and docs/concepts.md show is what kubectl prints about the README's SidecarSet.
func showTheSidecarSet(t *testing.T) {
	page := filepath.Join(deploy.Root(), "README.md")
	dir := reader(t, page)
	for _, page := range []string{page, filepath.Join(deploy.Root(), "README.zh-CN.md"), filepath.Join(deploy.Root(), "docs/concepts.md")} {
		commands := transcript.Check(t, page, "cluster", updating(), func(args []string) (string, bool) {
			command := "kubectl " + strings.Join(args, " ")
			if args[0] == "apply" {
				testkit.Shell(t, cluster, dir, command+fivePods)
				return "", false // the page does not show it
			}
			return age.ReplaceAllString(testkit.Shell(t, cluster, dir, command), "41s"), true
		})
		if commands == 0 {
			t.Errorf("%s shows no command", page)
		}
	}
}
