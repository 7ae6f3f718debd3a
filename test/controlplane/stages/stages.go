// Package stages describes how fake nodes and their Pods behave: it has kwok's stages as data.
// All that it knows of kwok's file format is how to insert shared fragments into a stage.
package stages

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.yaml include/*.tmpl
var files embed.FS

// includeMark begins a line that a fragment replaces. It is a comment in YAML, in jq and in the
// output of a template, so a stage file is also valid without the fragments.
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

// expand replaces every include line by the fragment that it names, with the indent of the line.
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
