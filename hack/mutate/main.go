// Command mutate plants mistakes into the code, one at a time, and says which of them no unit test notices. The
// same seed plants the same mistakes into the same code. The work tree does not change.
//
//	go run ./hack/mutate [-seed N] [-each N] [ROOM...]
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// rooms are directories that belong together, by module.
var rooms = map[string][]string{
	"engine":       {"internal/inject", "internal/expr", "internal/members"},
	"rollout":      {"internal/rollout", "internal/tracker", "internal/status"},
	"running Pods": {"internal/inplace", "internal/podstate", "internal/revision"},
	"controllers":  {"controllers", "controllers/executor"},
	"entries":      {"webhooks/entries", "internal/entry", "internal/readiness", "webhooks/snapshot", "internal/injectors"},
	"Pods":         {"webhooks/pods", "internal/review", "internal/jsonread", "internal/match"},
	"SidecarSets":  {"webhooks/sidecarsets", "internal/validation", "internal/defaults", "internal/podtemplate", "internal/selectors", "internal/requester", "internal/podsecurity"},
	"conversion":   {"internal/conversion", "internal/hub", "webhooks/conversion"},
	"process":      {"certs", "webhooks/server", "internal/events", "cmd/operator"},
	"plugin":       {"cli", "doctor", "explain", "forecast", "lint", "manifest", "migrate", "progress", "restart", "world"},
}

const plugin = "cmd/kubectl-sidecarset" // a module of its own

// mutant is one mistake: the text between two offsets of a file becomes another.
type mutant struct {
	module, dir, file string
	at                token.Position
	end               int
	was, is           string
}

var others = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND, token.ADD: token.SUB, token.SUB: token.ADD,
}

// mutants returns all mistakes that can be made in a file.
func mutants(module, dir, file string) (all []mutant) {
	set := token.NewFileSet()
	text, err := os.ReadFile(file)
	check(err)
	parsed, err := parser.ParseFile(set, file, text, 0)
	check(err)
	add := func(from, to token.Pos, is string) {
		at, end := set.Position(from), set.Position(to).Offset
		all = append(all, mutant{module, dir, file, at, end, string(text[at.Offset:end]), is})
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.GenDecl:
			return n.Tok != token.IMPORT
		case *ast.BinaryExpr:
			if other, ok := others[n.Op]; ok {
				add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other.String())
			}
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				add(n.OpPos, n.OpPos+1, "")
			}
		case *ast.IfStmt:
			add(n.Cond.Pos(), n.Cond.End(), "!("+string(text[set.Position(n.Cond.Pos()).Offset:set.Position(n.Cond.End()).Offset])+")")
		case *ast.Ident:
			if other := map[string]string{"true": "false", "false": "true"}[n.Name]; other != "" {
				add(n.Pos(), n.End(), other)
			}
		case *ast.ExprStmt: // a call whose result nobody uses
			add(n.Pos(), n.End(), "")
		}
		return true
	})
	return all
}

// noticed reports whether a test of one of the packages fails. It returns false for ok if the code cannot be compiled.
func (m mutant) noticed(ctx context.Context, packages []string) (noticed, ok bool) {
	dir, err := os.MkdirTemp("", "mutate-")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	text, err := os.ReadFile(m.file)
	check(err)
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	check(os.WriteFile(changed, slices.Concat(text[:m.at.Offset], []byte(m.is), text[m.end:]), 0o600))
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: changed}})
	check(err)
	check(os.WriteFile(overlay, replaced, 0o600))
	args := append([]string{"-C", m.module, "test", "-overlay=" + overlay, "-vet=off", "-short", "-failfast", "-timeout=3m"}, packages...)
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	return err != nil, !bytes.Contains(out, []byte("[build failed]")) && !bytes.Contains(out, []byte("[setup failed]"))
}

// users returns the packages whose tests use a directory of a module, without those that need a control plane.
func users(ctx context.Context, module, dir string) (all []string) {
	out, err := exec.CommandContext(ctx, "go", "-C", module, "list", "-test", "-f", "{{.ForTest}} {{join .Deps \" \"}} ", "./...").Output()
	check(err)
	found := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		pkg, deps, _ := strings.Cut(line, " ")
		if pkg != "" && !strings.Contains(pkg, "/operator/test/") && !strings.HasSuffix(pkg, "/clustertest") && strings.Contains(deps, "/"+dir+" ") {
			found[pkg] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func main() {
	seed, each := flag.Uint64("seed", 1, "which mistakes"), flag.Int("each", 8, "how many in each room")
	flag.Parse()
	ctx := context.Background()
	top, err := os.Getwd()
	check(err)
	names := slices.Sorted(maps.Keys(rooms))
	if flag.NArg() > 0 {
		names = flag.Args()
	}
	total, found := 0, 0
	for _, name := range names {
		module := top
		if name == "plugin" {
			module = filepath.Join(top, plugin)
		}
		var all []mutant
		for _, dir := range rooms[name] {
			files, _ := filepath.Glob(filepath.Join(module, dir, "*.go"))
			for _, file := range files {
				if !strings.HasSuffix(file, "_test.go") {
					all = append(all, mutants(module, dir, file)...)
				}
			}
		}
		rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		tried, noticed := 0, 0
		for ; tried < *each && len(all) > 0; all = all[1:] {
			m := all[0]
			told, ok := m.noticed(ctx, []string{"./" + m.dir})
			if !ok {
				continue
			}
			if !told {
				told, _ = m.noticed(ctx, users(ctx, m.module, m.dir))
			}
			if tried++; told {
				noticed++
				continue
			}
			file, _ := filepath.Rel(top, m.file)
			fmt.Printf("%s: %s:%d:%d: %q became %q, and no test noticed\n", name, file, m.at.Line, m.at.Column, m.was, m.is)
		}
		fmt.Printf("%-13s %d of %d noticed\n", name, noticed, tried)
		total, found = total+tried, found+noticed
	}
	fmt.Printf("%-13s %d of %d noticed, %d %%\n", "all", found, total, 100*found/max(total, 1))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}
