package clustertest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/cli"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	cluster *stand.Cluster
	api     client.Client
)

func TestMain(m *testing.M) {
	os.Exit(stand.Main(m, stand.Options{Full: true, Nodes: 1, Namespace: true}, begin))
}

// begin installs the operator.
func begin(ctx context.Context, c *stand.Cluster) (err error) {
	cluster = c
	if err := os.Setenv("PATH", cluster.BinDir+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil { // for kubectl
		return err
	}
	api, _, _, err = testkit.Begin(ctx, c)
	return err
}

// kubectl runs the plugin as kubectl sidecarset does, and logs what it writes to standard error.
func kubectl(t *testing.T, args ...string) (stdout string, code int) {
	t.Helper()
	stdout, stderr, code := kubectlWith(t, "", args...)
	if stderr != "" {
		t.Logf("kubectl sidecarset %s: %s", strings.Join(args, " "), stderr)
	}
	return stdout, code
}

// kubectlWith is kubectl with a standard input, and returns standard error.
func kubectlWith(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(append([]string{"--kubeconfig", cluster.Kubeconfig}, args...), cli.Streams{In: strings.NewReader(stdin), Out: &out, ErrOut: &errs}, "test")
	return out.String(), errs.String(), code
}

// wants fails the test unless the plugin succeeds and prints all of these.
func wants(t *testing.T, args []string, parts ...string) string {
	t.Helper()
	out, code := kubectl(t, args...)
	for _, part := range parts {
		if !strings.Contains(out, part) {
			t.Errorf("kubectl sidecarset %s has no %q:\n%s", strings.Join(args, " "), part, out)
		}
	}
	if code != 0 {
		t.Errorf("kubectl sidecarset %s: exit code %d:\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// refuses fails the test unless the plugin fails with code 1 and says all of these on standard error.
func refuses(t *testing.T, args []string, parts ...string) {
	t.Helper()
	_, stderr, code := kubectlWith(t, "", args...)
	for _, part := range parts {
		if !strings.Contains(stderr, part) {
			t.Errorf("kubectl sidecarset %s does not say %q:\n%s", strings.Join(args, " "), part, stderr)
		}
	}
	if code != 1 {
		t.Errorf("kubectl sidecarset %s: exit code %d, want 1:\n%s", strings.Join(args, " "), code, stderr)
	}
}

// app makes a namespace, a SidecarSet of the same name for its Pods, and a Deployment web with
// that many Pods, and waits until all of them are injected and ready. more is appended to the
// spec of the SidecarSet, as YAML.
func app(t *testing.T, pods int, more string) (name string) {
	t.Helper()
	name = selectedNamespace(t)
	apply(t, name, sidecarSet+more)
	testkit.AwaitReady(t, api, name)
	apply(t, name, strings.ReplaceAll(deployment, "PODS", fmt.Sprint(pods)))
	awaitPods(t, name, pods)
	return name
}

func selectedNamespace(t *testing.T) string {
	t.Helper()
	namespace := testkit.Namespace(t, api, nil)
	testkit.AwaitServiceAccount(t, api, namespace)
	return namespace
}

// awaitPods waits until the SidecarSet has that many Pods, all of them updated and ready.
func awaitPods(t *testing.T, name string, pods int) {
	t.Helper()
	n := int32(pods)
	testkit.AwaitCounters(t, api, name, testkit.Counters{Matched: n, Updated: n, Ready: n, UpdatedReady: n})
}

// apply applies manifests, in which it replaces NS by the namespace, and deletes the SidecarSet of
// that name after the test.
func apply(t *testing.T, namespace, manifests string) {
	t.Helper()
	testkit.Kubectl(t, cluster, strings.ReplaceAll(manifests, "NS", namespace), "apply", "-f", "-")
	deleteLater(t, namespace)
}

// deleteLater deletes a SidecarSet after the test.
func deleteLater(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "sidecarset", name, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
}

const sidecarSet = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: NS, annotations: {sidecarset.io/timeout-seconds: "30", sidecarset.io/min-ready-seconds: "0"}}
spec:
  selector: {matchLabels: {app: web}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
  containers:
  - {name: log-agent, image: "example.com/log-agent:v1"}
`

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS}
spec:
  replicas: PODS
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: app, image: "example.com/app:v1"}]
`
