package build

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Components are the names by which the multi-call binary can be called.
var Components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"}

// Ensure returns the directory with the programs of this source. It builds them if no earlier
// call has built them. Concurrent callers wait for one build. If a build is interrupted, a later
// caller builds again.
func Ensure(ctx context.Context, s Source, progress io.Writer) (string, error) {
	key, err := s.Key()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "sidecarset-operator", key)
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

// build runs go build, which downloads modules first, and says now and then how far it is.
func (t target) build(ctx context.Context, bin string, progress io.Writer) error {
	args := append([]string{"build", "-v", "-ldflags=" + t.ldflags, "-o", bin + "/"}, t.goFlags()...)
	cmd := goCommand(ctx, t.dir, append(args, t.packages...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the go command: %w", err)
	}
	modules, packages, messages := 0, 0, []string{}
	begin, told := time.Now(), time.Now()
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "go: downloading "):
			modules++
		case line != "" && !strings.ContainsAny(line, " \t#:"): // an import path
			packages++
		default:
			messages = append(messages, line)
		}
		if now := time.Now(); now.Sub(told) > 10*time.Second {
			fmt.Fprintf(progress, "stand: %d modules downloaded, %d packages compiled, of about 3,000, %s\n", modules, packages, now.Sub(begin).Round(time.Second))
			told = now
		}
	}
	if err := cmd.Wait(); err != nil {
		last := messages[max(0, len(messages)-40):] // the compiler stops after ten errors of a package
		return fmt.Errorf("go build %s in %s: %w\n%s", strings.Join(t.packages, " "), t.dir, err, strings.Join(last, "\n"))
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
