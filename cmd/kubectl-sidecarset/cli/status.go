package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
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

With --watch, the picture is drawn again after each change. "done in about" is an estimate from
the Pods that were updated since the watch began.`,
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
		fmt.Fprint(a.Out, a.draw(picture(s, "")))
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

// rank is 0 for a SidecarSet that needs a look, 1 for one whose rollout goes on, and 2 for others.
func rank(s *progress.Summary) int {
	_, _, problem := s.Outcome()
	switch {
	case problem != nil, s.Degraded != nil, s.NewPods.Status != "True":
		return 0
	case s.Rollout.Reason == appsv1beta1.ReasonRollingOut:
		return 1
	}
	return 2
}

// watch shows a rollout while it goes on: on a terminal in place, elsewhere after each change.
func (a *app) watch(ctx context.Context, c client.Client, name string) error {
	var pace progress.Pace
	var last *progress.Summary
	drawn := 0
	err := a.follow(ctx, c, name, 0, func(s *progress.Summary) (bool, error) {
		now, height := time.Now(), a.height()
		tree := picture(s, pace.Left(s, now))
		switch {
		case height > 1:
			text := a.draw(tree)
			if lines := strings.SplitAfterN(text, "\n", height); len(lines) == height { // the cursor cannot go above the screen
				text = strings.Join(lines[:height-1], "")
			}
			up := ""
			if drawn > 0 {
				up = fmt.Sprintf("\x1b[%dA", drawn)
			}
			fmt.Fprint(a.Out, up+"\x1b[J\x1b[?7l"+text+"\x1b[?7h") // without line breaks by the terminal
			drawn = strings.Count(text, "\n")
		case !reflect.DeepEqual(s, last): // otherwise only the estimate can differ
			fmt.Fprintf(a.Out, "%s %s", now.Format(time.TimeOnly), a.draw(tree))
			last = s
		}
		return false, nil
	})
	if errors.Is(err, context.Canceled) { // by the user
		return nil
	}
	return err
}

// barWidth is how many cells the bar of a revision has that all matched Pods carry.
const barWidth = 24

// bar shows of all Pods those that are ready, and those that are not.
func bar(ready, pods, all int32) string {
	if all <= 0 {
		return ""
	}
	cells := func(n int32) int { return int((min(n, all)*barWidth + all - 1) / all) }
	return strings.Repeat("█", cells(ready)) + strings.Repeat("▒", cells(pods)-cells(ready)) + strings.Repeat("░", barWidth-cells(pods))
}

// picture is the state of a SidecarSet as a tree.
func picture(s *progress.Summary, estimate string) *node {
	tree := &node{label: "sidecarset/" + s.Name, colour: painter.bold}
	tree.text = fmt.Sprintf("%d of %d Pods updated, %d of these ready", s.UpdatedPods, s.MatchedPods, s.UpdatedReadyPods)
	if estimate != "" {
		tree.text += "; done in about " + estimate
	}
	if !s.Observed {
		tree.add("stale", fmt.Sprintf("The leader has not observed generation %d yet; the rest is about an earlier one.", s.Generation), painter.yellow)
	}
	colour := painter.green
	if s.NewPods.Status != "True" {
		colour = painter.red
	}
	tree.add("new Pods", s.NewPods.Reason+": "+s.NewPods.Message, colour)
	colour = nil
	switch {
	case s.Degraded != nil:
		colour = painter.red
	case s.Rollout.Reason == appsv1beta1.ReasonComplete:
		colour = painter.green
	}
	tree.add("rollout", s.Rollout.Reason+": "+s.Rollout.Message, colour)
	if s.Degraded != nil && s.Degraded.Message != s.Rollout.Message && s.Degraded.Reason != appsv1beta1.ReasonBlocked {
		tree.add("degraded", s.Degraded.Reason+": "+s.Degraded.Message, painter.red)
	}
	if n := s.UpdatedPods - s.UpdatedReadyPods; n > 0 && s.Rollout.Reason == appsv1beta1.ReasonRollingOut {
		tree.add("batch", fmt.Sprintf("updated and not ready: %d (maxUnavailable is %s)", n, s.MaxUnavailable), nil)
	}
	if len(s.Revisions) > 0 {
		revisions := tree.add("revisions", "", nil)
		for _, r := range s.Revisions {
			text, colour := fmt.Sprintf("%s %d Pods, %d ready", bar(r.ReadyPods, r.Pods, s.MatchedPods), r.Pods, r.ReadyPods), painter.green
			if r.Name == "" || r.Name != s.LatestRevision {
				colour = nil
			} else {
				text += ", current"
			}
			revisions.add(cmp.Or(r.Name, "others"), text, colour)
		}
	}
	addGroups(tree, "sidecars not running", s.NotRunning)
	addGroups(tree, "blocked", s.Blocked)
	addGroups(tree, "not injected", s.Uninjected)
	if s.ToDo != "" {
		tree.add("to do", s.ToDo, painter.bold)
	}
	return tree
}

func addGroups(tree *node, label string, groups []progress.Group) {
	if len(groups) == 0 {
		return
	}
	parent := tree.add(label, "", painter.yellow)
	for _, group := range groups {
		parent.add(fmt.Sprintf("%d %s", group.Pods, group.Reason), group.Text(), nil)
	}
}
