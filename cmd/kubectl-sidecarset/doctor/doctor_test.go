package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

var page = regexp.MustCompile(`docs/[a-z-]+\.md(#[a-z-]+)?`)

// The pages that findings and steps name exist, with their anchors.
func TestPagesExist(t *testing.T) {
	var sources []string
	for _, pattern := range []string{"*.go", "../migrate/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, files...)
	}
	named := map[string]bool{}
	for _, file := range sources {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range page.FindAllString(string(text), -1) {
			named[one] = true
		}
	}
	if len(named) < 10 {
		t.Fatalf("only %d pages are named", len(named))
	}
	for one := range named {
		file, anchor, _ := strings.Cut(one, "#")
		text, err := os.ReadFile(filepath.Join("../../..", file))
		if err != nil {
			t.Error(err)
			continue
		}
		if anchor != "" && !slices.Contains(anchors(string(text)), anchor) {
			t.Errorf("%s has no such heading", one)
		}
	}
}

// anchors are those that GitHub makes of headings.
func anchors(text string) (all []string) {
	for line := range strings.Lines(text) {
		if title, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); is && strings.HasPrefix(line, "#") {
			drop := regexp.MustCompile(`[^a-z0-9 _-]`)
			all = append(all, strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-"))
		}
	}
	return all
}
