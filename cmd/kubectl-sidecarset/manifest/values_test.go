package manifest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	yaml "go.yaml.in/yaml/v3"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	sigsyaml "sigs.k8s.io/yaml"
)

// kubectls is the value of a document as kubectl reads it.
func kubectls(text string) (value any, err error) {
	asJSON, err := sigsyaml.YAMLToJSONStrict([]byte(text))
	if err == nil {
		err = utiljson.Unmarshal(asJSON, &value)
	}
	return value, err
}

// scalars are texts that parsers of YAML disagree about.
var scalars = []string{
	"yes", "No", "on", "OFF", "y", "N", "true", "~", "null", "NULL", "=", "<<", "0", "-0", "007", "0o7", "0x1F", "0b11", "1_000", "+1", "-1", "1e3", "1.0", "1.", ".5", ".inf", "-.INF", ".nan",
	"+", "-", "--flag", ".", "..", "...", "9223372036854775808", "18446744073709551616", "0.1", "1e400", "100m", "128Mi", "50%", "2001-01-01", "2001-12-14t21:59:43.10-05:00", "12:30:45", "190:20:30",
	"a: b", "a #b", "# c", "- a", " lead", "trail ", "é\u2028x", "\u0085", "\u00a0", "\ufeff", "tab\t", "\tx", "two\nlines", "two\n\nlines\n", "\n", " \n", "a\r\nb", "%x", "@x", "`x", "!x", "&x", "*x", "{}", "[]", "?", "? x", ":", "::", "|", ">", "", "\x01", "\\", "\"", "'", "---", "--- x", "\U0001F600", "0x", "1:2", "e", "i", "-n", "-i", ".i", "NaN", "1n",
}

func FuzzValuesAreThoseOfKubectl(f *testing.F) {
	for _, text := range scalars {
		f.Add("a: " + text + "\n")
		f.Add(text + ": [1, " + text + "]\n")
	}
	f.Add("a: &x {b: 1}\nc: *x\nd: {<<: *x}\n? [a]\n: b\n")
	f.Add("a: !!str 5\nb: !!binary aGk=\nc: |\n  x\n\n  y\nd: >-\n  x\n  y\n# c\n")
	f.Add("a: 1\na: 2\n8080: x\non: true\n")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "\n---") || strings.HasPrefix(text, "---") || strings.Contains(text, "...") {
			return // several documents
		}
		_, got, err := readYAML(text)
		if err != nil {
			return // of a parser that is stricter, or both
		}
		want, err := kubectls(text)
		if err != nil {
			t.Fatalf("%q is %#v, kubectl refuses it: %v", text, got, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-kubectl +got):\n%s", text, diff)
		}
	})
}

// What kubectl reads of the manifests of this repository, the plugin reads.
func TestValuesAreThoseOfKubectl(t *testing.T) {
	documents := 0
	for _, root := range []string{"../../../config", "../../../internal/fixtures", "../../../hack/demo"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".yaml" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, d := range split(path, string(text)) {
				documents++
				_, got, err := readYAML(d.text)
				want, wantErr := kubectls(d.text)
				if err != nil || wantErr != nil {
					t.Errorf("%s: %v, %v", path, err, wantErr)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-kubectl +got):\n%s", path, diff)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if documents < 100 {
		t.Errorf("%d documents: the test is about little", documents)
	}
}

// A string that is put into a manifest is that string for kubectl, at any depth.
func FuzzTextsStayTexts(f *testing.F) {
	for _, text := range scalars {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?")
		root := &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{
			text("list"), {Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{text(s), text("next")}}, text("key " + s), text(s),
		}}}}
		written, err := encodeYAML(root, style{indent: 2, compact: true})
		if err != nil {
			t.Fatal(err)
		}
		got, err := kubectls(written)
		if diff := cmp.Diff(any(map[string]any{"list": []any{s, "next"}, "key " + s: s}), got); err != nil || diff != "" {
			t.Errorf("%q is written as %q: %v (-want +got):\n%s", s, written, err, diff)
		}
	})
}

// A document that is written again has the same meaning.
func FuzzWritingKeepsTheValue(f *testing.F) {
	for _, text := range scalars {
		f.Add("a: " + text + "\n\nb:\n- x\n\n- |+\n  y\n\n\n# c\n\nd: {e: " + text + "}\n")
	}
	f.Add("# head\n\na: # c\n\n  # d\n  b: &x [1]\n  # foot\n\n\n# e\nc: *x\nd:\n\n  - >-\n    x\n\n    y\n  - \"a\n\n    b\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		d := &Document{text: text, changed: true}
		if strings.Contains(text, "---") || strings.Contains(text, "...") || strings.ContainsAny(text, "!\r") || d.parse() != nil || d.root == nil {
			return // not one object
		}
		want, err := kubectls(text)
		if err != nil {
			return // kubectl refuses it
		}
		written, err := d.Text()
		if err != nil {
			t.Fatal(err)
		}
		got, err := kubectls(written)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q is written as %q: %v (-want +got):\n%s", text, written, err, diff)
		}
	})
}
