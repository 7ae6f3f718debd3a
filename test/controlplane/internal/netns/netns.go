// Package netns runs a command in a network namespace of its own, in which servers can listen at
// addresses that are not loopback. An API server calls webhooks behind a Service only at such
// addresses, and these must not appear on the machine's own interfaces.
//
// The namespace has one interface, lo, with 127.0.0.1, ::1, 10.99.0.1 to 10.99.0.20, and the
// address of the Service kubernetes. Nothing outside can be reached from it. It needs neither
// root nor the program ip, because a user namespace gives the rights.
//
// An isolated command, which needs root, has a mount and a PID namespace as
// well. It is process 1: when it ends, the kernel kills every process that it
// left behind, and removes the mounts and the network devices.
package netns

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// Environment is the environment variable that tells the command whether it is in a namespace:
// "made", or "none: " and the reason.
const Environment = "STAND_NAMESPACE"

// InitCommand is the sub-command that calls Init. It is for Run's use only.
const InitCommand = "netns-init"

// ServiceAddress is the address at which Pods call the API server: the first address of the
// stand's range for Services.
const ServiceAddress = "10.96.0.1"

// Addresses is how many addresses lo has: 10.99.0.1 and on.
const Addresses = 20

// Options say what to do beside making a network namespace.
type Options struct {
	Optional bool // run the command without a namespace if none can be made
	Isolated bool // make a mount and a PID namespace too, and no user namespace; needs root
}

// Run runs the command in a new namespace, passes on signals to it, and returns how it ended. If
// no namespace can be made and Options.Optional is true, it runs the command without one. If a
// terminal sends a signal to both, the command gets it twice.
func Run(argv []string, o Options) error {
	// The kernel kills the child when the thread that made it ends. This thread waits here.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 16) // signals wait here until the command runs
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	cmd, err := start(argv, o)
	if err != nil {
		if !o.Optional {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		return execve(argv, "none: "+err.Error())
	}
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig)
		}
	}()
	return cmd.Wait()
}

// start chooses the namespaces.
func start(argv []string, o Options) (*exec.Cmd, error) {
	if o.Isolated {
		return startInside(argv, syscall.CLONE_NEWNET|syscall.CLONE_NEWNS|syscall.CLONE_NEWPID)
	}
	cmd, err := startInside(argv, syscall.CLONE_NEWUSER|syscall.CLONE_NEWNET)
	if err != nil && os.Geteuid() == 0 {
		if cmd, second := startInside(argv, syscall.CLONE_NEWNET); second == nil {
			return cmd, nil
		}
	}
	return cmd, err
}

// startInside starts the command in new namespaces, through Init. It returns when the command was
// started, or returns the reason why it was not.
func startInside(argv []string, namespaces uintptr) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	failure, report, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer failure.Close()
	cmd := exec.Command(self, append([]string{InitCommand}, argv...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{report} // reportFD in the child
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	if namespaces&syscall.CLONE_NEWUSER != 0 {
		// The command is root inside, so it keeps its rights over the namespace across exec.
		// Outside it is still the calling user.
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	err = cmd.Start()
	report.Close()
	if err != nil {
		return nil, err
	}
	said, err := io.ReadAll(failure)
	if err == nil && len(said) > 0 {
		err = errors.New(string(said))
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	return cmd, nil
}

const reportFD = 3

// Init runs inside the namespace: it sets the interface up and becomes the
// command. If it fails it reports the error to Run and exits.
func Init(argv []string) {
	syscall.CloseOnExec(reportFD) // exec closes the pipe, which tells Run of the success
	err := setUp()
	if err == nil && os.Getpid() == 1 {
		err = ownMounts()
	}
	if err == nil {
		err = dieWithParent()
	}
	if err == nil {
		err = execve(argv, "made")
	}
	report := os.NewFile(reportFD, "report")
	_, _ = report.WriteString(err.Error())
	os.Exit(1)
}

// ownMounts makes mounts private to this namespace, and makes /proc show its processes.
func ownMounts() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making all mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	return nil
}

// dieWithParent makes the kernel kill this process when the process of Run ends. Run has already
// asked for that. But the kernel stores the request with a thread, and the thread that executes
// the command may be another one than the thread that was forked.
func dieWithParent() error {
	runtime.LockOSThread() // and never unlock it: this thread executes the command
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		return fmt.Errorf("asking to be killed with the parent: %w", errno)
	}
	return nil
}

// execve replaces this process by the command.
func execve(argv []string, namespace string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	if err := os.Setenv(Environment, namespace); err != nil {
		return err
	}
	if err := syscall.Exec(path, argv, os.Environ()); err != nil {
		return fmt.Errorf("executing %s: %w", path, err)
	}
	return nil
}
