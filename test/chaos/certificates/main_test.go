// Package certificates tests the operator with a real cert-manager. The invariants of all ways to obtain
// certificates are tests of package certs.
package certificates

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	cluster *stand.Cluster
	api     client.WithWatch
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(stand.Main(m, stand.Options{Namespace: true}, begin))
}

func begin(_ context.Context, c *stand.Cluster) (err error) {
	cluster = c
	api, err = testkit.NewClient(cluster, certs.AddToScheme)
	return err
}

// certManagerVariable is the environment variable with the path of cert-manager's controllers.
const certManagerVariable = "CERTMANAGER"

func needCertManager(t *testing.T) {
	t.Helper()
	if os.Getenv(certManagerVariable) == "" {
		t.Skip("SKIP: there is no cert-manager: make chaos builds it and sets " + certManagerVariable)
	}
}

// installCertManager applies the CustomResourceDefinitions that come with the controllers' module.
func installCertManager(ctx context.Context, c *stand.Cluster) error {
	source, err := goTool(ctx, "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager")
	if err != nil {
		return err
	}
	crds := filepath.Join(source, "deploy/crds")
	if _, err := c.Kubectl(ctx, "", "apply", "--server-side", "-f", crds); err != nil {
		return err
	}
	if err := c.Established(ctx, "-f", crds); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	return await.Until(ctx, func(ctx context.Context) error { // API servers serve a kind a little after the CRD is Established
		_, err := c.Kubectl(ctx, "", "get", "issuers.cert-manager.io,certificates.cert-manager.io", "--all-namespaces")
		return err
	})
}

// startCertManager runs the controllers until the cluster ends.
func startCertManager(ctx context.Context, c *stand.Cluster) error {
	process, err := stand.StartProcess(ctx, stand.Command{
		Name: "cert-manager", Path: os.Getenv(certManagerVariable), Args: []string{"--kubeconfig", c.Kubeconfig}, LogDir: filepath.Join(c.Dir, "logs"),
	})
	if err != nil {
		return err
	}
	c.BeforeStop(process.Stop)
	return nil
}

// goTool runs the go command in the module of cert-manager's controllers.
func goTool(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", append([]string{"-C", filepath.Join(deploy.Root(), "test/ecosystem")}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
