package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/lint"
	"github.com/sidecarset/operator/internal/validation"
)

func (a *app) lint() *cobra.Command {
	var flags filesFlags
	var output, failOn string
	c := &cobra.Command{
		Use:   "lint -f FILES",
		Short: "Check SidecarSets in files",
		Long: `Check SidecarSets in files, and show the place of each problem.

An error is what the cluster refuses, a warning is what it warns about. Conflicts are those
among the SidecarSets of the files. "Unchecked" is a rule that needs what the files lack.

lint asks no cluster, so it checks what is special to SidecarSets. What Kubernetes says of
containers, volumes and pull secrets, each API server checks for its own version:
kubectl apply --dry-run=server asks yours.

The exit code is 0 if no finding is as severe as --fail-on, 2 if one is, and 1 if the files
cannot be read.`,
		Example: `  kubectl sidecarset lint -f sidecarsets/ --fail-on=warning
  kubectl sidecarset lint -f sidecarsets/ -o github`,
		Args: arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			show, ok := map[string]func([]lint.Finding) error{"text": a.printFindings, "json": a.printFindingsJSON, "github": a.printAnnotations}[output]
			if !ok {
				return fmt.Errorf("--output is %q; use text, json or github", output)
			}
			if failOn != string(lint.Error) && failOn != string(lint.Warning) {
				return fmt.Errorf("--fail-on is %q; use error or warning", failOn)
			}
			input, unread, err := flags.lintInput(a)
			if err != nil {
				return errors.Join(err, unread)
			}
			findings := lint.Run(input)
			if err := show(findings); err != nil {
				return err
			}
			fmt.Fprintln(a.ErrOut, summary(len(input.SidecarSets), findings))
			if unread != nil {
				return unread
			}
			if countOf(findings, lint.Error) > 0 || failOn == string(lint.Warning) && countOf(findings, lint.Warning) > 0 {
				return exit(exitChanges)
			}
			return nil
		},
	}
	flags.addFiles(c, "SidecarSets, and with what they refer to: the base of a canary, ControllerRevisions, the whitelist")
	c.Flags().StringVarP(&output, "output", "o", "text", "`format`: text, json, or github for annotations of a pull request")
	c.Flags().StringVar(&failOn, "fail-on", "error", "least `severity` with which the exit code is 2: error or warning")
	return c
}

// lintInput reads what lint looks at. unread is about files that cannot be read, next to others.
func (f *filesFlags) lintInput(a *app) (in lint.Input, unread, err error) {
	in = lint.Input{ExcludedNamespaces: append([]string{a.operatorNamespace}, f.excluded...)}
	files, unread := f.read(a)
	if len(files) == 0 && unread != nil {
		return in, nil, unread
	}
	parts := clusterview.Parts{Namespaces: map[string]labels.Set{}}
	if err := addParts(&parts, files, true); err != nil {
		return in, unread, err
	}
	in.Revisions = parts.Revisions
	for _, o := range objectsOf(files) {
		switch {
		case isSidecarSet(o):
			in.SidecarSets = append(in.SidecarSets, o)
		case o.APIVersion == "v1" && o.Kind == "ConfigMap" && o.Name == validation.WhitelistConfigMap && o.Namespace == a.operatorNamespace:
			var config corev1.ConfigMap
			if err := decode(o, &config); err != nil {
				return in, unread, err
			}
			in.Whitelist = &validation.Whitelist{Namespace: o.Namespace, Content: config.Data[validation.WhitelistKey]}
		}
	}
	if len(in.SidecarSets) == 0 {
		return in, unread, errors.New("no SidecarSet is in the files of --filename")
	}
	return in, unread, nil
}

// printFindings prints a line for each finding, in the form that editors know.
func (a *app) printFindings(findings []lint.Finding) error {
	paint := a.painter()
	colours := map[lint.Severity]func(string) string{lint.Error: paint.red, lint.Warning: paint.yellow, lint.Unchecked: paint.faint}
	for _, f := range findings {
		fmt.Fprintf(a.Out, "%s:%d:%d: %s: %s\n", f.File, f.Line, f.Column, colours[f.Severity](string(f.Severity)), describe(f))
	}
	return nil
}

func (a *app) printFindingsJSON(findings []lint.Finding) error {
	encoder := json.NewEncoder(a.Out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(findings)
}

// printAnnotations prints commands of GitHub's workflows, which show them next to the lines.
func (a *app) printAnnotations(findings []lint.Finding) error {
	commands := map[lint.Severity]string{lint.Error: "error", lint.Warning: "warning", lint.Unchecked: "notice"}
	message := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, f := range findings {
		fmt.Fprintf(a.Out, "::%s file=%s,line=%d,col=%d::%s\n", commands[f.Severity], property.Replace(f.File), f.Line, f.Column, message.Replace(describe(f)))
	}
	return nil
}

func describe(f lint.Finding) string {
	text := "SidecarSet " + f.SidecarSet + ": "
	if f.Field != "" {
		text += f.Field + ": "
	}
	return text + f.Message
}

func countOf(findings []lint.Finding, severity lint.Severity) (n int) {
	for _, f := range findings {
		if f.Severity == severity {
			n++
		}
	}
	return n
}

func summary(sets int, findings []lint.Finding) string {
	return fmt.Sprintf("SidecarSets: %d, errors: %d, warnings: %d, unchecked: %d\n"+
		"What Kubernetes says of containers, volumes and pull secrets is not checked; kubectl apply --dry-run=server asks the API server.",
		sets, countOf(findings, lint.Error), countOf(findings, lint.Warning), countOf(findings, lint.Unchecked))
}
