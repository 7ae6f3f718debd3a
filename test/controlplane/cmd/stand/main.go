// Command stand builds, runs and stops a Kubernetes control plane on this
// machine, for tests and demonstrations. See the README beside this module.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sidecarset/operator/test/controlplane/internal/build"
	"github.com/sidecarset/operator/test/controlplane/internal/netns"
	"github.com/sidecarset/operator/test/controlplane/internal/plane"
)

const usage = `usage: stand COMMAND [FLAG...]

  build      build the control plane, or find it built; print the directory
  run        run a stand in the foreground; print one line of JSON when ready
  up         run a stand in the background, unless it runs already
  down       stop it
  status     print what runs
  kill       end one component; the stand goes on
  restart    start one component again, on its old ports and data
  netns      run a command in a network namespace of its own

stand COMMAND --help lists the flags.
`

// commands has the function of each sub-command. It gets the arguments after the sub-command's
// name.
var commands = map[string]func(ctx context.Context, args []string) error{
	"build":   buildCommand,
	"run":     runCommand,
	"up":      upCommand,
	"down":    downCommand,
	"status":  statusCommand,
	"kill":    killCommand,
	"restart": restartCommand,
	"netns":   netnsCommand,

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
	version, cache, module string
}

func (b *buildFlags) register(fs *flag.FlagSet) {
	fs.StringVar(&b.version, "k8s-version", os.Getenv("K8S_VERSION"), "Kubernetes `version`, as v1.36.4; that of go.mod when empty (K8S_VERSION)")
	fs.StringVar(&b.cache, "cache", "", "`directory` for built programs; the user's cache directory when empty")
	fs.StringVar(&b.module, "module", "", "`directory` of the module test/controlplane; searched from the working directory when empty")
}

// ensure returns the directory with the programs and the Kubernetes version.
func (b *buildFlags) ensure(ctx context.Context) (bin, version string, err error) {
	if assets := os.Getenv(build.AssetsVariable); assets != "" {
		version, err = build.AssetsVersion(ctx, assets)
		return assets, version, err
	}
	dir := b.module
	if dir == "" {
		here, err := os.Getwd()
		if err != nil {
			return "", "", err
		}
		if dir, err = build.FindModule(here); err != nil {
			return "", "", err
		}
	}
	source, err := build.Select(dir, b.version)
	if err != nil {
		return "", "", err
	}
	cache := b.cache
	if cache == "" {
		if cache, err = build.DefaultCache(); err != nil {
			return "", "", err
		}
	}
	bin, err = build.Ensure(ctx, source, cache, os.Stderr)
	return bin, source.Version, err
}

func buildCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("build", flag.ContinueOnError)
	var b buildFlags
	b.register(fs)
	if err := parse(fs, args, 0); err != nil {
		return err
	}
	bin, _, err := b.ensure(ctx)
	if err == nil {
		fmt.Println(bin)
	}
	return err
}

// runFlags are shared by run and up.
type runFlags struct {
	buildFlags
	options     plane.Options
	level       string
	bin         string
	untilClosed bool
}

func (r *runFlags) register(fs *flag.FlagSet) {
	r.buildFlags.register(fs)
	o := &r.options
	fs.StringVar(&o.Dir, "dir", "", "data `directory`; made if it is not there, continued if it holds a stand's data")
	fs.StringVar(&r.bin, "bin", "", "`directory` of built programs, instead of building them")
	fs.StringVar(&r.level, "control-plane", "full", "apiserver: etcd and API servers; full: also controller-manager and scheduler")
	fs.StringVar(&o.BindAddress, "bind-address", "127.0.0.1", "`address` that every server listens on")
	fs.IntVar(&o.APIServers, "apiservers", 1, "`number` of API servers, 1 or 2")
	fs.IntVar(&o.Nodes, "nodes", 0, "`number` of fake nodes, node-0 and on; implies kwok")
	fs.BoolVar(&o.Kwok, "kwok", false, "run kwok without nodes as well")
	fs.BoolVar(&o.Audit, "audit", false, "write an audit log per API server beside its log")
	fs.BoolVar(&r.untilClosed, "until-stdin-closes", false, "stop when standard input ends, so that the stand ends with the process that started it")
	fs.BoolVar(&o.Temporary, "temporary", false, "delete the data directory at the end; after a failure, all but the logs")
	fs.Func("arg", "additional `PROGRAM=--flag`; may be repeated", func(arg string) error {
		o.Args = append(o.Args, arg)
		return nil
	})
}

