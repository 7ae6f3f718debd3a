package chaos

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// clockFile is the environment variable of an operator that skewedOperator built. It names a
// file, which says by how many seconds the operator's clock is ahead.
const clockFile = "CLOCK_FILE"

// operatorClock is the path of such a file.
type operatorClock string

// newClock writes such a file.
func newClock(t *testing.T, ahead time.Duration) operatorClock {
	t.Helper()
	c := operatorClock(filepath.Join(t.TempDir(), "clock"))
	c.set(t, ahead)
	return c
}

// set takes effect at once, also in a running process, because the process has mapped the
// file.
func (c operatorClock) set(t *testing.T, ahead time.Duration) {
	t.Helper()
	file, err := os.OpenFile(string(c), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.Write(binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second)))
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// useClocks makes replicas start program with clocks of their own, by the replica's name.
func useClocks(t *testing.T, program string, clocks map[string]operatorClock) {
	operator.Amend = func(c *stand.Command) {
		if clock, ok := clocks[c.Name]; ok {
			c.Path, c.Env = program, append(c.Env, clockFile+"="+string(clock))
		}
	}
	t.Cleanup(func() { operator.Amend = nil })
}

// One replica's clock is five minutes ahead of the API servers' clocks, and the other
// replica's is five minutes behind. The CA changes again and again, under either leader.
func TestClocksTenMinutesApartFailNoCall(t *testing.T) {
	if !testkit.Scaled(false, true) {
		t.Skip("SKIP: builds an operator with another clock, which takes minutes; with CHAOS=long only. TestSelfManaged in test/chaos/certificates has this law in each run")
	}
	useClocks(t, skewedOperator(t), map[string]operatorClock{"operator-1": newClock(t, 5*time.Minute), "operator-2": newClock(t, -5*time.Minute)})
	f := startReplicas(t, 2, "--cert-ca-lifetime=6h", "--cert-leaf-lifetime=1h", "--cert-settle=2s", "--cert-poll=250ms", "--drain-grace=2s")
	for range 2 {
		leader := f.awaitLeader(t)
		d := startDrill(t, f, fmt.Sprintf("skewed-%d", leader))
		d.phase(t, f.replicas[leader].Name+" leads", func() { d.rotate(t, 5, true) })
		d.end(t)
		dropFormerCAs(t) // with five more, there would be more CAs than the bundle may have
		handOver(t, f, leader)
	}
}

// The leader's clock is changed while it runs: it is so far ahead that the CA looks expired,
// later so far that the next CA looks due, and later behind. Each time it is set right again.
func TestClockThatIsSetWrongFailsNoCall(t *testing.T) {
	if !testkit.Scaled(false, true) {
		t.Skip("SKIP: builds an operator with another clock, which takes minutes; with CHAOS=long only. TestClockThatDiffersWritesNoCertificate has API servers answer with another time instead")
	}
	clock := newClock(t, 0)
	useClocks(t, skewedOperator(t), map[string]operatorClock{"operator-1": clock})
	flags := append([]string{"--cert-ca-lifetime=6h", "--cert-leaf-lifetime=1h", "--cert-settle=2s", "--cert-poll=250ms"}, steadyLeases...)
	leading := startReplicas(t, 1, flags...)
	leading.awaitLeader(t)
	other := startFleet(t, &fleet{args: flags, serving: true}, 2, 1)
	f := &fleet{replicas: []*deploy.Replica{leading.replicas[0], other.replicas[0]}}
	d := startDrill(t, f, "set-wrong")
	d.rotate(t, 1, true) // the CA may be that of another test
	unready := watchReadiness(t, f.replicas)
	for _, ahead := range []time.Duration{7 * time.Hour, 5 * time.Hour, -3 * time.Hour} {
		before := caSecret(t)
		d.phase(t, fmt.Sprintf("the leader's clock is %s ahead", ahead), func() {
			clock.set(t, ahead)
			<-time.After(10 * time.Second) // the leader looks at the Secret forty times
		})
		if now := caSecret(t); now.ResourceVersion != before.ResourceVersion {
			t.Error("the leader wrote the Secret")
		}
		d.phase(t, "it is right again, and the CA is rotated", func() {
			clock.set(t, 0)
			d.rotate(t, 1, true)
		})
	}
	awaitEvent(t, certs.ReasonClockDiffers)
	unready()
	d.end(t)
}

// dropFormerCAs makes the leader drop the CAs of which no leaf is served any more, as an
// administrator does.
func dropFormerCAs(t *testing.T) {
	t.Helper()
	annotateCASecret(t, certs.RetireAfterAnnotation, "2000-01-01T00:00:00Z")
	await.Eventually(t, "a bundle of one CA", func(context.Context) error {
		if bundle, err := certs.ParseBundle(caSecret(t).Data["ca.crt"]); err != nil || len(bundle) != 1 {
			return fmt.Errorf("it has %d: %w", len(bundle), err)
		}
		return nil
	})
}

// handOver stops the leader of two replicas, and starts it again when the other one leads.
func handOver(t *testing.T, f *fleet, leader int) {
	t.Helper()
	if err := f.replicas[leader].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	heir := f.replicas[1-leader]
	await.Eventually(t, heir.Name+" leads", func(context.Context) error {
		if !strings.Contains(heir.Log(), "Successfully acquired lease") {
			return errors.New("it does not say so")
		}
		return nil
	})
	if err := f.start(t, leader); err != nil {
		t.Fatal(err)
	}
}

// skewedOperator builds the operator of this checkout with a changed package time: Now is
// ahead by the seconds in a file, and the monotonic clock is unchanged.
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
		os.WriteFile(filepath.Join(dir, "time.go"), []byte(strings.Replace(string(source), reads, reads+"\tsec += *skew\n", 1)), 0o600),
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

import (
	"syscall"
	"unsafe"
)

var skew = mapSkew()

func mapSkew() *int64 {
	path, ok := syscall.Getenv("` + clockFile + `")
	if !ok {
		return new(int64)
	}
	file, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("opening " + path + ": " + err.Error())
	}
	data, err := syscall.Mmap(file, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("mapping " + path + ": " + err.Error())
	}
	return (*int64)(unsafe.Pointer(unsafe.SliceData(data)))
}
`
