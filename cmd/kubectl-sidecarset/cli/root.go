// Package cli has the commands of the plugin. Each reads its flags, asks the packages that
// decide, and prints. It has no rule of its own about SidecarSets or Pods.
package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubeconfigs may name any of them
)

// Streams are where a command reads and writes.
type Streams = genericiooptions.IOStreams

// The exit codes.
const (
	exitDone    = 0
	exitFailed  = 1
	exitChanges = 2 // plan, diff, lint and doctor: there is something to look at
)

// exit ends a command with a code, after it has printed what it has to say.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// app is what all commands share.
type app struct {
	Streams
	version string
	config  *genericclioptions.ConfigFlags
	// operatorNamespace is where the operator runs and keeps revisions.
	operatorNamespace string
}

// Run runs the plugin and returns its exit code.
func Run(args []string, streams Streams, version string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{Streams: streams, version: version, config: genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag()}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	err := root.ExecuteContext(ctx)
	code, isCode := errors.AsType[exit](err)
	switch {
	case err == nil:
		return exitDone
	case isCode:
		return int(code)
	}
	fmt.Fprintln(streams.ErrOut, "error:", unreached(err))
	return exitFailed
}

// arguments wants at least and at most so many arguments; -1 means any number.
func arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return fmt.Errorf("wrong number of arguments: write %s", c.UseLine())
		}
		return nil
	}
}

// group completes a command that has nothing but other commands. Without this, cobra takes a name
// that it does not know for a call for help, and the exit code is 0.
func group(c *cobra.Command) *cobra.Command {
	c.Args = cobra.NoArgs
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// unreached is the text of an error. The text about a request without an answer names the API server and
// the remedy.
func unreached(err error) string {
	request, is := errors.AsType[*url.Error](err)
	if !is {
		return err.Error()
	}
	server := request.URL
	if at, err := url.Parse(server); err == nil {
		server = at.Host
	}
	before, _, _ := strings.Cut(err.Error(), request.Error())
	return fmt.Sprintf("%sthe API server %s cannot be asked: %v; --kubeconfig and --context name another cluster",
		strings.TrimSuffix(before, "failed to get server groups: "), server, request.Err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-sidecarset",
		Short: "See, explain, plan and try what SidecarSets do",
		Long: `See what SidecarSets would do to Pods, what they have done, and why.

Every answer comes from the engine of the operator's webhook. inject, diff, explain and lint
work without a cluster, too.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl sidecarset"},
	}
	kubectl := pflag.NewFlagSet("", pflag.ContinueOnError)
	a.config.AddFlags(kubectl)
	kubectl.VisitAll(func(f *pflag.Flag) {
		if f.Name == "server" {
			f.Shorthand = "" // -s is --sidecarsets
		}
		root.PersistentFlags().AddFlag(f)
	})
	root.PersistentFlags().StringVar(&a.operatorNamespace, "operator-namespace", "sidecarset-system", "`namespace` of the operator, which has the revisions of SidecarSets")
	root.AddCommand(a.inject(), a.diff(), a.explain(), a.versions(), a.completion(), a.plan(), a.status(), a.rollout(), a.set(), a.lint(), a.doctor(), a.migrate(), options())
	root.SetUsageTemplate(withoutGlobalFlags(root.UsageTemplate()))
	return root
}

// options is a command that lists the flags of all commands, as kubectl has it.
func options() *cobra.Command {
	c := &cobra.Command{
		Use:   "options",
		Short: "List the flags that all commands have",
		Args:  cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintf(c.OutOrStdout(), "These flags can be passed to any command:\n\n%s", c.Root().PersistentFlags().FlagUsages())
		},
	}
	return c
}

// withoutGlobalFlags is the template of the help without the flags that options lists.
func withoutGlobalFlags(template string) string {
	const local, global = "{{if .HasAvailableLocalFlags}}", "{{if .HasAvailableInheritedFlags}}"
	before, rest, _ := strings.Cut(template, global)
	_, after, _ := strings.Cut(rest, "{{end}}")
	before = strings.Replace(before, local, "{{if and .HasParent .HasAvailableLocalFlags}}", 1)
	return before + after + "{{if not .HasAvailableSubCommands}}\n{{end}}" + `Use "kubectl sidecarset options" for the flags that all commands have.
`
}
