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
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(progress, "stand: building Kubernetes %s and kwok: about 10 minutes on 2 cores, once; kept in %s\n", s.Version, dir)
	for _, t := range s.targets() {
		if err := t.build(ctx, bin, progress); err != nil {
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

// target is one go build: packages that share what they compile.
type target struct {
	dir, modfile, ldflags string
	packages              []string
}

// targets returns what is built. kwok's libraries are those of the module's own Kubernetes
// version, so another version is built without it.
func (s Source) targets() []target {
	const kube, kwok = "./cmd/kube", "sigs.k8s.io/kwok/cmd/kwok"
	if s.Modfile == mainModfile {
		return []target{{s.Dir, s.Modfile, s.ldflags(), []string{kube, kwok}}}
	}
	return []target{
		{s.Dir, s.Modfile, s.ldflags(), []string{kube}},
		{s.Dir, mainModfile, s.ldflags(), []string{kwok}},
	}
}

// goFlags are the flags of all builds of this repository, so that the operator and the control
// plane share what they compile.
func (t target) goFlags() []string {
	return []string{"-mod=readonly", "-modfile=" + t.modfile, "-trimpath", "-buildvcs=false"}
}

func (t target) build(ctx context.Context, bin string, progress io.Writer) error {
	meter := newMeter(progress)
	defer meter.stop()
	sizes, err := t.stale(ctx, meter)
	if err != nil {
		return err
	}
	meter.compiles(sizes)
	args := append([]string{"build", "-v", "-ldflags=" + t.ldflags, "-o", bin + "/"}, t.goFlags()...)
	return t.run(ctx, meter, nil, append(args, t.packages...))
}

// stale returns the packages that the Go build cache lacks, with the bytes of their files: a build
// that was interrupted goes on with them. It downloads the modules.
func (t target) stale(ctx context.Context, meter *meter) (map[string]int64, error) {
	args := append([]string{"list", "-deps", `-f={{if .Stale}}{{.ImportPath}}|{{.Dir}}|{{join .GoFiles "|"}}{{end}}`}, t.goFlags()...)
	var out bytes.Buffer
	if err := t.run(ctx, meter, &out, append(args, t.packages...)); err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for line := range strings.Lines(out.String()) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "|")
		dir, files, _ := strings.Cut(rest, "|")
		sizes[name] = 1 // if it has no file of this platform
		for file := range strings.SplitSeq(files, "|") {
			if info, err := os.Stat(filepath.Join(dir, file)); err == nil {
				sizes[name] += info.Size()
			}
		}
	}
	return sizes, nil
}

// run runs the go command; the meter reads what it writes to standard error.
func (t target) run(ctx context.Context, meter *meter, stdout io.Writer, args []string) error {
	cmd := goCommand(ctx, t.dir, args...)
	cmd.Stdout = stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the go command: %w", err)
	}
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		meter.line(lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go %s %s in %s: %w\n%s", args[0], strings.Join(t.packages, " "), t.dir, err, meter.messages())
	}
	return nil
}

func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// The compiler takes a fifth less of the processors if it collects its garbage seldom.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOGC=800", "GOMEMLIMIT=3GiB")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}
