package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/reasons"
)

// parity.md has a line with a verdict for each rule and each trap, in their order.
func TestParityHasEveryRule(t *testing.T) {
	page := read(t, "docs/reference/parity.md")
	row := regexp.MustCompile(`(?m)^\| ([TC]?\d+) \| .* \| (?:kept|improved|not ours) \|$`)
	for heading, numbers := range map[string]struct {
		prefix string
		last   int
	}{"Rules of the validating webhook": {"", 45}, "Traps of the API and of admission": {"T", 41}, "Traps of the controller": {"C", 41}} {
		_, section, _ := strings.Cut(page, "\n## "+heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		var got, want []string
		for _, found := range row.FindAllStringSubmatch(section, -1) {
			got = append(got, found[1])
		}
		for n := range numbers.last {
			want = append(want, fmt.Sprint(numbers.prefix, n+1))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-numbers +rows):\n%s", heading, diff)
		}
	}
}

// The pages in docs/reference have parts between two comments. The code is the source of these
// parts: comments of constants, help texts of metrics, values of bounds.
func TestReferencePagesSayWhatTheCodeSays(t *testing.T) {
	keys := constants(t, "apis/apps/v1beta1/keys.go")
	parts := map[string]string{
		"annotations.md sidecarsets": keyTable(keys, "kruise.io/sidecarset-hash", "sidecarset.io/current-since"),
		"annotations.md pods":        keyTable(keys, "kruise.io/sidecarset-injected-list", "SIDECARSET_VERSION_ALT"),
		"status.md fields":           fieldTable(t),
		"status.md columns":          columnTable(t),
		"metrics.md metrics":         metricTable(t),
		"limits.md limits":           limitTable(t),
	}
	for _, part := range []reasons.Part{reasons.Ready, reasons.Required, reasons.Progressing, reasons.Degraded, reasons.Waiting, reasons.Uninjected, reasons.Blocked, reasons.Event} {
		meanings, remedies := reasonTables(part)
		parts["status.md "+string(part)] = meanings
		if part != reasons.Event {
			parts["../troubleshooting.md "+string(part)] = remedies
		}
	}
	for part, want := range parts {
		page, name, _ := strings.Cut(part, " ")
		fixtures.CheckWritten(t, filepath.Join(module, "docs/reference", page), name, want, "go test ./docs -run Reference -update")
	}
}

// constant is a named text of the API, with its comment without its name.
type constant struct{ name, value, comment string }

func parse(t *testing.T, path string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(module, path), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func constants(t *testing.T, path string) (all []constant) {
	t.Helper()
	for _, declared := range parse(t, path).Decls {
		group, ok := declared.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		comment := ""
		for _, spec := range group.Specs {
			value := spec.(*ast.ValueSpec)
			if doc := value.Doc.Text(); doc != "" {
				comment = doc
			} else if !group.Lparen.IsValid() {
				comment = group.Doc.Text()
			}
			if len(value.Values) != 1 {
				continue
			}
			if literal, ok := value.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, _ := strconv.Unquote(literal.Value)
				all = append(all, constant{value.Names[0].Name, text, sentence(comment, value.Names[0].Name)})
			}
		}
	}
	return all
}

var constantName = regexp.MustCompile(`\b(Annotation|Label|Reason|Condition|Env)[A-Z]\w*`)

// sentence is a comment in one line, without the name that it begins with.
func sentence(comment, name string) string {
	text := strings.Join(strings.Fields(comment), " ")
	for _, of := range []string{name + " ", name + ": ", "on a SidecarSet ", "is ", "says that ", "says of "} {
		text = strings.TrimPrefix(text, of)
	}
	text = strings.ReplaceAll(text, ", and that ", ", and ")
	return strings.TrimSuffix(strings.ReplaceAll(text, "|", "\\|"), ".")
}

// between are the constants from one value to another, with the names of constants in comments
// replaced by their values.
func between(all []constant, from, to string) []constant {
	first := slices.IndexFunc(all, func(c constant) bool { return c.value == from })
	last := slices.IndexFunc(all, func(c constant) bool { return c.value == to })
	some := slices.Clone(all[first : last+1])
	for i, c := range some {
		some[i].comment = constantName.ReplaceAllStringFunc(c.comment, func(name string) string {
			for _, of := range all {
				if of.name == name {
					return "`" + of.value + "`"
				}
			}
			return name
		})
	}
	return some
}

