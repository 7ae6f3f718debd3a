package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/transcript"
	"github.com/sidecarset/operator/internal/fixtures"
)

// What the documents show without a cluster is what the plugin prints. Package clustertest checks
// the rest.
func TestDocumentsShowWhatThePluginPrints(t *testing.T) {
	t.Chdir("../../..")
	t.Setenv("KUBECONFIG", os.DevNull)
	t.Setenv("SOURCE_DATE_EPOCH", "1767225600")
	update := updating()
	for _, path := range []string{"docs/plugin.md", "docs/first-sidecarset.md"} {
		if transcript.Check(t, path, "", update, offline) == 0 {
			t.Errorf("%s shows no command that needs no cluster", path)
		}
	}
}

func offline(args []string) (output string, ran bool) {
	if args[0] != "sidecarset" {
		return "", false
	}
	var out, errs bytes.Buffer
	Run(args[1:], Streams{Out: &out, ErrOut: &errs}, "v1.0.0")
	return out.String() + errs.String(), true
}

// The page of all commands is what --help says of each, without its details and examples.
func TestCommandsAreInTheReference(t *testing.T) {
	var page strings.Builder
	write := func(heading, short string, flags *pflag.FlagSet) {
		fmt.Fprintf(&page, "\n## %s\n\n%s.\n\n", heading, short)
		lines := page.Len()
		flags.VisitAll(func(f *pflag.Flag) {
			value, usage := pflag.UnquoteUsage(f)
			name := "--" + f.Name
			if value != "" {
				name += "=" + strings.ToUpper(value)
			}
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + "`, `" + name
			}
			switch f.DefValue {
			case "", "false", "0", "0s", "[]":
			default:
				usage += " (default `" + strings.Trim(f.DefValue, "[]") + "`)"
			}
			if f.Name != "help" && !f.Hidden {
				fmt.Fprintf(&page, "* `%s`: %s\n", name, usage)
			}
		})
		if page.Len() == lines { // no flags
			text := strings.TrimSuffix(page.String(), "\n")
			page.Reset()
			page.WriteString(text)
		}
	}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.HasParent() && !c.HasSubCommands() {
			write("`"+strings.TrimSuffix(c.UseLine(), " [flags]")+"`", c.Short, c.LocalFlags())
		}
	}
	root := (&app{config: genericclioptions.NewConfigFlags(true)}).root()
	walk(root)
	ours := pflag.NewFlagSet("", pflag.ContinueOnError)
	ours.AddFlag(root.PersistentFlags().Lookup("operator-namespace"))
	write("All commands", "All commands also have the flags of kubectl itself, such as `--context` and `--namespace`: `kubectl sidecarset options` lists them", ours)

	fixtures.CheckWritten(t, "../../../docs/reference/cli.md", "commands", page.String()+"\n", "cd cmd/kubectl-sidecarset && go test ./cli -run Reference -update")
}

var (
	named      = regexp.MustCompile("kubectl sidecarset ([^`|&>#)\n]+)")
	namedAlone = regexp.MustCompile("`(--?[a-z][a-z-]*)[`=]")
)

// Commands and flags that the documents name exist.
func TestNamedCommandsExist(t *testing.T) {
	root := (&app{config: genericclioptions.NewConfigFlags(true)}).root()
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../../../README.md", "../../../docs/examples/k9s/plugins.yaml") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range named.FindAllStringSubmatch(string(text), -1) {
			command, args, err := root.Find(strings.Fields(found[1]))
			if err != nil || command == root {
				t.Errorf("%s names %q, which is no command: %v", page, found[0], err)
				continue
			}
			for _, arg := range args {
				if arg == "--" {
					break
				}
				if strings.HasPrefix(arg, "-") && !hasFlag(command, arg) {
					t.Errorf("%s names %q; there is no flag %s", page, found[0], arg)
				}
			}
		}
		if filepath.Base(page) != "plugin.md" {
			continue // flags of the operator
		}
		for _, found := range namedAlone.FindAllStringSubmatch(string(text), -1) {
			if !anyHasFlag(root, found[1]) {
				t.Errorf("%s names the flag %s, which no command has", page, found[1])
			}
		}
	}
}

func hasFlag(command *cobra.Command, arg string) bool {
	command.InitDefaultHelpFlag()
	name, _, _ := strings.Cut(arg, "=")
	if long, isLong := strings.CutPrefix(name, "--"); isLong {
		return command.Flag(long) != nil
	}
	return name == "-" || command.Flags().ShorthandLookup(name[1:2]) != nil || command.InheritedFlags().ShorthandLookup(name[1:2]) != nil
}

func anyHasFlag(command *cobra.Command, arg string) bool {
	if hasFlag(command, arg) {
		return true
	}
	for _, sub := range command.Commands() {
		if anyHasFlag(sub, arg) {
			return true
		}
	}
	return false
}
