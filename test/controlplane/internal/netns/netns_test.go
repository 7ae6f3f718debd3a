package netns

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary act as the launcher, and as the commands that the launcher runs.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case InitCommand:
		Init(os.Args[2:])
	case "run":
		os.Exit(code(Run(os.Args[2:], Options{})))
	case "run-isolated":
		os.Exit(code(Run(os.Args[2:], Options{Isolated: true})))
	case "leave-a-child":
		os.Exit(code(leaveChild()))
	case "exit-0":
		os.Exit(0)
	case "exit-7":
		os.Exit(7)
	case "wait":
		fmt.Println("waiting")
		select {}
	}
	os.Exit(m.Run())
}

func code(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, err)
	return 99
}

// inside returns a command that runs this binary in a namespace.
func inside(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(self, "run", self, "exit-0").CombinedOutput(); err != nil {
		t.Skipf("SKIP: no network namespace can be made here: %s", out)
	}
	return exec.Command(self, append([]string{"run", self}, args...)...)
}

func TestAddressesStayInside(t *testing.T) {
	if out, err := inside(t, "exit-0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
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

func TestExitCodeIsTheCommands(t *testing.T) {
	var exit *exec.ExitError
	if err := inside(t, "exit-7").Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("it ended with %v, want exit status 7", err)
	}
}

// leaveChild mounts a file system, starts a process that waits, and ends before that process.
func leaveChild() error {
	if err := syscall.Mount("isolated-test", os.Getenv("MOUNT_AT"), "tmpfs", 0, ""); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self, "wait")
	child.Stdout = os.Stdout
	return child.Start()
}

// isolated returns a command that runs this binary as process 1.
func isolated(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP: an isolated command needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(self, "run-isolated", self, "exit-0").CombinedOutput(); err != nil {
		t.Skipf("SKIP: no mount and PID namespace can be made here: %s", out)
	}
	return exec.Command(self, append([]string{"run-isolated", self}, args...)...)
}

// If the launcher is killed, the command ends too, in either kind of namespace.
func TestACommandDiesWithItsLauncher(t *testing.T) {
	for name, command := range map[string]func(*testing.T, ...string) *exec.Cmd{"inside": inside, "isolated": isolated} {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, "wait")
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
	cmd := isolated(t, "leave-a-child")
	cmd.Env = append(os.Environ(), "MOUNT_AT="+t.TempDir())
	cmd.WaitDelay = 10 * time.Second // a child that still runs would keep standard output open
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
