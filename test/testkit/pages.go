package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/stand"
)

var fence = regexp.MustCompile("(?ms)^( *)```([a-z]+(?: [a-z]+)?)\n(.*?)^ *```$")

// Blocks returns the fenced blocks of a page with this info string, without their indentation.
func Blocks(t testing.TB, path, info string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range fence.FindAllStringSubmatch(string(text), -1) {
		if found[2] == info {
			all = append(all, strings.TrimPrefix(strings.ReplaceAll("\n"+found[3], "\n"+found[1], "\n"), "\n"))
		}
	}
	return all
}

// Checkout returns a directory of the test's own with the files of the checkout, in which a reader may write files.
func Checkout(t testing.TB, root string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	webhooks, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, webhook := range webhooks {
		if err := os.Symlink(filepath.Join(root, webhook.Name()), filepath.Join(dir, webhook.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Shell runs the commands of a page in a directory, as the administrator, with the kubectl of the cluster.
func Shell(t testing.TB, c *stand.Cluster, dir, commands string) (output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+c.BinDir+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v:\n%s", commands, err, out)
	}
	return string(out)
}
