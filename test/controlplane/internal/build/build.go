package build

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Components are the names by which the multi-call binary can be called.
var Components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"}

// DefaultCache returns the directory in which builds are kept by default.
func DefaultCache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory (or name one with --cache): %w", err)
	}
	return filepath.Join(dir, "sidecarset-operator"), nil
}

// Ensure returns the directory with the programs of this source. It builds them if no earlier
// call has built them. Concurrent callers wait for one build. If a build is interrupted, a later
// caller builds again.
func Ensure(ctx context.Context, s Source, cache string, progress io.Writer) (string, error) {
	key, err := s.Key()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, key)
	if isBuilt(dir) {
		return filepath.Join(dir, "bin"), nil
	}
	unlock, err := lock(dir+".lock", progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if !isBuilt(dir) { // another process may have built it while this one waited
		if err := s.buildInto(ctx, dir, progress); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "bin"), nil
}

func isBuilt(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "bin", "kwok"))
	return err == nil
}

func lock(path string, progress io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the build lock: %w", err)
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Fprintln(progress, "stand: another process is building the control plane; waiting for it")
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			file.Close()
			return nil, fmt.Errorf("taking the build lock %s: %w", path, err)
		}
	}
	return func() { file.Close() }, nil
}

func (s Source) buildInto(ctx context.Context, dir string, progress io.Writer) error {
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	bin := filepath.Join(temp, "bin")

	fmt.Fprintf(progress, "stand: building Kubernetes %s and kwok: 6 to 12 minutes on 2 cores, once; kept in %s\n", s.Version, dir)
	kube := target{
		name: "kube", dir: s.Dir, pkg: "./cmd/kube", out: filepath.Join(bin, "kube"),
		flags: []string{"-modfile=" + s.Modfile, "-ldflags=" + s.ldflags()},
	}
	kwok := target{
		name: "kwok", dir: filepath.Join(s.Dir, "kwok"), pkg: "sigs.k8s.io/kwok/cmd/kwok", out: filepath.Join(bin, "kwok"),
		flags: []string{"-ldflags=-s -w"},
	}
	for _, t := range []target{kube, kwok} {
		if err := t.build(ctx, progress); err != nil {
			return err
		}
	}
	for _, name := range Components {
		if err := os.Symlink("kube", filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return os.Rename(temp, dir)
}

// target is one go build.
type target struct {
	name, dir, pkg, out string
	flags               []string
}

func (t target) build(ctx context.Context, progress io.Writer) error {
	args := append([]string{"build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", t.out}, t.flags...)
	cmd := goCommand(ctx, t.dir, append(args, t.pkg)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	meter := newMeter(t.name, progress)
	defer meter.stop()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the go command to build %s: %w", t.name, err)
	}
	go meter.learnTotal(t.countPackages(ctx))
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		meter.line(lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("building %s in %s: %w\n%s", t.name, t.dir, err, meter.messages())
	}
	return nil
}

// countPackages says how many packages the program has in all, or 0.
func (t target) countPackages(ctx context.Context) func() int {
	return func() int {
		args := []string{"list", "-mod=readonly", "-deps"}
		for _, flag := range t.flags {
			if strings.HasPrefix(flag, "-modfile=") {
				args = append(args, flag)
			}
		}
		out, err := goCommand(ctx, t.dir, append(args, t.pkg)...).Output()
		if err != nil {
			return 0
		}
		return bytes.Count(out, []byte("\n"))
	}
}

func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}
