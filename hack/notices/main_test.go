package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module makes a module with files and returns one package of it.
func module(t *testing.T, path, inside string, files map[string]string) compiled {
	t.Helper()
	top := t.TempDir()
	p := compiled{Dir: filepath.Join(top, inside)}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.Module = &struct {
		Path, Version, Dir string
		Main               bool
	}{path, "v1", top, false}
	return p
}

func TestEqualTextsArePrintedOnce(t *testing.T) {
	files, err := collect([]compiled{
		module(t, "b", "deep/inside", map[string]string{"LICENSE": "free\r\n", "deep/NOTICE.txt": "thanks", "licence.go": "package x"}),
		module(t, "a", ".", map[string]string{"COPYING": "free", "README": "words"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := string(render(files))
	want := rule + "a v1: COPYING\nb v1: LICENSE\n" + rule + "free\n\n" + rule + "b v1, deep: NOTICE.txt\n" + rule + "thanks\n\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("got %s\nwant at the end %s", got, want)
	}
}

func TestAModuleWithoutALicenceIsAnError(t *testing.T) {
	_, err := collect([]compiled{module(t, "silent", ".", map[string]string{"README": "words"})})
	if err == nil || !strings.Contains(err.Error(), "silent v1 has no licence file") {
		t.Errorf("error %v", err)
	}
}
