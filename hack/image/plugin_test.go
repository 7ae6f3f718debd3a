package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// plugin runs the command plugin and returns what it has written, by file.
func plugin(t *testing.T, args ...string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	notices := filepath.Join(dir, "notices.txt")
	if err := os.WriteFile(notices, []byte("licences\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := pluginCommand(t.Context(), append(args, "--out="+out, "--notices="+notices)); err != nil {
		t.Fatal(err)
	}
	return filesOf(t, out)
}

// filesOf returns the files of a directory, by name.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = string(text)
	}
	return files
}

func TestArchivesAndTheirManifest(t *testing.T) {
	licence := filepath.Join(t.TempDir(), "licence.txt")
	if err := os.WriteFile(licence, []byte("free\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	files := plugin(t, "--source="+source(t, "a"), "--version=v1.2.3", "--platforms=linux/arm64,windows/amd64", "--licence="+licence, "--url=https://example.com/v1.2.3/")

	unix, windows := "kubectl-sidecarset_v1.2.3_linux_arm64.tar.gz", "kubectl-sidecarset_v1.2.3_windows_amd64.zip"
	if err := checkTar(files[unix]); err != nil {
		t.Errorf("%s: %v", unix, err)
	}
	archive, err := zip.NewReader(strings.NewReader(files[windows]), int64(len(files[windows])))
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(archive, "kubectl-sidecarset.exe", "NOTICES", "LICENSE"); err != nil {
		t.Error(err)
	}
	sums := ""
	for _, name := range []string{unix, windows} {
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte(files[name])))
		sums += sum + "  " + name + "\n"
		if want := "    uri: https://example.com/v1.2.3/" + name + "\n    sha256: " + sum + "\n"; !strings.Contains(files[krewFile], want) {
			t.Errorf("the manifest lacks\n%s", want)
		}
	}
	if files["SHA256SUMS"] != sums {
		t.Errorf("the sums are\n%swant\n%s", files["SHA256SUMS"], sums)
	}
	if !strings.Contains(files[krewFile], "\n  version: v1.2.3\n") {
		t.Errorf("the manifest has another version:\n%s", files[krewFile])
	}
}

// checkTar reads an archive to its end.
func checkTar(text string) error {
	unpacked, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		return err
	}
	content, err := io.ReadAll(unpacked)
	if err != nil {
		return err
	}
	if end := make([]byte, 1024); !bytes.HasSuffix(content, end) {
		return errors.New("the archive has no end")
	}
	var names []string
	for archive := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		names = append(names, header.Name)
		if header.Name != "kubectl-sidecarset" {
			continue
		}
		program, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := checkProgram(program, "arm64"); err != nil || header.Mode != 0o755 {
			return fmt.Errorf("the program has mode %o: %w", header.Mode, err)
		}
	}
	if want := []string{"kubectl-sidecarset", "NOTICES", "LICENSE"}; !slices.Equal(names, want) {
		return fmt.Errorf("the archive has %q, want %q", names, want)
	}
	return nil
}

// Krew takes only semantic versions.
func TestABuildBetweenReleasesHasAVersionForKrew(t *testing.T) {
	for version, want := range map[string]string{"v1.2.3": "v1.2.3", "v1.2.3-4-g0123abc": "v1.2.3-4-g0123abc", "0123abc-dirty": "v0.0.0-git-0123abc-dirty"} {
		text, err := renderManifest(version, "https://example.com", nil)
		if err != nil || !strings.Contains(string(text), "\n  version: "+want+"\n") {
			t.Errorf("version %s: %v\n%s", version, err, text)
		}
	}
}
