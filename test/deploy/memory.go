package deploy

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Memory returns a figure of the replica's memory in bytes, by its name in /proc: VmRSS is the
// resident memory, and VmHWM its peak.
func (r *Replica) Memory(t testing.TB, figure string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, figure+":"); found {
			kilobytes, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes << 10
		}
	}
	t.Fatalf("/proc has no %s", figure)
	return 0
}

// ForgetPeak resets VmHWM, to separate one load from the next.
func (r *Replica) ForgetPeak(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.Pid()), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}
