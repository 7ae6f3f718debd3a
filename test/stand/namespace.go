package stand

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// environment is the variable that the launcher sets for what it runs by
// "stand netns": "made", or "none: " and the reason.
const environment = "STAND_NAMESPACE"

// InNamespace replaces this test binary by a launcher that runs it again, with
// the same arguments, inside a new user and network namespace; there it returns
// nil at once. The tests' output, their working directory, signals and the exit
// code are as before.
//
// Inside, lo has the addresses 127.0.0.1, ::1 and 10.99.0.1 to 10.99.0.20 (see Address).
// Nothing outside can be reached, so all downloads must be done before. This is why
// InNamespace builds the control plane first.
//
// If no namespace can be made, the binary runs again outside. Then Namespace is false, and
// tests that need a namespace skip themselves.
func InNamespace() error {
	if os.Getenv(environment) != "" {
		return nil
	}
	path, err := built()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// With STAND, the launcher is not built again inside.
	env := append(os.Environ(), "STAND="+path)
	argv := append([]string{path, "netns", "--optional", "--", self}, os.Args[1:]...)
	return fmt.Errorf("executing %s: %w", path, syscall.Exec(path, argv, env))
}

// Isolated runs this test binary again, with the same arguments, as process 1 of
// a new network, mount and PID namespace, and returns its exit code. Nothing that
// it starts, mounts or connects there outlives it. It needs root. The addresses
// are those of InNamespace, and one more: 10.96.0.1, at which Pods look for the
// API server; nothing listens there yet.
func Isolated(env ...string) (int, error) {
	path, err := built()
	if err != nil {
		return 1, err
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	defer signal.Stop(signals)
	cmd := exec.CommandContext(context.Background(), path, append([]string{"netns", "--isolated", "--", self}, os.Args[1:]...)...)
	cmd.Env = append(append(os.Environ(), "STAND="+path), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	onLastingThread(func() { err = cmd.Start() })
	if err != nil {
		return 1, err
	}
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig)
		}
	}()
	if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() < 1 {
		return 1, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// Namespace reports whether this test binary runs inside a network namespace
// of its own.
func Namespace() bool { return os.Getenv(environment) == "made" }

// NeedNamespace skips the test, and says why, if there is no namespace.
func NeedNamespace(t testing.TB) {
	t.Helper()
	if Namespace() {
		return
	}
	reason, found := strings.CutPrefix(os.Getenv(environment), "none: ")
	if !found {
		reason = "TestMain did not ask for one"
	}
	t.Skip("SKIP: needs a network namespace: " + reason)
}

// Address returns the i-th address, counted from 1 to 20. It is not a loopback address, so it
// may be an endpoint of a Service. It exists only inside a namespace.
func Address(i int) string { return fmt.Sprintf("10.99.0.%d", i) }
