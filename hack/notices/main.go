// Command notices prints the licences of everything that is compiled into the
// operator: of each module, and of Go itself, every licence and notice file on
// the way from a compiled package up to the module's root. Equal texts are
// printed once, under the names of all that use them. The image carries the
// result as /NOTICES. With a directory, it is about the program there, and with
// platforms, about these.
//
//	go run ./hack/notices >bin/NOTICES
//	go run ./hack/notices cmd/kubectl-sidecarset linux/amd64 windows/amd64
//
// A module without a licence file is an error: an author has to look at it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// imagePlatforms are those that images are built for. Platforms differ in the packages that
// are compiled.
var imagePlatforms = []string{"linux/amd64", "linux/arm64"}

// ours is the module of the operator, which the plugin is built from, too.
const ours = "github.com/sidecarset/operator"

// notice matches the names of files that the image must have.
var notice = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

func main() {
	dir, platforms := ".", imagePlatforms
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if len(os.Args) > 2 {
		platforms = os.Args[2:]
	}
	if err := run(context.Background(), os.Stdout, dir, platforms); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, dir string, platforms []string) error {
	var packages []compiled
	for _, platform := range platforms {
		more, err := list(ctx, dir, platform)
		if err != nil {
			return err
		}
		packages = append(packages, more...)
	}
	files, err := collect(packages)
	if err != nil {
		return err
	}
	_, err = out.Write(render(files))
	return err
}

// compiled is a package of the program, as go list reports it.
type compiled struct {
	Dir      string
	Standard bool
	Root     string // of Go's installation, for its own packages
	Module   *struct {
		Path, Version, Dir string
		Main               bool
	}
}

func list(ctx context.Context, dir, platform string) ([]compiled, error) {
	system, architecture, _ := strings.Cut(platform, "/")
	command := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,Standard,Root,Module", ".")
	command.Dir = dir
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+architecture)
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages of %s for %s: %w", dir, platform, err)
	}
	var packages []compiled
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p compiled
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading what go list printed: %w", err)
		}
		packages = append(packages, p)
	}
}

// file is one licence or notice.
type file struct {
	owner string // such as "k8s.io/api v0.37.1", or with the path of a directory in it
	name  string
	text  string
}

// collect reads the files of all modules but ours, each once.
func collect(packages []compiled) ([]file, error) {
	seen := map[string]bool{} // directories
	found := map[string]bool{}
	var files []file
	for _, p := range packages {
		owner, top := "Go", p.Root
		if !p.Standard {
			if p.Module == nil || p.Module.Main || p.Module.Path == ours {
				continue
			}
			owner, top = p.Module.Path+" "+p.Module.Version, p.Module.Dir
		}
		if _, known := found[owner]; !known {
			found[owner] = false
		}
		for dir := p.Dir; ; dir = filepath.Dir(dir) {
			if !seen[dir] {
				seen[dir] = true
				more, err := read(owner, top, dir)
				if err != nil {
					return nil, err
				}
				files = append(files, more...)
				found[owner] = found[owner] || len(more) > 0
			}
			if dir == top || !strings.HasPrefix(dir, top) {
				break
			}
		}
	}
	for owner, hasSome := range found {
		if !hasSome {
			return nil, fmt.Errorf("%s has no licence file", owner)
		}
	}
	return files, nil
}

func read(owner, top, dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if inside, err := filepath.Rel(top, dir); err == nil && inside != "." {
		owner += ", " + filepath.ToSlash(inside)
	}
	var files []file
	for _, entry := range entries {
		if entry.IsDir() || !notice.MatchString(entry.Name()) || strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, file{owner, entry.Name(), string(text)})
	}
	return files, nil
}

const rule = "================================================================================\n"

// render prints equal texts once, in the order of their first owners.
func render(files []file) []byte {
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.name, b.name)) })
	var order []string
	owners := map[string][]string{}
	for _, f := range files {
		text := strings.TrimSpace(strings.ReplaceAll(f.text, "\r\n", "\n"))
		if _, known := owners[text]; !known {
			order = append(order, text)
		}
		owners[text] = append(owners[text], f.owner+": "+f.name)
	}
	var out bytes.Buffer
	out.WriteString("What this program is built from, and under which licences.\n" +
		"Generated by hack/notices.\n\n")
	for _, text := range order {
		out.WriteString(rule)
		for _, owner := range owners[text] {
			out.WriteString(owner + "\n")
		}
		out.WriteString(rule + text + "\n\n")
	}
	return out.Bytes()
}
