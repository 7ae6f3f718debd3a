package build

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// module writes the files of a module like test/controlplane, with two versions.
func module(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module " + modulePath + "\n\nrequire k8s.io/kubernetes v1.37.1\n",
		"go.sum":           "sum of 1.37\n",
		"go.v1.36.mod":     "module " + modulePath + "\n\nrequire (\n\tk8s.io/kubernetes v1.36.4\n)\n",
		"go.v1.36.sum":     "sum of 1.36\n",
		"cmd/kube/main.go": "package main\n",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func key(t *testing.T, s Source) string {
	t.Helper()
	k, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFindModule(t *testing.T) {
	dir := module(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "test", "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(root, "test", "controlplane")); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ from, want string }{
		"in the module":               {dir, dir},
		"below the module":            {filepath.Join(dir, "cmd", "kube"), dir},
		"in the module around it":     {root, filepath.Join(root, "test", "controlplane")},
		"elsewhere in the one around": {filepath.Join(root, "test", "other"), filepath.Join(root, "test", "controlplane")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := FindModule(tc.from); err != nil || got != tc.want {
				t.Errorf("FindModule(%s) = %s, %v; want %s", tc.from, got, err, tc.want)
			}
		})
	}
	if got, err := FindModule(t.TempDir()); err == nil {
		t.Errorf("FindModule found %s from an unrelated directory", got)
	}
}

func TestSelect(t *testing.T) {
	dir := module(t)
	tests := map[string]struct{ version, wantFile, wantVersion string }{
		"no version means go.mod":      {"", "go.mod", "v1.37.1"},
		"the version of go.mod":        {"v1.37.1", "go.mod", "v1.37.1"},
		"the version of another one":   {"v1.36.4", "go.v1.36.mod", "v1.36.4"},
		"a version without a go.mod":   {"v1.35.0", "", ""},
		"the beginning of a version":   {"v1.37", "", ""},
		"a version without its prefix": {"1.37.1", "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Select(dir, tc.version)
			if tc.wantFile == "" {
				if err == nil || !strings.Contains(err.Error(), "v1.36.4") {
					t.Errorf("Select(%q) = %+v, %v; want an error that lists what there is", tc.version, got, err)
				}
				return
			}
			if err != nil || got.Modfile != tc.wantFile || got.Version != tc.wantVersion {
				t.Errorf("Select(%q) = %+v, %v; want %s, %s", tc.version, got, err, tc.wantFile, tc.wantVersion)
			}
		})
	}
}

func TestKeyCoversWhatIsCompiled(t *testing.T) {
	for _, name := range []string{"go.mod", "go.sum", "cmd/kube/main.go"} {
		t.Run(name, func(t *testing.T) {
			dir := module(t)
			s := Source{Dir: dir, Modfile: "go.mod", Version: "v1.37.1"}
			before := key(t, s)
			if again := key(t, s); again != before {
				t.Errorf("the key is %s and then %s", before, again)
			}
			write(t, filepath.Join(dir, name), "changed\n")
			if after := key(t, s); after == before {
				t.Errorf("a change of %s leaves the key at %s", name, after)
			}
		})
	}
}

func TestKeyLeavesOutWhatIsNotCompiled(t *testing.T) {
	dir := module(t)
	s := Source{Dir: dir, Modfile: "go.mod", Version: "v1.37.1"}
	before := key(t, s)
	write(t, filepath.Join(dir, "go.v1.36.sum"), "changed\n")
	write(t, filepath.Join(dir, "cmd", "stand", "main.go"), "package main\n")
	if after := key(t, s); after != before {
		t.Errorf("the key went from %s to %s", before, after)
	}
}

func TestKeyBeginsWithTheVersion(t *testing.T) {
	dir := module(t)
	first := key(t, Source{Dir: dir, Modfile: "go.mod", Version: "v1.37.1"})
	second := key(t, Source{Dir: dir, Modfile: "go.v1.36.mod", Version: "v1.36.4"})
	if !strings.HasPrefix(first, "v1.37.1-") || !strings.HasPrefix(second, "v1.36.4-") {
		t.Errorf("the keys are %s and %s", first, second)
	}
}