// parse also finds or builds the programs, so that the user sees a long build, and it is
// finished before anything is started.
func (r *runFlags) parse(ctx context.Context, name string, args []string) error {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	r.register(fs)
	if err := parse(fs, args, 0); err != nil {
		return err
	}
	o := &r.options
	o.Progress = os.Stderr
	switch r.level {
	case "full":
		o.Full = true
	case "apiserver":
	default:
		return fmt.Errorf("control plane %q: it is apiserver or full", r.level)
	}
	if o.Dir == "" {
		return o.Validate()
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if err := o.Validate(); err != nil || r.bin != "" {
		o.Bin, o.Version = r.bin, r.version
		return err
	}
	if o.Bin, o.Version, err = r.ensure(ctx); err != nil {
		return err
	}
	return o.NeedPrograms()
}

func runCommand(ctx context.Context, args []string) error {
	var r runFlags
	if err := r.parse(ctx, "run", args); err != nil {
		return err
	}
	if r.untilClosed {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	err := plane.Run(ctx, &r.options, printInfo)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // the stand was asked to stop before it was ready
	}
	return err
}

// printInfo writes one line of JSON.
func printInfo(info *plane.Info) error {
	return json.NewEncoder(os.Stdout).Encode(info)
}

func upCommand(ctx context.Context, args []string) error {
	var r runFlags
	if err := r.parse(ctx, "up", args); err != nil {
		return err
	}
	dir := r.options.Dir
	running, err := plane.IsRunning(dir)
	if err != nil {
		return err
	}
	if !running {
		if err := startDetached(ctx, dir, append(args, "--bin="+r.options.Bin, "--k8s-version="+r.options.Version)); err != nil {
			return err
		}
	}
	info, err := plane.AwaitReady(ctx, dir)
	if err != nil {
		return err
	}
	return printInfo(info)
}

// startDetached starts stand run in a session of its own, and waits until it is ready. If it does
// not become ready, startDetached stops it.
func startDetached(ctx context.Context, dir string, args []string) error {
	logPath := filepath.Join(dir, "logs", "stand.log")
	if err := os.MkdirAll(filepath.Dir(logPath), 0o755); err != nil {
		return err
	}
	log, err := os.Create(logPath)
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{"run"}, args...)...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ready := make(chan error, 1)
	go func() {
		// One byte is enough: run prints only one line, when it is ready.
		_, err := stdout.Read(make([]byte, 1))
		ready <- err
	}()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	if err == nil {
		return nil
	}
	waited := cmd.Wait()
	said, _ := os.ReadFile(logPath)
	return fmt.Errorf("starting in the background: %w\n%s", errors.Join(ctx.Err(), waited), strings.TrimSpace(string(said)))
}

func downCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("down", flag.ContinueOnError)
	dir := dirFlag(fs)
	remove := fs.Bool("delete", false, "delete the data directory too")
	if err := parse(fs, args, 0); err != nil {
		return err
	}
	if err := needDir(dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := plane.Down(ctx, *dir); err != nil || !*remove {
		return err
	}
	return plane.Delete(*dir)
}

func statusCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("status", flag.ContinueOnError)
	dir := dirFlag(fs)
	if err := parse(fs, args, 0); err != nil {
		return err
	}
	return about(dir, func() (*plane.Info, error) { return plane.Status(ctx, *dir) })
}

func killCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("kill", flag.ContinueOnError)
	dir := dirFlag(fs)
	if err := parse(fs, args, 1); err != nil {
		return err
	}
	return about(dir, func() (*plane.Info, error) { return plane.Kill(ctx, *dir, fs.Arg(0)) })
}

func restartCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("restart", flag.ContinueOnError)
	dir := dirFlag(fs)
	if err := parse(fs, args, 1); err != nil {
		return err
	}
	return about(dir, func() (*plane.Info, error) { return plane.Restart(ctx, *dir, fs.Arg(0)) })
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

func dirFlag(fs *flag.FlagSet) *string {
	return fs.String("dir", "", "data `directory` of the stand")
}

func needDir(dir *string) error {
	if *dir == "" {
		return errors.New("no data directory: name one with --dir")
	}
	return nil
}

// about prints what a request to the supervisor returns.
func about(dir *string, ask func() (*plane.Info, error)) error {
	if err := needDir(dir); err != nil {
		return err
	}
	info, err := ask()
	if err != nil {
		return err
	}
	return printInfo(info)
}

// parse parses the flags and refuses another number of arguments than wanted.
func parse(fs *flag.FlagSet, args []string, want int) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() != want {
		return fmt.Errorf("%s takes %d arguments after its flags, not %q", fs.Name(), want, fs.Args())
	}
	return nil
}
