package deploy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/sidecarset/operator/test/stand"
)

// Program returns the operator's binary: $OPERATOR, or the one of this checkout, which is built
// into the user's cache directory.
var Program = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("OPERATOR"); path != "" {
		return path, nil
	}
	return stand.GoBuild(context.Background(), Root(), "sidecarset-operator", ".")
})

// AwaitReady waits until the replica says that it is ready; await.Patience
// at most.
func (r *Replica) AwaitReady(ctx context.Context) error { return r.Await(ctx, r.Ready) }

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

// Quicker is the factor by which the rules about certificates are faster in QuickProgram: a leaf is
// held back for two seconds, and trust is removed after five.
const Quicker = 60

// QuickProgram is the operator of this checkout with these times.
var QuickProgram = sync.OnceValues(func() (string, error) {
	flag := fmt.Sprintf("-ldflags=-X github.com/sidecarset/operator/cmd/operator.faster=%d", Quicker)
	return stand.GoBuild(context.Background(), Root(), "sidecarset-operator-quick", ".", flag)
})
