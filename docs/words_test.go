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
// for them in comments. Other old words are not in the list, because they are right elsewhere: an entry of
// a list, the content of a Secret, a program, a notice.
var oldWords = regexp.MustCompile(`(?i)\b(in force|excuse[ds]?|settl[i]ng|str[a]ngers?|crews?|tall(y|ies)|catalogs?|widen(s|ed|ing|er)?|barriers?|forecasts?|` +
	`authors?|carries|fates?|lacking|l[a]ws?|proven|sl[o]ts?)\b`)

// hardWords make prose hard for readers with English as a second language.
var hardWords = regexp.MustCompile(`(?i)\b(nobody|somebody|everybody|whoever|besides|anew|in vain|(that|those) of)\b`)

var capital = regexp.MustCompile(`[A-Z][a-z]+|[A-Z]+`)

// Pages, pictures, the words of the status and of metrics, and exported names have no word of before.
func TestWords(t *testing.T) {
	for name, text := range documents(t) {
		for _, words := range []*regexp.Regexp{oldWords, hardWords} {
			if word := words.FindString(text); word != "" {
				t.Errorf("%s has the word %q", name, word)
			}
		}
	}
	for _, name := range []string{"docs/architecture.svg", "docs/overview.svg", "docs/rollout.svg"} {
		if word := oldWords.FindString(read(t, name)); word != "" {
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
