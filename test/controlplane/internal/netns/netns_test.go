package netns

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// kindVariable makes this test binary a launcher: its arguments are the command that it runs, in a
// namespace, or isolated.
const kindVariable = "NETNS_TEST"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == InitCommand {
		Init(os.Args[2:])
	}
	kind := os.Getenv(kindVariable)
	if kind == "" {
		os.Exit(m.Run())
	}
	err := Run(os.Args[1:], Options{Isolated: kind == "isolated"})
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
}

// launch returns a launcher of a command of the shell.
func launch(t *testing.T, kind, command string) *exec.Cmd {
	t.Helper()
	if kind == "isolated" && os.Geteuid() != 0 {
		t.Skip("SKIP: an isolated command needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	launcher := func(command string) *exec.Cmd {
		cmd := exec.Command(self, "sh", "-c", command)
		cmd.Env = append(os.Environ(), kindVariable+"="+kind)
		return cmd
	}
	if out, err := launcher("exit 0").CombinedOutput(); err != nil {
		t.Skipf("SKIP: no such namespace can be made here: %s", out)
	}
	return launcher(command)
}

// If the exit code were lost, suites that fail would pass.
func TestExitCodeIsTheCommands(t *testing.T) {
	for _, kind := range []string{"namespace", "isolated"} {
		var exit *exec.ExitError
		if err := launch(t, kind, "exit 7").Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Errorf("%s: it ended with %v, want exit status 7", kind, err)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if strings.HasPrefix(a.String(), "10.99.0.") {
			t.Errorf("the machine has the address %s", a)
		}
	}
}

// If the launcher is killed, the command ends too.
func TestACommandDiesWithItsLauncher(t *testing.T) {
	for _, kind := range []string{"namespace", "isolated"} {
		t.Run(kind, func(t *testing.T) {
			cmd := launch(t, kind, "echo waiting; exec sleep 1000")
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			reader := bufio.NewReader(stdout)
			if _, err := reader.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			ended := make(chan struct{}) // the command holds standard output open as long as it lives
			go func() {
				defer close(ended)
				_, _ = reader.ReadString('\n')
			}()
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Error("the command outlives its launcher")
			}
			_ = cmd.Wait()
		})
	}
}

func TestNothingOutlivesAnIsolatedCommand(t *testing.T) {
	cmd := launch(t, "isolated", "set -e; mount -t tmpfs isolated-test '"+t.TempDir()+"'; sleep 1000 &")
	cmd.WaitDelay = 10 * time.Second // a process that still runs would keep standard output open
	if out, err := cmd.Output(); err != nil {
		t.Errorf("it left a process behind, or failed: %v: %s", err, out)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), "isolated-test") {
		t.Error("a mount of the command is still there")
	}
}
