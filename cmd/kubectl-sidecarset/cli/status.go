package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/progress"
	"github.com/sidecarset/operator/internal/hub"
)

func (a *app) status() *cobra.Command {
	var output string
	var watch bool
	c := a.verb(&cobra.Command{
		Use:   "status [NAME]",
		Args:  arguments(0, 1),
		Short: "Show where the rollout of a SidecarSet is, and what keeps Pods from it",
		Long: `Show where the rollout of a SidecarSet is: its Pods by revision, the Pods that cannot be
updated or lack sidecars, why, and what to do. All of it is from the SidecarSet's status.
Without a name, there is a line for each SidecarSet; those that need a look come first.

With --watch, all of it is printed again after each change.`,
		Example: `  kubectl sidecarset status log-agent --watch`,
	}, func(ctx context.Context, c client.Client, name string, _ []string) error {
		switch {
		case watch && name == "":
			return errors.New("--watch follows one SidecarSet: name it")
		case watch:
			return a.watch(ctx, c, name)
		case name == "":
			return a.statusOfAll(ctx, c, output)
		}
		s, err := summaryOf(ctx, c, name)
		if err != nil {
			return err
		}
		if output != "" {
			return a.printAs(output, s)
		}
		fmt.Fprint(a.Out, a.picture(s))
		return nil
	})
	c.Flags().StringVarP(&output, "output", "o", "", "`format`: json or yaml")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "follow the rollout until interrupted")
	c.MarkFlagsMutuallyExclusive("output", "watch")
	return c
}

// statusOfAll lists the SidecarSets.
func (a *app) statusOfAll(ctx context.Context, c client.Client, output string) error {
	objects, err := sidecarSets(ctx, c)
	if err != nil {
		return err
	}
	all := []*progress.Summary{}
	for i := range objects {
		set, err := hub.Typed(objects[i].Object)
		if err != nil {
			return fmt.Errorf("reading SidecarSet %q: %w", objects[i].GetName(), err)
		}
		all = append(all, progress.Of(set))
	}
	if output != "" {
		return a.printAs(output, map[string]any{"sidecarSets": all})
	}
	if len(all) == 0 {
		fmt.Fprintln(a.ErrOut, "the cluster has no SidecarSets")
		return nil
	}
	return a.list(all)
}

// list prints a line for each SidecarSet.
func (a *app) list(all []*progress.Summary) error {
	slices.SortStableFunc(all, func(a, b *progress.Summary) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
	})
	table := tabwriter.NewWriter(a.Out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAME\tMATCHED\tUPDATED\tREADY\tNEW PODS\tROLLOUT\tTO DO")
	for _, s := range all {
		rollout := s.Rollout.Reason
		if s.Degraded != nil && s.Degraded.Reason != rollout && s.Degraded.Reason != appsv1beta1.ReasonBlocked {
			rollout += ", " + s.Degraded.Reason
		}
		do := ""
		if rank(s) == 0 {
			do = "kubectl sidecarset status " + s.Name
		}
		fmt.Fprintln(table, strings.TrimRight(fmt.Sprintf("%s\t%d\t%d\t%d\t%s\t%s\t%s", s.Name, s.MatchedPods, s.UpdatedPods, s.UpdatedReadyPods, s.NewPods.Reason, rollout, do), "\t"))
	}
	return table.Flush()
}

// rank is 0 for a SidecarSet that needs a look, 1 for one whose rollout continues, and 2 for others.
func rank(s *progress.Summary) int {
	_, _, problem := s.Outcome()
	switch {
	case problem != nil, s.Degraded != nil, s.NewPods.Status != "True" && s.NewPods.Reason != appsv1beta1.ReasonRevisionNotStable:
		return 0
	case s.Rollout.Reason == appsv1beta1.ReasonRollingOut, s.NewPods.Status != "True":
		return 1
	}
	return 2
}

// watch prints the state after each change.
func (a *app) watch(ctx context.Context, c client.Client, name string) error {
	last := ""
	err := a.follow(ctx, c, name, 0, func(s *progress.Summary) (bool, error) {
		if text := a.picture(s); text != last {
			fmt.Fprintf(a.Out, "%s %s", time.Now().Format(time.TimeOnly), text)
			last = text
		}
		return false, nil
	})
	if errors.Is(err, context.Canceled) { // by the user
		return nil
	}
	return err
}

// picture is the state of a SidecarSet in lines.
func (a *app) picture(s *progress.Summary) string {
	paint := a.painter()
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %d of %d Pods updated, %d of these ready\n", paint.bold("sidecarset/"+s.Name), s.UpdatedPods, s.MatchedPods, s.UpdatedReadyPods)
	line := func(label, text string, colour func(string) string) {
		fmt.Fprintf(&out, "  %s %s\n", colour(fmt.Sprintf("%-13s", label)), text)
	}
	none := func(text string) string { return text }
	if !s.Observed {
		line("stale", fmt.Sprintf("The leader has not observed generation %d yet; the rest is about an earlier one.", s.Generation), paint.yellow)
	}
	colour := paint.green
	switch {
	case s.NewPods.Reason == appsv1beta1.ReasonRevisionNotStable:
		colour = paint.yellow
	case s.NewPods.Status != metav1.ConditionTrue:
		colour = paint.red
	}
	line("new Pods", s.NewPods.Reason+": "+s.NewPods.Message, colour)
	if s.NewPods.Reason == appsv1beta1.ReasonRevisionNotStable {
		line("", "That is meant: "+appsv1beta1.AnnotationNewPods+" is "+appsv1beta1.StableNewPods+".", none)
	}
	colour = none
	switch {
	case s.Degraded != nil:
		colour = paint.red
	case s.Rollout.Reason == appsv1beta1.ReasonComplete:
		colour = paint.green
	}
	line("rollout", s.Rollout.Reason+": "+s.Rollout.Message, colour)
	if s.Degraded != nil && s.Degraded.Message != s.Rollout.Message && s.Degraded.Reason != appsv1beta1.ReasonBlocked {
		line("degraded", s.Degraded.Reason+": "+s.Degraded.Message, paint.red)
	}
	for _, r := range s.Revisions {
		text := fmt.Sprintf("%s: %d Pods, %d ready", cmp.Or(r.Name, "others"), r.Pods, r.ReadyPods)
		if r.Name != "" && r.Name == s.LatestRevision {
			text += ", current"
		}
		line("revision", text, none)
	}
	for _, groups := range []struct {
		label string
		of    []progress.Group
	}{{"not running", s.NotRunning}, {"blocked", s.Blocked}, {"not injected", s.Uninjected}} {
		for _, group := range groups.of {
			line(groups.label, fmt.Sprintf("%d %s: %s", group.Pods, group.Reason, group.Text()), paint.yellow)
		}
	}
	if s.ToDo != "" {
		line("to do", s.ToDo, paint.bold)
	}
	return out.String()
}
