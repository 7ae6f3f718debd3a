// Command mutate plants mistakes into the code, one at a time, and prints those that no unit test notices. The same
// seed plants the same mistakes into the same code. The work tree does not change.
//
//	go run ./hack/mutate [-seed N] [-each N] [ROOM...]
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// rooms are directories that belong together.
var rooms = map[string][]string{
	"engine":       {"internal/inject", "internal/expr", "internal/members"},
	"rollout":      {"internal/rollout", "internal/tracker", "internal/status"},
	"running Pods": {"internal/inplace", "internal/podstate", "internal/revision"},
	"controllers":  {"controllers", "controllers/executor"},
	"entries":      {"webhooks/registration", "internal/podwebhook", "internal/readiness", "webhooks/snapshot", "internal/injectors"},
	"Pods":         {"webhooks/pods", "internal/review", "internal/jsonread", "internal/match"},
	"SidecarSets":  {"webhooks/sidecarsets", "internal/validation", "internal/defaults", "internal/podtemplate", "internal/selectors", "internal/requester", "internal/podsecurity"},
	"conversion":   {"internal/conversion", "internal/hub", "webhooks/conversion"},
	"process":      {"certs", "webhooks/server", "internal/events", "cmd/operator"},
	"plugin":       {"cli", "doctor", "explain", "outcome", "lint", "manifest", "migrate", "progress", "restart", "clusterview"}, // a module of its own
}

// mutant is one mistake: the text between two offsets of a file becomes another.
type mutant struct {
	module, dir, file string
	at                token.Position
	was, is           string
}

var others = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND, token.ADD: token.SUB, token.SUB: token.ADD,
}

// mutants returns all mistakes that can be made in a file.
func mutants(module, dir, file string) (all []mutant) {
	set, text := token.NewFileSet(), must(os.ReadFile(file))
	add := func(from, to token.Pos, change func(was string) string) {
		at := set.Position(from)
		was := string(text[at.Offset:set.Position(to).Offset])
		all = append(all, mutant{module, dir, file, at, was, change(was)})
	}
	nothing := func(string) string { return "" }
	ast.Inspect(must(parser.ParseFile(set, file, text, 0)), func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.BinaryExpr:
			if other, ok := others[n.Op]; ok {
				add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), func(string) string { return other.String() })
			}
		case *ast.UnaryExpr:
			if n.Op == token.NOT {
				add(n.OpPos, n.OpPos+1, nothing)
			}
		case *ast.IfStmt:
			add(n.Cond.Pos(), n.Cond.End(), func(was string) string { return "!(" + was + ")" })
		case *ast.Ident:
			if n.Name == "true" || n.Name == "false" {
				add(n.Pos(), n.End(), func(was string) string { return "!" + was })
			}
		case *ast.ExprStmt: // a call whose result is not used
			add(n.Pos(), n.End(), nothing)
		}
		return true
	})
	return all
}

// noticed reports whether a test of one of the packages fails. ok is false if the mistake does not compile.
func (m mutant) noticed(ctx context.Context, packages ...string) (noticed, ok bool) {
	dir := must(os.MkdirTemp("", "mutate-"))
	defer func() { _ = os.RemoveAll(dir) }()
	text := must(os.ReadFile(m.file))
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	for file, content := range map[string][]byte{
		changed: slices.Concat(text[:m.at.Offset], []byte(m.is), text[m.at.Offset+len(m.was):]),
		overlay: fmt.Appendf(nil, `{"Replace": {%q: %q}}`, m.file, changed),
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			log.Fatal(err)
		}
	}
	args := append([]string{"-C", m.module, "test", "-overlay=" + overlay, "-vet=off", "-short", "-failfast", "-timeout=3m"}, packages...)
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	return err != nil, !bytes.Contains(out, []byte("[build failed]")) && !bytes.Contains(out, []byte("[setup failed]"))
}

// users returns the packages whose unit tests use the directory.
func (m mutant) users(ctx context.Context) []string {
	out := must(exec.CommandContext(ctx, "go", "-C", m.module, "list", "-test", "-f", "{{.ForTest}} {{join .Deps \" \"}} ", "./...").Output())
	found := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		pkg, deps, _ := strings.Cut(line, " ")
		if pkg != "" && !strings.Contains(pkg, "/operator/test/") && !strings.HasSuffix(pkg, "/clustertest") && strings.Contains(deps, "/"+m.dir+" ") {
			found[pkg] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func main() {
	seed, each := flag.Uint64("seed", 1, "which mistakes"), flag.Int("each", 8, "how many in each room")
	flag.Parse()
	ctx, top, total, found := context.Background(), must(os.Getwd()), 0, 0
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), name) {
			continue
		}
		module := top
		if name == "plugin" {
			module = filepath.Join(top, "cmd/kubectl-sidecarset")
		}
		var all []mutant
		for _, dir := range rooms[name] {
			for _, file := range must(filepath.Glob(filepath.Join(module, dir, "*.go"))) {
				if !strings.HasSuffix(file, "_test.go") {
					all = append(all, mutants(module, dir, file)...)
				}
			}
		}
		rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		tried, noticed := 0, 0
		for _, m := range all {
			told, ok := m.noticed(ctx, "./"+m.dir)
			if !ok {
				continue
			}
			if !told {
				told, _ = m.noticed(ctx, m.users(ctx)...)
			}
			if told {
				noticed++
			} else {
				fmt.Printf("%s: %s:%d:%d: %q became %q, and no test noticed\n", name, strings.TrimPrefix(m.file, top+"/"), m.at.Line, m.at.Column, m.was, m.is)
			}
			if tried++; tried == *each {
				break
			}
		}
		fmt.Printf("%-13s %d of %d noticed\n", name, noticed, tried)
		total, found = total+tried, found+noticed
	}
	fmt.Printf("%-13s %d of %d noticed, %d %%\n", "all", found, total, 100*found/max(total, 1))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
