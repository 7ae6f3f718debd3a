package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// oldWords had a meaning in this project only; CONTRIBUTING.md says how a word is chosen. The linter looks
// for them in comments.
var oldWords = regexp.MustCompile(`(?i)\b(in force|excuse[ds]?|settl[i]ng|str[a]ngers?|crews?|tall(y|ies)|catalogs?|widen(s|ed|ing|er)?|barriers?|forecasts?)\b`)

var capital = regexp.MustCompile(`[A-Z][a-z]+|[A-Z]+`)

// The pages, the words of the status and of metrics, and exported names have no word of before.
func TestWords(t *testing.T) {
	for name, text := range documents(t) {
		if word := oldWords.FindString(text); word != "" {
			t.Errorf("%s has the word %q", name, word)
		}
	}
	for _, c := range append(constants(t, "apis/apps/v1beta1/keys.go"), constants(t, "internal/inplace/method.go")...) {
		if word := oldWords.FindString(strings.Join(capital.FindAllString(c.value, -1), " ")); word != "" {
			t.Errorf("%s has the word %q", c.name, word)
		}
	}
	if word := oldWords.FindString(strings.ReplaceAll(read(t, "docs/reference/metrics.md"), "_", " ")); word != "" {
		t.Errorf("a metric has the word %q", word)
	}
	for _, root := range []string{"apis", "certs", "cmd", "controllers", "internal", "webhooks"} {
		err := filepath.WalkDir(filepath.Join(module, root), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				name, is := node.(*ast.Ident)
				if is && name.IsExported() && oldWords.MatchString(strings.Join(capital.FindAllString(name.Name, -1), " ")) {
					t.Errorf("%s: %s has a word of before", path, name.Name)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
