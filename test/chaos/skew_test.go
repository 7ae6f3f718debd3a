package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
)

// clockSkew is the variable that says by how many seconds the clock of an
// operator is ahead that was built by skewedOperator.
const clockSkew = "CLOCK_SKEW"

// One replica's clock is five minutes ahead of API servers' and the other one's
// five minutes behind. The CA changes again and again, under either leader.
func TestClocksTenMinutesApartFailNoCall(t *testing.T) {
	if !scaled(false, true) {
		t.Skip("SKIP: builds an operator with another clock, which takes minutes; with CHAOS=long only. TestSelfManaged in test/integration/certificates has this law in each run")
	}
	program := skewedOperator(t)
	operator.Amend = func(c *stand.Command) {
		by := map[string]time.Duration{"operator-1": 5 * time.Minute, "operator-2": -5 * time.Minute}[c.Name]
		c.Path, c.Env = program, append(c.Env, fmt.Sprintf("%s=%.0f", clockSkew, by.Seconds()))
	}
	t.Cleanup(func() { operator.Amend = nil })

	f := startReplicas(t, 2, "--cert-ca-lifetime=6h", "--cert-leaf-lifetime=1h", "--cert-settle=2s", "--cert-poll=250ms", "--drain-grace=2s")
	for range 2 {
		leader := f.awaitLeader(t)
		d := startDrill(t, f, fmt.Sprintf("skewed-%d", leader))
		d.phase(t, f.replicas[leader].Name+" leads", func() { d.rotate(t, 5, true) })
		d.end(t)
		handOver(t, f, leader)
	}
}

// handOver stops the leader of two until the other one leads.
func handOver(t *testing.T, f *fleet, leader int) {
	t.Helper()
	if err := f.replicas[leader].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	heir := f.replicas[1-leader]
	stand.Eventually(t, heir.Name+" leads", func(context.Context) error {
		if !strings.Contains(heir.Log(), "Successfully acquired lease") {
			return errors.New("it does not say so")
		}
		return nil
	})
	if err := f.start(t, leader); err != nil {
		t.Fatal(err)
	}
}

// skewedOperator builds the operator of this checkout with a package time whose
// Now is ahead by the seconds that the environment says.
func skewedOperator(t *testing.T) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, library := t.TempDir(), filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if !strings.Contains(string(source), reads) {
		t.Fatal("this Go reads the clock in another way: adapt the test")
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(library, "time.go"): filepath.Join(dir, "time.go"),
		filepath.Join(library, "skew.go"): filepath.Join(dir, "skew.go"),
	}})
	program := filepath.Join(dir, "operator")
	err = errors.Join(err,
		os.WriteFile(filepath.Join(dir, "time.go"), []byte(strings.Replace(string(source), reads, reads+"\tsec += skew\n", 1)), 0o600),
		os.WriteFile(filepath.Join(dir, "skew.go"), []byte(skewSource), 0o600),
		os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-C", deploy.Root(), "-buildvcs=false", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	return program
}

const skewSource = `package time

import "syscall"

var skew = readSkew()

func readSkew() int64 {
	text, _ := syscall.Getenv("` + clockSkew + `")
	seconds, _ := atoi(text)
	return int64(seconds)
}
`
