package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/doctor"
)

func (a *app) doctor() *cobra.Command {
	var output string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look at an installation, and say what is wrong and what to do",
		Long: `Look at an installation of the operator: whether API servers reach it (Pods are tried under
dry-run), the CRD, webhooks, other injectors, replicas, the CA, the conditions of SidecarSets. Each
finding has a remedy and a page of the documentation. What could not be looked at is a line SKIP with
the reason. Nothing in the cluster is changed.

The exit code is 0 without errors, 2 if an error was found, and 1 if nothing could be looked at.`,
		Example: `  kubectl sidecarset doctor
  kubectl sidecarset doctor --wait=2m   # after an installation, in CI`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"table", "short", "json"}, output) {
				return fmt.Errorf("--output=%s: use table, short or json", output)
			}
			results, err := a.examine(c.Context(), wait)
			if err != nil {
				return err
			}
			if output == "json" {
				err = a.printAs(output, results)
			} else {
				a.printResults(results, output == "table")
			}
			if err == nil && doctor.Count(results, doctor.Error) > 0 {
				return exit(exitChanges)
			}
			return err
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "`format`: table, short (one line for each finding) or json")
	c.Flags().DurationVar(&wait, "wait", 0, "look again until there is no error, for this `time` at most")
	c.Flags().Lookup("wait").NoOptDefVal = "5m"
	return c
}

// examine runs the checks, again and again until they find no error or the time is over.
func (a *app) examine(ctx context.Context, wait time.Duration) ([]doctor.Result, error) {
	c, _, err := a.client()
	if err != nil {
		return nil, err
	}
	cluster := doctor.Cluster{Client: c, Namespace: a.operatorNamespace, Read: func(ctx context.Context, parts *clusterview.Parts) error {
		parts.Namespaces = map[string]labels.Set{}
		return errors.Join(a.namespaces(ctx, c, parts.Namespaces), a.readCluster(ctx, parts))
	}}
	for end := time.Now().Add(wait); ; {
		results, err := doctor.Run(ctx, cluster, func(what string) { fmt.Fprintf(a.ErrOut, "looking at %s\n", what) })
		if err != nil || doctor.Count(results, doctor.Error) == 0 || time.Now().After(end) {
			return results, err
		}
		fmt.Fprintf(a.ErrOut, "%s, looking again\n", sumOf(results))
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
		}
	}
}

func (a *app) printResults(results []doctor.Result, long bool) {
	paint := a.painter()
	labels := map[doctor.Level]string{doctor.Error: paint.red("ERROR  "), doctor.Warning: paint.yellow("WARNING")}
	for _, level := range []doctor.Level{doctor.Error, doctor.Warning} {
		for _, r := range results {
			for _, f := range r.Findings {
				if f.Level != level {
					continue
				}
				fmt.Fprintf(a.Out, "%s  %s: %s: %s\n", labels[level], r.Check, f.Object, oneLine(f.Problem))
				if long {
					fmt.Fprintf(a.Out, "         do:  %s\n         see: %s\n", f.Remedy, f.Page)
				}
			}
		}
	}
	var fine []string
	for _, r := range results {
		for _, reason := range r.Skipped {
			fmt.Fprintf(a.Out, "%s  %s: %s\n", paint.faint("SKIP   "), r.Check, oneLine(reason))
		}
		if len(r.Findings) == 0 && len(r.Skipped) == 0 {
			fine = append(fine, r.Check)
		}
	}
	if long {
		fmt.Fprintf(a.Out, "%s  %s\n%s\n", paint.green("ok     "), strings.Join(fine, ", "), sumOf(results))
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// sumOf sums results up.
func sumOf(results []doctor.Result) string {
	skipped := 0
	for _, r := range results {
		skipped += len(r.Skipped)
	}
	return fmt.Sprintf("errors: %d, warnings: %d, skipped: %d", doctor.Count(results, doctor.Error), doctor.Count(results, doctor.Warning), skipped)
}
