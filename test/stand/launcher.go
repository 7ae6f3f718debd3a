package stand

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const rootModule = "github.com/sidecarset/operator"

// launcher returns the path of the launcher, and the module of the control plane in this checkout. It is
// the launcher that STAND names, or the one of this checkout, built if it is out of date.
func launcher() (path, module string, err error) {
	if module, err = controlplaneDir(); err != nil {
		return "", "", err
	}
	if path = os.Getenv("STAND"); path != "" {
		return path, module, nil
	}
	path, err = GoBuild(context.Background(), module, "stand", "./cmd/stand")
	return path, module, err
}

// controlplaneDir finds the launcher's module from the working directory, which
// in a test is the directory of the package.
func controlplaneDir() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := here; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module "+rootModule+"\n") {
			return filepath.Join(dir, "test", "controlplane"), nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no module %s around %s", rootModule, here)
		}
	}
}

// GoBuild builds the package of a module into a file of that name in the user's cache directory,
// separately for each module directory. The go command finds out whether a build is needed. One
// process at a time builds a file.
func GoBuild(ctx context.Context, module, name, pkg string, flags ...string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	checkout := sha256.Sum256([]byte(module))
	dir := filepath.Join(cache, "sidecarset-operator", "test", hex.EncodeToString(checkout[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	args := append([]string{"build", "-C", module, "-trimpath", "-buildvcs=false", "-o", path}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", name, err, out)
	}
	return path, nil
}
