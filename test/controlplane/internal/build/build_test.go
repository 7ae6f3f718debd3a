package build

import (
	"os"
	"path/filepath"
	"testing"
)

// A key that left out a file would run the control plane of another version, and no suite would
// tell.
func TestKeyCoversWhatIsCompiled(t *testing.T) {
	for _, changed := range []string{"go.mod", "go.sum", "cmd/kube/main.go"} {
		t.Run(changed, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "cmd", "kube"), 0o755); err != nil {
				t.Fatal(err)
			}
			write := func(name, text string) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"go.mod", "go.sum", "cmd/kube/main.go"} {
				write(name, "before\n")
			}
			s := Source{Dir: dir, Modfile: "go.mod", Version: "v1.37.1"}
			before, err := s.Key()
			if err != nil {
				t.Fatal(err)
			}
			write(changed, "changed\n")
			if after, err := s.Key(); err != nil || after == before {
				t.Errorf("after a change of %s, the key is %s, %v; it was the same before", changed, after, err)
			}
		})
	}
}
