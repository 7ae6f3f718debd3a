// Command modfile writes the go.mod with which this module builds one Kubernetes version.
// k8s.io/kubernetes replaces its staging modules by directories of its own repository, which
// other modules cannot use. The written go.mod replaces each of them by the version that was
// published at the same time.
//
//	go run ./cmd/modfile v1.36.4           writes go.v1.36.mod and go.v1.36.sum
//	go run ./cmd/modfile --main v1.37.2    writes go.mod and go.sum
//
// It runs in the module's directory.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	isMain := flag.Bool("main", false, "write go.mod itself")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: modfile [--main] VERSION, as v1.36.4")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *isMain); err != nil {
		fmt.Fprintln(os.Stderr, "modfile:", err)
		os.Exit(1)
	}
}

func run(version string, isMain bool) error {
	minor, staging, err := derive(version)
	if err != nil {
		return err
	}
	name := "go." + minor + ".mod"
	if isMain {
		name = "go.mod"
	}
	upstream, err := readUpstream(version)
	if err != nil {
		return err
	}
	text, err := render(version, staging, upstream)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return err
	}
	if isMain {
		if err := addShared(); err != nil {
			return err
		}
	}
	_, err = goCommand("mod", "tidy", "-modfile="+name)
	return err
}

// kwok is built with the same libraries as the version of go.mod.
const kwok = "sigs.k8s.io/kwok/cmd/kwok@v0.8.0"

// addShared requires kwok, and of each module that the operator uses too the operator's version:
// what two programs share is compiled once. A test tells when the versions differ.
func addShared() error {
	if _, err := goCommand("get", "-tool", kwok); err != nil {
		return err
	}
	if _, err := goCommand("mod", "tidy"); err != nil {
		return err
	}
	different, err := differing("go.mod", operatorModfile)
	if err != nil || len(different) == 0 {
		return err
	}
	_, err = goCommand(append([]string{"get"}, different...)...)
	return err
}

// operatorModfile is the operator's go.mod.
const operatorModfile = "../../go.mod"

// differing returns the modules that both files require in different versions, in the second
// one's version, as path@version. What the first file replaces does not count.
func differing(modfile, other string) ([]string, error) {
	ours, err := readModfile(modfile)
	if err != nil {
		return nil, err
	}
	theirs, err := readModfile(other)
	if err != nil {
		return nil, err
	}
	version := map[string]string{}
	for _, r := range theirs.Require {
		version[r.Path] = r.Version
	}
	for _, r := range ours.Replace {
		delete(version, r.Old.Path)
	}
	var different []string
	for _, r := range ours.Require {
		if v, both := version[r.Path]; both && v != r.Version {
			different = append(different, r.Path+"@"+v)
		}
	}
	return different, nil
}

func readModfile(path string) (*gomod, error) {
	out, err := goCommand("mod", "edit", "-json", path)
	if err != nil {
		return nil, err
	}
	file := new(gomod)
	return file, json.Unmarshal(out, file)
}

// derive returns the minor version and the version of the staging modules:
// "v1.36" and "v0.36.4" for v1.36.4.
func derive(version string) (minor, staging string, err error) {
	rest, found := strings.CutPrefix(version, "v1.")
	number, _, hasPatch := strings.Cut(rest, ".")
	if !found || !hasPatch {
		return "", "", fmt.Errorf("version %q is not like v1.36.4", version)
	}
	return "v1." + number, "v0." + rest, nil
}

// gomod is the part of the output of go mod edit -json that this program needs.
type gomod struct {
	Go      string
	Require []struct{ Path, Version string }
	Replace []struct{ Old, New struct{ Path string } }
}

// readUpstream downloads k8s.io/kubernetes and reads its go.mod.
func readUpstream(version string) (*gomod, error) {
	out, err := goCommand("mod", "download", "-json", "k8s.io/kubernetes@"+version)
	if err != nil {
		return nil, err
	}
	var download struct{ GoMod string }
	if err := json.Unmarshal(out, &download); err != nil {
		return nil, err
	}
	return readModfile(download.GoMod)
}

// render writes what cmd/kube imports and what upstream replaces; go mod tidy
// adds the rest.
func render(version, staging string, upstream *gomod) (string, error) {
	etcd := ""
	for _, r := range upstream.Require {
		if r.Path == "go.etcd.io/etcd/client/v3" {
			etcd = r.Version // the version of the server with which Kubernetes is tested
		}
	}
	var replaces []string
	for _, r := range upstream.Replace {
		if strings.HasPrefix(r.New.Path, "./staging/") {
			replaces = append(replaces, fmt.Sprintf("\t%s => %s %s\n", r.Old.Path, r.Old.Path, staging))
		}
	}
	if etcd == "" || len(replaces) == 0 {
		return "", errors.New("k8s.io/kubernetes has another go.mod than this program knows")
	}
	slices.Sort(replaces)
	return fmt.Sprintf(`module github.com/sidecarset/operator/test/controlplane

go %s

godebug default=go%s

require (
	go.etcd.io/etcd/server/v3 %s
	k8s.io/client-go %s
	k8s.io/component-base %s
	k8s.io/kubectl %s
	k8s.io/kubernetes %s
)

replace (
%s)
`, upstream.Go, goMinor(upstream.Go), etcd, staging, staging, staging, version, strings.Join(replaces, "")), nil
}

// goMinor returns the minor version: "1.26" for "1.26.0".
func goMinor(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

func goCommand(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return out, nil
}