// kwok is compiled with the libraries of the version that is built by default, whatever else is
// built.
func TestOneBuildForAllProgramsOfTheDefaultVersion(t *testing.T) {
	if got := (Source{Modfile: "go.mod", Version: "v1.37.1"}).targets(); len(got) != 1 || len(got[0].packages) != 2 {
		t.Errorf("the default version is built by %+v", got)
	}
	if got := (Source{Modfile: "go.v1.31.mod", Version: "v1.31.0"}).targets(); len(got) != 2 || got[0].modfile != "go.v1.31.mod" || got[1].modfile != "go.mod" {
		t.Errorf("another version is built by %+v", got)
	}
}

func TestLdflagsStampBothVersionPackages(t *testing.T) {
	flags := Source{Version: "v1.36.4"}.ldflags()
	for _, want := range []string{
		"-X k8s.io/component-base/version.gitVersion=v1.36.4",
		"-X k8s.io/client-go/pkg/version.gitVersion=v1.36.4",
		"-X k8s.io/component-base/version.gitMajor=1 ",
		"-X k8s.io/component-base/version.gitMinor=36 ",
	} {
		if !strings.Contains(flags, want) {
			t.Errorf("no %q in %s", want, flags)
		}
	}
}

func TestEnsureReturnsWhatIsBuiltWithoutTheGoCommand(t *testing.T) {
	dir, cache := module(t), t.TempDir()
	s := Source{Dir: dir, Modfile: "go.mod", Version: "v1.37.1"}
	want := filepath.Join(cache, key(t, s), "bin")
	write(t, filepath.Join(want, "kwok"), "")
	t.Setenv("PATH", "")
	var progress bytes.Buffer
	got, err := Ensure(t.Context(), s, cache, &progress)
	if err != nil || got != want {
		t.Errorf("Ensure = %s, %v; want %s", got, err, want)
	}
	if progress.Len() > 0 {
		t.Errorf("it said %q", progress.String())
	}
}

func TestFailedBuildLeavesNothingToFind(t *testing.T) {
	dir, cache := module(t), t.TempDir()
	write(t, filepath.Join(dir, "go.v1.36.mod"), "module "+modulePath+"\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, "cmd", "kube", "main.go"), "package main\n\nfunc main() { undefined() }\n")
	s := Source{Dir: dir, Modfile: "go.v1.36.mod", Version: "v1.36.4"}
	_, err := Ensure(t.Context(), s, cache, new(bytes.Buffer))
	if err == nil || !strings.Contains(err.Error(), "undefined") {
		t.Fatalf("the error is %v, without what the compiler said", err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "*", "bin"))
	if err != nil || len(left) > 0 {
		t.Errorf("the failed build left %s, %v", left, err)
	}
	if isBuilt(filepath.Join(cache, key(t, s))) {
		t.Error("the failed build counts as built")
	}
}

func TestMeterTellsProgressFromMessages(t *testing.T) {
	begin := time.Now()
	m := &meter{begin: begin}
	m.line("go: downloading k8s.io/api v0.37.1")
	if got, want := m.progress(begin.Add(3*time.Second)), "stand: 1 modules downloaded, 3s"; got != want {
		t.Errorf("progress is %q, want %q", got, want)
	}
	m.compiles(map[string]int64{"k8s.io/api/core/v1": 8, "internal/goarch": 2, "k8s.io/broken": 30})
	m.since = begin
	for _, line := range []string{"k8s.io/api/core/v1", "internal/goarch", "# k8s.io/broken", "cmd/main.go:3:1: undefined: x"} {
		m.line(line)
	}
	if got, want := m.progress(begin.Add(time.Minute)), "stand: 2 of 3 packages compiled, 1m0s, about 3m0s still"; got != want {
		t.Errorf("progress is %q, want %q", got, want)
	}
	if got, want := m.messages(), "# k8s.io/broken\ncmd/main.go:3:1: undefined: x"; got != want {
		t.Errorf("messages are %q, want %q", got, want)
	}
}
