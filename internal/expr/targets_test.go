package expr

import (
	"regexp/syntax"
	"strings"
	"testing"
)

func TestTargetsCompileWhatNamesContainers(t *testing.T) {
	for text, name := range map[string]string{
		".*": "app", "^app$": "app", "": "any", "(?i)APP": "app", `^(web|db|cache)-[0-9]{1,3}$`: "db-12",
		`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`: "a-container", `\pL+`: "app",
		"a{1000}b{1000}":                        strings.Repeat("a", 1000) + strings.Repeat("b", 1000),
		strings.Repeat("a|", 127) + "bb":        "bb",
		"(" + strings.Repeat("x?", 63) + "){9}": "x",
	} {
		compiled, err := new(Targets).Compile(text)
		if err != nil || !compiled.MatchString(name) {
			t.Errorf("%q does not match %.40q: %v", text, name, err)
		}
	}
}

func TestTargetsRefuseWhatTakesTooMuch(t *testing.T) {
	long := strings.Repeat("a", MaxTargetLength)
	for text, want := range map[string]string{
		long:                          "",
		long + "a":                    "it has 2049 bytes, and the limit is 2048; shorten it",
		strings.Repeat("a{1000}", 5):  "more than 4000 steps",
		strings.Repeat("a{1000}", 36): "more than 4000 steps",
		"(" + strings.Repeat("a", 240) + "){1000}": "more than 4000 steps",
		strings.Repeat(`\pL`, 85):                  "more than 4000 steps",
		"((a{10}){10}){10}b{1000}c{1000}d{1000}":   "more than 4000 steps",
		"a{1001}":                                  "invalid repeat count",
		"(":                                        "missing closing )",
	} {
		_, err := new(Targets).Compile(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

// A SidecarSet cannot take more memory by having more policies.
func TestTargetsOfOneSidecarSetAreBoundedTogether(t *testing.T) {
	var targets Targets
	steps, accepted := 0, 0
	for range 3000 {
		compiled, err := targets.Compile("a{100}")
		if err == nil {
			accepted++
			steps += stepsOf(t, compiled.String())
		}
	}
	if accepted == 0 || steps > maxTargetSize {
		t.Errorf("%d policies were compiled to %d steps, more than %d", accepted, steps, maxTargetSize)
	}
	if _, err := targets.Compile("a"); err == nil {
		t.Error("a policy behind those that are too large is compiled")
	}
	var many Targets
	for i := range 1000 {
		if _, err := many.Compile(".*"); err != nil {
			t.Fatalf("the default of container %d: %v", i, err)
		}
	}
}

// FuzzTargets compares the size that is counted with the size of what Go compiles.
func FuzzTargets(f *testing.F) {
	for _, text := range []string{"", "a{2,5}", "(a|b){3,}", "(?i)ß{7}", `\pL{2}[^a]`, "(((a{2}){3})*){4}", "x{0}", "()*()*()*", "(a*){3,}", "^a??$", "(?s).{0,9}", `\b(?:ab+){0,2}\z`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var targets Targets
		if compiled, err := targets.Compile(text); err == nil {
			if steps := stepsOf(t, compiled.String()); steps > targets.size+2 || targets.size > maxTargetSize {
				t.Errorf("%q has %d steps, and %d were counted", text, steps, targets.size)
			}
		}
	})
}

// stepsOf is how many instructions an expression has, without the last one and the one for
// a failure.
func stepsOf(t *testing.T, text string) int {
	t.Helper()
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		t.Fatal(err)
	}
	return len(program.Inst) - 2
}
