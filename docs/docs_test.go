// Package docs holds the documents to what the code has.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = ".." // from this directory

// row is one line of a table in validation.md.
type row struct {
	number, verdict, where string
	proofs                 []string
}

var quoted = regexp.MustCompile("`([^`]+)`")

// rows returns all of them; the second line of a table ends its heading.
func rows(t *testing.T) []row {
	t.Helper()
	text, err := os.ReadFile("validation.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []row
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), " |")
		number := strings.TrimPrefix(cells[0], "| ")
		if len(cells) < 6 || number == "#" {
			continue // the legend, a heading
		}
		r := row{number: number, verdict: strings.TrimSpace(cells[2])}
		if match := quoted.FindStringSubmatch(cells[3]); match != nil {
			r.where = match[1]
		}
		for _, match := range quoted.FindAllStringSubmatch(cells[4], -1) {
			r.proofs = append(r.proofs, match[1])
		}
		all = append(all, r)
	}
	return all
}

// numbers are those of the analysis that the operator was written against.
func numbers() []string {
	var all []string
	count := func(format string, last int) {
		for i := range last {
			all = append(all, fmt.Sprintf(format, i+1))
		}
	}
	count("%d", 45)
	for section, last := range map[string]int{"1": 7, "2": 5, "3": 3, "4": 8, "5": 12, "8": 8, "9": 11} {
		count(section+".%d", last)
	}
	count("T%d", 41)
	count("C%d", 41)
	return all
}

// Section 6 has no parts, and shares its number with a rule.
func TestEveryNumberStandsOnce(t *testing.T) {
	want := map[string]int{}
	for _, number := range numbers() {
		want[number] = 1
	}
	want["6"] = 2
	got := map[string]int{}
	for _, r := range rows(t) {
		got[r.number]++
	}
	for _, number := range slices.Sorted(maps.Keys(want)) {
		if got[number] != want[number] {
			t.Errorf("number %s stands %d times, want %d", number, got[number], want[number])
		}
		delete(got, number)
	}
	for number := range got {
		t.Errorf("number %s is no rule, section or trap", number)
	}
}

func TestEveryRowIsProven(t *testing.T) {
	tests := testsOfTheModule(t)
	for _, r := range rows(t) {
		t.Run(r.number, func(t *testing.T) {
			switch r.verdict {
			case "kept", "improved":
				if len(r.proofs) == 0 {
					t.Error("there is no proof")
				}
				if _, err := os.Stat(filepath.Join(module, filepath.FromSlash(r.where))); r.where == "" || err != nil {
					t.Errorf("where is it? %q", r.where)
				}
			case "not yet", "not ours":
				if len(r.proofs) > 0 {
					t.Error("there is a proof of what there is not")
				}
			default:
				t.Errorf("what is %q?", r.verdict)
			}
			for _, proof := range r.proofs {
				if err := tests.find(proof); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

var named = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)(…?)`")

// Tests that any document names exist; an ellipsis stands for the rest of names.
func TestNamedTestsExist(t *testing.T) {
	known := testsOfTheModule(t)
	documents, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	designs, err := filepath.Glob("design/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Concat(documents, designs, []string{filepath.Join(module, "README.md")}) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllStringSubmatch(string(text), -1) {
			if !known.has(match[1], match[2] != "") {
				t.Errorf("%s names %s, which does not exist", path, match[0])
			}
		}
	}
}

// testIndex has the text of string constants in each test function, by
// "package.Function".
type testIndex map[string][]string

// find looks up a proof: golden/case, package.TestX or package.TestX/case.
func (x testIndex) find(proof string) error {
	name, part, hasCase := strings.Cut(proof, "/")
	if name == "golden" {
		_, err := os.Stat(filepath.Join(module, "internal/fixtures/testdata/injection", part, "want.yaml"))
		return err
	}
	texts, exists := x[name]
	if !exists {
		return fmt.Errorf("there is no test %s", name)
	}
	begins := func(text string) bool { return strings.HasPrefix(text, part) }
	if hasCase && !slices.ContainsFunc(texts, begins) {
		return fmt.Errorf("%s has no case that begins with %q", name, part)
	}
	return nil
}

// has looks for a function, or the beginning of one, in any package.
func (x testIndex) has(name string, beginning bool) bool {
	for qualified := range x {
		_, function, _ := strings.Cut(qualified, ".")
		if function == name || beginning && strings.HasPrefix(function, name) {
			return true
		}
	}
	return false
}

func testsOfTheModule(t *testing.T) testIndex {
	t.Helper()
	index := testIndex{}
	err := filepath.WalkDir(module, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == ".git" || path != module && isModule(path)):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		return index.add(path)
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// isModule says whether a directory is a nested module, whose tests are others.
func isModule(directory string) bool {
	_, err := os.Stat(filepath.Join(directory, "go.mod"))
	return err == nil
}

// add reads the tests of one file.
func (x testIndex) add(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Recv != nil || !isTest(function.Name.Name) {
			continue
		}
		name := strings.TrimSuffix(file.Name.Name, "_test") + "." + function.Name.Name
		x[name] = append(x[name], stringsIn(function)...)
	}
	return nil
}

func isTest(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz")
}

func stringsIn(node ast.Node) []string {
	var all []string
	ast.Inspect(node, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				all = append(all, text)
			}
		}
		return true
	})
	return all
}
