// Package docs holds the documents to the code: what they link or name exists.
package docs

import (
	"go/ast"
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

	"github.com/google/go-cmp/cmp"
)

const module = ".." // from this directory; documents have their paths from there

var quoted = regexp.MustCompile("`([^`]+)`")

func quotes(text string) []string {
	var all []string
	for _, match := range quoted.FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	return all
}

var (
	testName = regexp.MustCompile("^Test[A-Z][A-Za-z0-9]*$")
	testRun  = regexp.MustCompile(`go .*?\btest .*?-run '?([A-Za-z0-9|]+)`)
)

// A quoted name of a test is a function of a test file, and a command with -run finds one.
func TestNamedTestsExist(t *testing.T) {
	known := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9]*)\(`)
	err := filepath.WalkDir(module, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range function.FindAllSubmatch(text, -1) {
			known[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range documents(t) {
		for _, quote := range quotes(text) {
			if testName.MatchString(quote) && !known[quote] {
				t.Errorf("%s names %s, which no file has", name, quote)
			}
		}
		for _, run := range testRun.FindAllStringSubmatch(text, -1) {
			for pattern := range strings.SplitSeq(run[1], "|") {
				if pattern != "none" && !slices.ContainsFunc(slices.Collect(maps.Keys(known)), func(test string) bool { return strings.Contains(test, pattern) }) {
					t.Errorf("%s runs %s, which finds no test", name, pattern)
				}
			}
		}
	}
}

var (
	made    = regexp.MustCompile(`(?m)^ *make ((?:[a-z][a-z-]*(?: |\b))+)`)
	matrix  = regexp.MustCompile(`(?m)^ *target: \[(.*)\]$`)
	targets = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
)

// Targets of make that pages and workflows name exist.
func TestNamedTargetsExist(t *testing.T) {
	known := map[string]bool{}
	for _, target := range targets.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		known[target[1]] = true
	}
	commands := map[string]string{".github/workflows/release.yaml": strings.ReplaceAll(read(t, ".github/workflows/release.yaml"), "- run: ", "")}
	for _, list := range matrix.FindAllStringSubmatch(read(t, ".github/workflows/test.yaml"), -1) {
		commands[".github/workflows/test.yaml"] = "make " + strings.ReplaceAll(list[1], ", ", "\nmake ")
	}
	for name, text := range documents(t) {
		commands[name] = strings.Join(append(shellBlock.FindAllString(text, -1), quotes(shellBlock.ReplaceAllString(text, ""))...), "\n")
	}
	for name, text := range commands {
		found := made.FindAllStringSubmatch(text, -1)
		if len(found) == 0 && strings.HasPrefix(name, ".github") {
			t.Errorf("%s names no target", name)
		}
		for _, command := range found {
			for target := range strings.FieldsSeq(command[1]) {
				if !known[target] {
					t.Errorf("%s names the target %q, which the Makefile does not have", name, target)
				}
			}
		}
	}
}

// A quoted path exists, from the top or from the document; "golden/x" is a
// golden injection.
func TestNamedPathsExist(t *testing.T) {
	entries, err := os.ReadDir(module)
	if err != nil {
		t.Fatal(err)
	}
	top := map[string]bool{}
	for _, entry := range entries {
		top[entry.Name()] = entry.IsDir()
	}
	for name, text := range documents(t) {
		for _, path := range quotes(text) {
			if rest, golden := strings.CutPrefix(path, "golden/"); golden {
				path = "internal/fixtures/testdata/injection/" + rest
			}
			first, _, nested := strings.Cut(path, "/")
			if !nested || !top[first] || strings.ContainsAny(path, " :=") {
				continue
			}
			if !exists(path) && !exists(filepath.Join(filepath.Dir(name), path)) {
				t.Errorf("%s names %s, which does not exist", name, path)
			}
		}
	}
}

// exists reports whether a path of the repository, or a pattern of them, exists.
func exists(path string) bool {
	found, err := filepath.Glob(filepath.Join(module, filepath.FromSlash(path)))
	return err == nil && len(found) > 0
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// A relative link leads to a file, and its fragment to a heading of that file.
func TestLinksLeadSomewhere(t *testing.T) {
	all := documents(t)
	for name, text := range all {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, fragment, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := filepath.Join(filepath.Dir(name), filepath.FromSlash(target))
			if target == "" {
				path = name
			}
			if _, err := os.Stat(filepath.Join(module, path)); err != nil {
				t.Errorf("%s links %s, which does not exist", name, match[1])
			} else if fragment != "" && !headings(all[path])[fragment] {
				t.Errorf("%s links %s, which has no such heading", name, match[1])
			}
		}
	}
}

var pageInCode = regexp.MustCompile(`(docs/[a-z-]+\.md)(?:#([a-z-]+))?`)

// The pages that the plugin's findings and steps name exist, with their headings.
func TestPagesThatThePluginNamesExist(t *testing.T) {
	all, found := documents(t), 0
	for _, pattern := range []string{"doctor/*.go", "migrate/*"} {
		files, err := filepath.Glob(filepath.Join(module, "cmd/kubectl-sidecarset", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, named := range pageInCode.FindAllStringSubmatch(read(t, strings.TrimPrefix(file, module)), -1) {
				found++
				if text, exists := all[named[1]]; !exists || named[2] != "" && !headings(text)[named[2]] {
					t.Errorf("%s names %s, which does not exist", file, named[0])
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d pages are named", found)
	}
}

// What a reader on call needs is at most two links away from the README.
func TestOnCallAnswersAreTwoLinksAway(t *testing.T) {
	near := map[string]bool{}
	follow := func(page string) (pages []string) {
		for _, match := range link.FindAllStringSubmatch(read(t, page), -1) {
			target, fragment, _ := strings.Cut(match[1], "#")
			path := filepath.Join(filepath.Dir(page), filepath.FromSlash(target))
			if target == "" {
				path = page
			}
			if near[path+"#"+fragment] = true; filepath.Ext(path) == ".md" {
				pages = append(pages, path)
			}
		}
		return pages
	}
	for _, page := range follow("README.md") {
		if exists(page) {
			follow(page)
		}
	}
	for task, answer := range map[string]string{
		"Pods have no sidecar":                      "docs/troubleshooting.md#a-pod-has-no-sidecar",
		"a webhook denies Pods":                     "docs/troubleshooting.md#denied-the-request",
		"a webhook cannot be called":                "docs/troubleshooting.md#failed-calling-webhook",
		"a rollout makes no progress":               "docs/troubleshooting.md#the-rollout-is-stuck",
		"new Pods crash, go back":                   "docs/tasks/bad-image.md#",
		"Pods must be created without the operator": "docs/troubleshooting.md#take-the-operator-out-of-the-way",
		"an alert fires":                            "docs/troubleshooting.md#",
		"certificates are not trusted":              "docs/certificates.md#api-servers-do-not-trust-the-certificate",
		"a Pod has an old sidecar":                  "docs/troubleshooting.md#a-pod-has-an-old-sidecar",
	} {
		if !near[filepath.FromSlash(answer)] {
			t.Errorf("%s: %s is more than two links away from the README", task, answer)
		}
	}
}

var (
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	inAnchor   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	metricName = regexp.MustCompile("`(sidecarset_[a-z_]+)[`{]")
	ourFlag    = regexp.MustCompile("`--([a-z][a-z0-9.-]*[a-z0-9])")
	otherFlags = []string{"admission-control-config-file", "cascade", "context", "copy-to", "force", "for", "help", "keep-labels", "namespace", "set", "set-image"} // of kube-apiserver, kubectl, every program
)

// headings returns the anchors of a document's headings, as GitHub makes them.
func headings(text string) map[string]bool {
	all := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		plain := inAnchor.ReplaceAllString(strings.ToLower(match[1]), "")
		all[strings.ReplaceAll(strings.TrimSpace(plain), " ", "-")] = true
	}
	return all
}

// flags.md and cli.md are compared with the programs elsewhere; the other documents with them.
func TestNamedFlagsExist(t *testing.T) {
	known := map[string]bool{}
	for _, match := range ourFlag.FindAllStringSubmatch(read(t, "docs/reference/flags.md")+read(t, "docs/reference/cli.md"), -1) {
		known[match[1]] = true
	}
	for _, name := range otherFlags {
		known[name] = true
	}
	for name, text := range documents(t) {
		if strings.HasPrefix(name, "test/") {
			continue // about programs of the tests
		}
		for _, match := range ourFlag.FindAllStringSubmatch(text, -1) {
			if !known[match[1]] {
				t.Errorf("%s names the flag --%s, which neither flags.md nor cli.md has", name, match[1])
			}
		}
	}
}

// metrics.md is written from the program; the other documents are compared with metrics.md.
func TestNamedMetricsExist(t *testing.T) {
	table := read(t, "docs/reference/metrics.md")
	for name, text := range documents(t) {
		for _, match := range metricName.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(table, "`"+match[1]+"`") {
				t.Errorf("%s names the metric %s, which metrics.md does not have", name, match[1])
			}
		}
	}
}

// A reader who sees a reason finds it on the page for people on call.
func TestReasonsAreInTroubleshooting(t *testing.T) {
	page := read(t, "docs/troubleshooting.md")
	all := append(constants(t, "apis/apps/v1beta1/keys.go"), constants(t, "internal/inplace/method.go")...)
	for _, c := range append(all, constants(t, "internal/inject/plan.go")...) {
		quiet := slices.Contains([]string{"Accepted", "PolicyBound", "AsExpected"}, c.value) // all is well
		if oneWord.MatchString(c.value) && !strings.HasPrefix(c.name, "Condition") && !strings.HasPrefix(c.name, "PodCondition") &&
			!strings.HasPrefix(c.name, "Default") && !quiet && !strings.Contains(page, "`"+c.value+"`") {
			t.Errorf("troubleshooting.md does not have the reason %s", c.value)
		}
	}
}

var oneWord = regexp.MustCompile("^[A-Z][A-Za-z]+$")

// A reader who sees the operator refuse a Pod finds some words of the message there.
func TestRefusalsAreInTroubleshooting(t *testing.T) {
	var words []string
	_, section, _ := strings.Cut(read(t, "docs/troubleshooting.md"), "\n## denied the request\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, quote := range quotes(shellBlock.ReplaceAllString(section, "")) {
		if strings.Contains(quote, " ") {
			words = append(words, quote)
		}
	}
	for _, path := range []string{"internal/inject/errors.go", "internal/inject/resources.go", "webhooks/pods/namespaces.go", "webhooks/pods/revisions.go", "webhooks/registration/freshness.go"} {
		ast.Inspect(parse(t, path), func(node ast.Node) bool {
			text := ""
			switch node := node.(type) {
			case *ast.KeyValueExpr:
				if key, ok := node.Key.(*ast.Ident); ok && key.Name == "Help" {
					return false // of a metric
				}
			case *ast.BinaryExpr:
				text = joined(node)
			case *ast.BasicLit:
				text = joined(node)
			}
			if strings.Count(text, " ") < 5 { // no message, or a part of one
				return text == ""
			}
			if !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) }) {
				t.Errorf("troubleshooting.md has no words of the refusal %q in %s", text, path)
			}
			return false
		})
	}
}

// joined is a text that may be added up of several literals.
func joined(node ast.Expr) string {
	switch node := node.(type) {
	case *ast.BinaryExpr:
		return joined(node.X) + joined(node.Y)
	case *ast.BasicLit:
		if node.Kind == token.STRING {
			text, _ := strconv.Unquote(node.Value)
			return text
		}
	}
	return ""
}

// documents returns the text of every document by its path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	add := func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) == ".md" {
			path, _ = filepath.Rel(module, path)
			all[path] = read(t, path)
		}
		return err
	}
	for _, root := range []string{"README.md", "README.zh-CN.md", "CONTRIBUTING.md", "SECURITY.md", "charts", "docs", "config", "test"} {
		if err := filepath.WalkDir(filepath.Join(module, root), add); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// read returns the text of a file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(module, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The README in Chinese has the commands, manifests and links of the English one, in their order.
func TestTheReadmesAreEqual(t *testing.T) {
	parts := func(path string) (all []string) {
		for _, found := range regexp.MustCompile("(?s)```.*?```|\\]\\([^)]+\\)").FindAllString(read(t, path), -1) {
			if !strings.Contains(found, "README.") || strings.Contains(found, "docs/") { // the link to the other one
				all = append(all, found)
			}
		}
		return all
	}
	if diff := cmp.Diff(parts("README.md"), parts("README.zh-CN.md")); diff != "" {
		t.Errorf("README.md and README.zh-CN.md (-English +Chinese):\n%s", diff)
	}
}

// The output that the README quotes has the titles and columns that the demo prints.
func TestTheReadmeQuotesTheDemo(t *testing.T) {
	demo := read(t, "hack/demo.sh")
	_, quoted, _ := strings.Cut(read(t, "README.md"), "```text\n")
	quoted, _, found := strings.Cut(quoted, "```")
	for _, text := range regexp.MustCompile(`\n| {2,}`).Split(quoted, -1) {
		if strings.Contains(text, " ") && !strings.Contains(demo, text) {
			t.Errorf("the README quotes %q, which hack/demo.sh does not have", text)
		}
	}
	if !found || !strings.Contains(quoted, "RESTARTS") {
		t.Errorf("the README quotes %q of the demo", quoted)
	}
}

var (
	shellBlock = regexp.MustCompile("(?s)```sh( [a-z]+)?\n(.*?)```")
	inQuotes   = regexp.MustCompile(`'[^']*'|"[^"]*"| #.*`)
)

// The word behind sh says which test runs the commands, or what they need that no test has.
var shellWords = map[string]string{
	"":          "a control plane with the operator: TestCommandsOfThePages of the plugin",
	" install":  "a control plane: TestInstallations of test/cluster",
	" outage":   "a control plane: TestWhileNoReplicaRuns of test/cluster",
	" helm":     "the program helm; test/ecosystem/helm does the same with its libraries",
	" registry": "a registry, for an image; hack/image has tests of what it pushes",
	" machine":  "a contributor's machine: they build or test the program",
	" cloud":    "a cloud, or a program that the tests do not have",
}

// The pages whose transcripts are compared with what kubectl and the plugin print.
var transcripts = map[string][]string{
	"":         {"docs/first-sidecarset.md", "docs/plugin.md"},                         // by package cli of the plugin
	" cluster": {"README.md", "README.zh-CN.md", "docs/concepts.md", "docs/plugin.md"}, // by clustertest
}

func TestEveryShellBlockSaysWhoRunsIt(t *testing.T) {
	for name, text := range documents(t) {
		for _, found := range regexp.MustCompile("(?m)^ *```console(.*)$").FindAllStringSubmatch(text, -1) {
			if !slices.Contains(transcripts[found[1]], name) {
				t.Errorf("%s: no test compares the block %q of this page", name, found[0])
			}
		}
		for _, found := range regexp.MustCompile("(?m)^ *```(sh|bash|shell|zsh)(.*)$").FindAllStringSubmatch(text, -1) {
			if shellWords[found[2]] == "" || found[1] != "sh" {
				t.Errorf("%s: no test knows the block %q", name, found[0])
			}
			if found[2] == "" && !strings.HasPrefix(name, "docs/") || found[2] == " install" && filepath.Dir(name) != "docs" || found[2] == " outage" && name != "docs/troubleshooting.md" {
				t.Errorf("%s: no test runs the block %q of this page", name, found[0])
			}
		}
	}
}

// zsh, the default shell of macOS, refuses a command with a pattern that matches no file.
func TestCommandsQuotePatterns(t *testing.T) {
	for name, text := range documents(t) {
		for _, block := range shellBlock.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(block[2]) {
				if strings.ContainsAny(inQuotes.ReplaceAllString(line, ""), "*?[]") {
					t.Errorf("%s: quote the pattern in %q", name, line)
				}
			}
		}
	}
}
