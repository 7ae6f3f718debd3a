// Package build compiles the control plane and keeps the result outside the work tree. It knows
// the Go command and this module's files. It does not know how the programs are run.
package build

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mainModfile has the version that is built by default, and kwok.
const mainModfile = "go.mod"

// Source is one Kubernetes version of the control plane, as this module's files
// describe it.
type Source struct {
	Dir     string // the module
	Modfile string // which of its go*.mod files
	Version string // of k8s.io/kubernetes, as "v1.37.2"
}

var requiredVersion = regexp.MustCompile(`(?m)^\s*(?:require )?k8s\.io/kubernetes (v\S+)`)

// Select finds the modfile that requires the version; an empty version means
// that of go.mod itself.
func Select(dir, version string) (Source, error) {
	modfiles, err := filepath.Glob(filepath.Join(dir, "go*.mod"))
	if err != nil {
		return Source{}, err
	}
	var known []string
	for _, path := range modfiles {
		text, err := os.ReadFile(path)
		if err != nil {
			return Source{}, err
		}
		found := requiredVersion.FindSubmatch(text)
		if found == nil {
			continue
		}
		has, name := string(found[1]), filepath.Base(path)
		if has == version || version == "" && name == mainModfile {
			return Source{Dir: dir, Modfile: name, Version: has}, nil
		}
		known = append(known, has)
	}
	return Source{}, fmt.Errorf("no modfile in %s (--module) requires k8s.io/kubernetes %s (there are %s); make one with: test/controlplane/modfile.sh %s",
		dir, version, strings.Join(known, ", "), version)
}

// Key identifies the build: equal keys mean equal programs. It depends on the files that are
// compiled, and not on the Go toolchain.
func (s Source) Key() (string, error) {
	sum := sha256.New()
	var files []string
	for _, modfile := range slices.Compact([]string{s.Modfile, mainModfile}) {
		files = append(files, modfile, strings.TrimSuffix(modfile, ".mod")+".sum")
	}
	sources, err := filepath.Glob(filepath.Join(s.Dir, "cmd", "kube", "*.go"))
	if err != nil {
		return "", err
	}
	slices.Sort(sources)
	for _, path := range sources {
		files = append(files, filepath.Join("cmd", "kube", filepath.Base(path)))
	}
	for _, name := range files {
		if err := addFile(sum, s.Dir, name); err != nil {
			return "", fmt.Errorf("hashing the sources of the control plane: %w", err)
		}
	}
	fmt.Fprintln(sum, s.ldflags())
	return s.Version + "-" + hex.EncodeToString(sum.Sum(nil))[:12], nil
}

func addFile(w io.Writer, dir, name string) error {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(name, ".sum") {
		return fmt.Errorf("%w; make it with: go mod tidy", err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s %d\n", name, len(text))
	_, err = w.Write(text)
	return err
}

// ldflags returns flags that remove the symbol table and set the version. Without a version,
// kubectl version fails, and clients that ask for the server's version do not work properly.
func (s Source) ldflags() string {
	number := strings.SplitN(strings.TrimPrefix(s.Version, "v"), ".", 3)
	stamps := []string{
		"gitVersion=" + s.Version,
		"gitMajor=" + number[0],
		"gitMinor=" + number[1],
		"gitCommit=unknown",
		"gitTreeState=clean",
		"buildDate=1970-01-01T00:00:00Z",
	}
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, stamp := range stamps {
			flags = append(flags, "-X", pkg+"."+stamp)
		}
	}
	return strings.Join(flags, " ")
}
