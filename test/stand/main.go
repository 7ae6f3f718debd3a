package stand

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
)

// Main is the body of TestMain: it starts a cluster, calls begin with it, runs the tests and
// stops the cluster. It returns the exit code. With -short it starts nothing, runs no test,
// and says so.
//
// Options.Processes processes of the test binary share the tests, each with a cluster of its
// own. SHARDS in the environment overrides the number; with SHARDS=1, one process runs all.
//
// The processes of the control plane, kubectl and this process use STAND_GOGC of the
// environment as GOGC, or 400.
//
// With Options.Namespace the test binary first starts itself again inside a network
// namespace, see InNamespace: so TestMain runs the code before Main twice.
func Main(m *testing.M, o Options, begin func(context.Context, *Cluster) error) int {
	flag.Parse()
	if flagValue("test.list") != "" {
		return m.Run()
	}
	if testing.Short() {
		fmt.Println("SKIP: these tests need a control plane, and -short was given")
		return 0
	}
	if os.Getenv(GarbageVariable) == "" {
		_ = os.Setenv(GarbageVariable, "400")
	}
	switch dealt, err := shares(o); {
	case err != nil:
		fmt.Fprintln(os.Stderr, "stand:", err)
		return 1
	case dealt != nil:
		return runShares(dealt)
	}
	if o.Namespace {
		if err := InNamespace(); err != nil {
			fmt.Fprintln(os.Stderr, "stand:", err)
			return 1
		}
	}
	c, err := Start(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stand:", err)
		return 1
	}
	if percent, err := strconv.Atoi(os.Getenv(GarbageVariable)); err == nil {
		debug.SetGCPercent(percent)
	}
	code := 1
	if err := begin(context.Background(), c); err != nil {
		fmt.Fprintln(os.Stderr, "before the first test:", err)
	} else {
		code = m.Run()
	}
	c.keepLogs = code != 0
	if err := c.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stand:", err)
		return max(code, 1)
	}
	return code
}
