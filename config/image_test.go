package config

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The Dockerfile copies what .dockerignore leaves: each package that the operator is
// built from has to be there.
func TestTheBuildContextHasEveryPackage(t *testing.T) {
	const module = "github.com/sidecarset/operator"
	text, err := os.ReadFile("../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	kept := strings.Split(string(text), "\n")
	for _, file := range []string{"!go.mod", "!go.sum", "!*.go"} {
		if !slices.Contains(kept, file) {
			t.Errorf(".dockerignore lacks %q", file)
		}
	}
	// Packages of this module, with the number of their embedded files.
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}} {{len $.EmbedFiles}}{{end}}{{end}}", "..")
	packages, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.FieldsFuncSeq(string(packages), func(r rune) bool { return r == '\n' }) {
		count++
		name, embedded, _ := strings.Cut(line, " ")
		dir := strings.TrimPrefix(strings.TrimPrefix(name, module), "/")
		if top, _, _ := strings.Cut(dir, "/"); top != "" && !slices.Contains(kept, "!"+top) {
			t.Errorf(".dockerignore lacks \"!%s\", which has the package %s", top, name)
		}
		if embedded != "0" && dir != "config" { // all of which is in the build context
			t.Errorf("%s embeds files; see to it that they are in the build context, and say so here", name)
		}
	}
	if count < 10 {
		t.Errorf("only %d packages were found", count)
	}
}
