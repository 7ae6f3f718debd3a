package deploy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sidecarset/operator/test/await"
)

// build builds the operator of this checkout into the user's cache directory.
func build(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "sidecarset-operator", "test", "sidecarset-operator")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", Root(), "-buildvcs=false", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the operator: %w: %s", err, out)
	}
	return path, nil
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// AwaitReady waits until the replica says that it is ready; await.Patience
// at most.
func (r *Replica) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	ready := r.Ready
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if !r.Running() {
			return fmt.Errorf("%s ended; the end of its log:\n%s", r.Name, r.Tail(50))
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; the end of its log:\n%s", r.Name, err, r.Tail(50))
		}
	}
}

// Ready calls the replica's readiness probe. If the replica is not ready, the error contains the
// answer.
func (r *Replica) Ready(ctx context.Context) error {
	code, says, err := r.Readyz(ctx, "?verbose")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/readyz: %d: %s", code, says)
	}
	return err
}

// Readyz calls /readyz followed by rest: "?verbose", or "/" and the name of a check.
func (r *Replica) Readyz(ctx context.Context, rest string) (code int, says string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Probes+"/readyz"+rest, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
