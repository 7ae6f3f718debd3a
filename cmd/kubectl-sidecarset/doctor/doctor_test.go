package doctor

import (
	"fmt"
	"strings"
	"testing"
)

// expect fails the test unless look finds these, in this order: each begins with the level and has
// all other words of one line.
func expect(t *testing.T, look func(*Result), want ...string) {
	t.Helper()
	var r Result
	look(&r)
	got := r.Findings
	var lines []string
	for _, f := range got {
		lines = append(lines, fmt.Sprintf("%s %s: %s; %s", f.Level, f.Object, f.Problem, f.Remedy))
		if f.Remedy == "" || f.Page == "" {
			t.Errorf("a finding without a remedy or a page: %+v", f)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d findings, want %d:\n%s", len(got), len(want), strings.Join(lines, "\n"))
	}
	for i, line := range lines {
		for _, part := range strings.Split(want[i], "|") {
			if !strings.Contains(line, part) {
				t.Errorf("finding %d has no %q:\n%s", i, part, line)
			}
		}
	}
}
