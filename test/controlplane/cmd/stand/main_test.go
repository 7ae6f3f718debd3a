package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// playVariable is the environment variable that makes the test binary act as the launcher.
const playVariable = "STAND_TEST_PLAY"

func TestMain(m *testing.M) {
	if os.Getenv(playVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// stand runs the launcher and returns what it printed and its exit code.
func stand(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), playVariable+"=1")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), said.String(), cmd.ProcessState.ExitCode()
}

func TestMistakesAreExplained(t *testing.T) {
	dir := t.TempDir()
	tests := map[string]struct {
		args []string
		want string
	}{
		"no command":                   {nil, "usage: stand"},
		"an unknown command":           {[]string{"start"}, "usage: stand"},
		"run without a directory":      {[]string{"run"}, "name one with --dir"},
		"down without a directory":     {[]string{"down"}, "name one with --dir"},
		"an unknown control plane":     {[]string{"run", "--dir", dir, "--control-plane", "all"}, "apiserver or full"},
		"an unknown version":           {[]string{"build", "--k8s-version", "v1.0.0"}, "cmd/modfile v1.0.0"},
		"an argument too many":         {[]string{"run", "--dir", dir, "more"}, `"more"`},
		"status of nothing":            {[]string{"status", "--dir", dir}, "no stand is running in " + dir},
		"kill of nothing":              {[]string{"kill", "--dir", dir, "etcd"}, "no stand is running in " + dir},
		"restart of nothing":           {[]string{"restart", "--dir", dir, "etcd"}, "no stand is running in " + dir},
		"netns without a command":      {[]string{"netns"}, "no command"},
		"deletion of what is no stand": {[]string{"down", "--delete", "--dir", dir}, "not a stand's data directory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := stand(t, tc.args...)
			if code == 0 || !strings.Contains(stderr, tc.want) || stdout != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q; want %q", code, stdout, stderr, tc.want)
			}
		})
	}
}

func TestDownOfNothingIsNoMistake(t *testing.T) {
	if _, stderr, code := stand(t, "down", "--dir", filepath.Join(t.TempDir(), "missing")); code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestFailedBuildSaysWhatTheCompilerSaid(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module github.com/sidecarset/operator/test/controlplane\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.37.1\n",
		"go.sum":           "",
		"go.v1.36.mod":     "module github.com/sidecarset/operator/test/controlplane\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.36.4\n",
		"go.v1.36.sum":     "",
		"cmd/kube/main.go": "package main\n\nfunc main() { undefined() }\n",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("K8S_VERSION", "v1.36.4")
	_, stderr, code := stand(t, "build", "--module", dir, "--cache", t.TempDir())
	if code == 0 || !strings.Contains(stderr, "undefined: undefined") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

func TestExitStatusOfASignalIs128PlusItsNumber(t *testing.T) {
	cmd := exec.Command("sh", "-c", "kill -TERM $$")
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := statusOf(exit); got != exitStatus(128+int(syscall.SIGTERM)) {
		t.Errorf("the status is %d", got)
	}
}
