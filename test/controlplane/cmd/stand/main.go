// Command stand builds, runs and stops a Kubernetes control plane on this
// machine, for tests and demonstrations. See the README beside this module.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/sidecarset/operator/test/controlplane/internal/build"
	"github.com/sidecarset/operator/test/controlplane/internal/netns"
	"github.com/sidecarset/operator/test/controlplane/internal/plane"
)

const usage = `usage: stand COMMAND [FLAG...]

  build      build the control plane, or find it built; print the directory
  run        run a stand in the foreground; print one line of JSON when ready
  netns      run a command in a network namespace of its own

stand COMMAND --help lists the flags.
`

// commands has the function of each sub-command. It gets the arguments after the sub-command's
// name.
var commands = map[string]func(ctx context.Context, args []string) error{
	"build": buildCommand,
	"run":   runCommand,
	"netns": netnsCommand,

	netns.InitCommand: func(_ context.Context, args []string) error { netns.Init(args); return nil },
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := commands[os.Args[1]](ctx, os.Args[2:])
	stop()
	var status exitStatus
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		fmt.Fprintln(os.Stderr, "stand:", err)
		os.Exit(1)
	}
}

// exitStatus is the exit code of a command that has already printed its own message.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// statusOf returns the command's own exit code, or the code that a shell returns for a signal.
func statusOf(exit *exec.ExitError) exitStatus {
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitStatus(128 + int(status.Signal()))
	}
	return exitStatus(exit.ExitCode())
}

// buildFlags say which programs a stand uses.
type buildFlags struct {
	version, module string
}

func (b *buildFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&b.version, "k8s-version", os.Getenv("K8S_VERSION"), "Kubernetes `version`, as v1.36.4; that of go.mod when empty (K8S_VERSION)")
	fs.StringVar(&b.module, "module", "test/controlplane", "`directory` of the module with the control plane")
}

// ensure returns the directory with the programs and the Kubernetes version.
func (b *buildFlags) ensure(ctx context.Context) (bin, version string, err error) {
	source, err := build.Select(b.module, b.version)
	if err != nil {
		return "", "", err
	}
	bin, err = build.Ensure(ctx, source, os.Stderr)
	return bin, source.Version, err
}

func buildCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("build", flag.ContinueOnError)
	var b buildFlags
	b.register(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	bin, _, err := b.ensure(ctx)
	if err == nil {
		fmt.Println(bin)
	}
	return err
}

func runCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	var b buildFlags
	var o plane.Options
	b.register(fs)
	fs.StringVar(&o.Dir, "dir", "", "data `directory`, which is empty or not there yet")
	fs.IntVar(&o.APIServers, "apiservers", 1, "`number` of API servers, 1 or 2")
	level := fs.String("control-plane", "full", "apiserver: etcd and API servers; full: also controller-manager and scheduler")
	fs.IntVar(&o.Nodes, "nodes", 0, "`number` of fake nodes, node-0 and on; implies kwok")
	fs.BoolVar(&o.Kwok, "kwok", false, "run kwok without nodes as well")
	fs.BoolVar(&o.Audit, "audit", false, "write an audit log per API server beside its log")
	fs.BoolVar(&o.Temporary, "temporary", false, "delete the data directory at the end; after a failure, all but the logs")
	takeOrders := fs.Bool("orders", false, "carry out the lines of standard input: status, kill COMPONENT, restart COMPONENT; and stop when it ends")
	fs.Func("arg", "additional `PROGRAM=--flag`; may be repeated", func(arg string) error {
		o.Args = append(o.Args, arg)
		return nil
	})
	if err := parse(fs, args); err != nil {
		return err
	}
	if o.Full = *level == "full"; !o.Full && *level != "apiserver" {
		return fmt.Errorf("control plane %q: it is apiserver or full", *level)
	}
	if err := o.Validate(); err != nil {
		return err
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if o.Bin, o.Version, err = b.ensure(ctx); err != nil {
		return err
	}
	var orders io.Reader
	if *takeOrders {
		orders = os.Stdin
	}
	err = plane.Run(ctx, &o, orders, os.Stdout)
	if errors.Is(err, context.Canceled) {
		return nil // the stand was asked to stop before it was ready
	}
	return err
}

func netnsCommand(_ context.Context, args []string) error {
	fs := flag.NewFlagSet("netns", flag.ContinueOnError)
	optional := fs.Bool("optional", false, "where no namespace can be made, run the command without one and say so in "+netns.Environment)
	isolated := fs.Bool("isolated", false, "make a mount and a PID namespace too, so that nothing that the command starts or mounts outlives it; needs root")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return errors.New("netns: no command; usage: stand netns [--optional] -- COMMAND [ARGUMENT...]")
	}
	err := netns.Run(fs.Args(), netns.Options{Optional: *optional, Isolated: *isolated})
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return statusOf(exit)
	}
	return err
}

// parse parses the flags and refuses other arguments.
func parse(fs *flag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%s takes no arguments but flags, not %q", fs.Name(), fs.Args())
	}
	return nil
}