func keyTable(all []constant, from, to string) string {
	rows := "| Name | Meaning |\n|---|---|\n"
	for _, c := range between(all, from, to) {
		if regexp.MustCompile(`^(Annotation|Label|Env|PodCondition)`).MatchString(c.name) {
			rows += fmt.Sprintf("| `%s` | %s |\n", c.value, c.comment)
		}
	}
	return rows
}

// reasonTables are the tables of a part of the status for the reference, and for the page for people on call.
func reasonTables(part reasons.Part) (meanings, remedies string) {
	meanings, remedies = "| Reason | Meaning |\n|---|---|\n", "| Reason | Meaning | Do |\n|---|---|---|\n"
	for _, r := range reasons.Of(part) {
		meanings += fmt.Sprintf("| `%s` | %s |\n", r.Name, r.Meaning)
		if r.Remedy != "" {
			remedies += fmt.Sprintf("| `%s` | %s | %s |\n", r.Name, r.Meaning, r.Remedy)
		}
	}
	return meanings, remedies
}

// Each reason of the API and of updates in place is in the table of reasons.
func TestEachReasonHasAMeaning(t *testing.T) {
	known := make(map[string]bool)
	for _, part := range []reasons.Part{reasons.Ready, reasons.Required, reasons.Progressing, reasons.Degraded, reasons.Waiting, reasons.Uninjected, reasons.Blocked, reasons.Event} {
		for _, r := range reasons.Of(part) {
			known[r.Name] = true
		}
	}
	for _, c := range constants(t, "apis/apps/v1beta1/keys.go") {
		if strings.HasPrefix(c.name, "Reason") && c.name != "ReasonAccepted" && !known[c.value] {
			t.Errorf("internal/reasons does not have %s", c.value)
		}
	}
	for _, c := range constants(t, "internal/inplace/method.go") {
		if _, found := reasons.Find(reasons.Blocked, c.value); !found {
			t.Errorf("internal/reasons does not have %s, by which a Pod is blocked", c.value)
		}
	}
}

const apiTypes = "apis/apps/v1beta1/sidecarset_types.go"

func fieldTable(t *testing.T) string {
	rows := "| Field | Meaning |\n|---|---|\n"
	ast.Inspect(parse(t, apiTypes), func(node ast.Node) bool {
		spec, ok := node.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "SidecarSetStatus" {
			return true
		}
		for _, field := range spec.Type.(*ast.StructType).Fields.List {
			name, _, _ := strings.Cut(strings.TrimPrefix(field.Tag.Value, "`json:\""), ",")
			name = strings.TrimRight(name, "\"`")
			comment, _, _ := strings.Cut(field.Doc.Text(), "\n+")
			rows += fmt.Sprintf("| `%s` | %s |\n", name, strings.TrimPrefix(sentence(comment, name), "are "))
		}
		return false
	})
	return rows
}

func columnTable(t *testing.T) string {
	rows := "| Column | Shows | |\n|---|---|---|\n"
	column := regexp.MustCompile(`printcolumn:name="([^"]+)".*description="([^"]+)"`)
	for line := range strings.Lines(read(t, apiTypes)) {
		if match := column.FindStringSubmatch(line); match != nil {
			wide := ""
			if strings.Contains(line, "priority=1") {
				wide = "with `-o wide`"
			}
			rows += fmt.Sprintf("| %s | %s | %s |\n", match[1], match[2], wide)
		}
	}
	return rows
}

// metricTable takes each name of a metric with the text that follows it: its help.
func metricTable(t *testing.T) string {
	help := map[string]string{}
	name := regexp.MustCompile(`"(sidecarset_[a-z_]+)",\s*(?:Help:\s*)?"((?:[^"\\]|\\.)+)"`)
	collect := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		path, _ = filepath.Rel(module, path)
		text := read(t, path)
		for _, match := range metric.FindAllStringSubmatch(text, -1) {
			help[match[1]] += ""
		}
		for _, match := range name.FindAllStringSubmatch(text, -1) {
			help[match[1]] = match[2]
		}
		return nil
	}
	for _, dir := range []string{"certs", "cmd/operator", "controllers", "internal", "webhooks"} {
		if err := filepath.WalkDir(filepath.Join(module, dir), collect); err != nil {
			t.Fatal(err)
		}
	}
	rows := "| Metric | Says |\n|---|---|\n"
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range help {
			if !yield(name) {
				return
			}
		}
	}) {
		if help[name] == "" {
			t.Errorf("the metric %s has no help text beside its name", name)
		}
		rows += fmt.Sprintf("| `%s` | %s |\n", name, strings.TrimSuffix(strings.ReplaceAll(help[name], `\"`, `"`), "."))
	}
	return rows
}

