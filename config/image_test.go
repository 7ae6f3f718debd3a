package config

import (
	"go/build"
	"os"
	"path"
	"path/filepath"
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
	seen := map[string]bool{}
	queue := []string{module}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		dir := strings.TrimPrefix(strings.TrimPrefix(name, module), "/")
		if top, _, _ := strings.Cut(dir, "/"); top != "" && !slices.Contains(kept, "!"+top) {
			t.Errorf(".dockerignore lacks \"!%s\", which has the package %s", top, name)
		}
		pkg, err := build.ImportDir(filepath.Join("..", filepath.FromSlash(dir)), 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(pkg.EmbedPatterns) > 0 && dir != "config" { // all of which is in the build context
			t.Errorf("%s embeds %q; see to it that they are in the build context, and say so here", name, pkg.EmbedPatterns)
		}
		for _, imported := range pkg.Imports {
			if strings.HasPrefix(imported, module+"/") {
				queue = append(queue, path.Clean(imported))
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d packages were found", len(seen))
	}
}
