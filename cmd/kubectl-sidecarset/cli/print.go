package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// printAs prints a value as json or yaml.
func (a *app) printAs(format string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	switch {
	case err != nil:
		return err
	case format == "yaml":
		text, err = yaml.JSONToYAML(text)
	case format != "json":
		return fmt.Errorf("--output is %q; it must be json or yaml", format)
	}
	fmt.Fprintln(a.Out, strings.TrimSpace(string(text)))
	return err
}