// limits are bounds that users can meet: where the constant is, and what it bounds.
var limits = []struct{ dir, name, unit, bounds string }{
	{"internal/validation", "maxSpecBytes", "bytes", "a `spec`, as JSON"},
	{"internal/validation", "maxNameLength", "characters", "the name of a SidecarSet"},
	{"internal/selectors", "MaxBytes", "bytes", "`selector` and `namespaceSelector` of a SidecarSet together"},
	{"internal/validation", "maxTerms", "", "labels, expressions and values of one selector; of all `weightPriority` together"},
	{"webhooks/sidecarsets", "maxElements", "", "elements of a list of objects in a SidecarSet"},
	{"webhooks/sidecarsets", "maxValues", "", "JSON values in an admission request for a SidecarSet"},
	{"internal/defaults", "MaxOperations", "", "fields of a SidecarSet that get a default"},
	{"internal/expr", "MaxLength", "characters", "an expression of a `resourcesPolicy`"},
	{"internal/expr", "MaxTargetLength", "characters", "a `targetContainersNameRegex`"},
	{"internal/expr", "maxTargetSize", "steps", "all of these in one SidecarSet; `a{1000}` has 1,000 steps"},
	{"internal/podwebhook", "MaxWebhooks", "", "Pod webhooks in one of the 16 objects `sidecarset-pods-*`; one for each different pair of selectors"},
	{"internal/podwebhook", "maxBytes", "bytes", "one of these objects"},
	{"internal/requester", "MaxNamespaces", "", "namespaces that the requester check asks about one by one; beyond it, all namespaces are asked about"},
	{"internal/review", "MaxElements", "", "containers, init containers, volumes or pull secrets of a Pod that is selected"},
	{"internal/inject", "maxBytes", "bytes", "fields of a Pod's containers from which sidecars are made (`transferEnv`, shared mounts, `resourcesPolicy`)"},
	{"internal/inject", "maxCopied", "bytes", "what all sidecars of a Pod may copy of these together"},
	{"internal/inject", "maxAnnotations", "bytes", "an annotation into which `patchPodMetadata` merges"},
	{"internal/inject", "maxContainerName", "characters", "a container name of a hot-upgrade pair"},
	{"internal/podstate", "maxValueBytes", "bytes", "an annotation of a Pod that the operator reads; longer ones are ignored"},
	{"internal/podstate", "maxEntries", "", "SidecarSets in such an annotation"},
	{"internal/podstate", "MaxSummaryBytes", "bytes", "what the leader keeps of a Pod; `sidecarset_uncounted_pods` counts Pods beyond it"},
	{"internal/rollout", "maxSpread", "", "values that `scatterStrategy` spreads"},
	{"internal/status", "maxNames", "", "names of Pods for each reason in the status"},
	{"internal/status", "maxRevisions", "", "revisions in the status"},
	{"webhooks/server", "MaxAdmissionBytes", "bytes", "an admission request"},
	{"webhooks/server", "MaxConversionBytes", "bytes", "a conversion request"},
}

func limitTable(t *testing.T) string {
	rows := "| At most | | Of |\n|---|---|---|\n"
	for _, limit := range limits {
		rows += fmt.Sprintf("| %s | %s | %s |\n", value(t, limit.dir, limit.name, limit.unit), limit.unit, limit.bounds)
	}
	return rows
}

// value evaluates a constant of a package, which is an expression of literals.
func value(t *testing.T, dir, name, unit string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(module, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^(?:const|var)?\s*` + name + `\s+=\s+([^/\n]+)`)
	for _, path := range paths {
		path, _ = filepath.Rel(module, path)
		if match := declared.FindStringSubmatch(read(t, path)); match != nil {
			result, err := types.Eval(token.NewFileSet(), nil, token.NoPos, strings.TrimSpace(match[1]))
			if err != nil {
				t.Fatalf("%s %s: %v", dir, name, err)
			}
			return readable(result.Value.String(), unit)
		}
	}
	t.Errorf("%s has no constant %s any more", dir, name)
	return ""
}

// readable has thousands apart.
func readable(number, unit string) string {
	n, err := strconv.Atoi(number)
	switch {
	case err != nil:
		return number
	case unit == "bytes" && n%(1<<20) == 0:
		return fmt.Sprintf("%d Mi", n>>20)
	case unit == "bytes" && n%(1<<10) == 0:
		return fmt.Sprintf("%d Ki", n>>10)
	}
	for i := len(number) - 3; i > 0; i -= 3 {
		number = number[:i] + "," + number[i:]
	}
	return number
}
