// Package stages holds how fake nodes and the Pods on them behave: kwok's
// stages, as data. It knows kwok's file format only as far as putting shared
// fragments where a stage asks for them.
package stages

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.yaml include/*.tmpl
var files embed.FS

// includeMark begins a line that a fragment replaces. It is a comment in YAML,
// in jq and in the text that a template renders, so that a stage file is valid
// without the fragments as well.
const includeMark = "# include: "

// Config returns all stages as one file for kwok --config.
func Config() (string, error) {
	var out strings.Builder
	for _, name := range []string{"kwok.yaml", "node.yaml", "pod.yaml"} {
		text, err := files.ReadFile(name)
		if err != nil {
			return "", err
		}
		expanded, err := expand(string(text))
		if err != nil {
			return "", fmt.Errorf("expanding stages in %s: %w", name, err)
		}
		out.WriteString("---\n" + expanded)
	}
	return out.String(), nil
}

// expand replaces every include line by the fragment that it names, indented
// as the line was.
func expand(text string) (string, error) {
	var out strings.Builder
	for line := range strings.Lines(text) {
		indent, name, found := strings.Cut(strings.TrimRight(line, "\n"), includeMark)
		if !found || strings.TrimSpace(indent) != "" {
			out.WriteString(line)
			continue
		}
		fragment, err := files.ReadFile("include/" + name + ".tmpl")
		if err != nil {
			return "", fmt.Errorf("no fragment %q: %w", name, err)
		}
		for line := range strings.Lines(string(fragment)) {
			out.WriteString(indent + line)
		}
	}
	return out.String(), nil
}
