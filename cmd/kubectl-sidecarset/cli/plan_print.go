package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/outcome"
)

// printPlan prints one plan for people.
func (a *app) printPlan(p *sidecarSetPlan) {
	paint := a.painter()
	title := map[string]string{"create": "will be created", "update": "will change", "none": "nothing changes"}[p.Action]
	fmt.Fprintln(a.Out, paint.bold("SidecarSet "+p.Name+": "+title))
	a.printUnified(p.Diff)
	a.printList("Warnings", p.Warnings)
	var uninjected []string
	for _, m := range p.Missing {
		uninjected = append(uninjected, m.String())
	}
	a.printList("Missing", uninjected)
	if p.Plan == nil {
		return
	}
	fmt.Fprintln(a.Out, paint.bold("Running Pods:"))
	table := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	for _, g := range p.Pods {
		why := g.Message
		if g.Reason != "" {
			why = strings.TrimSuffix(g.Reason+": "+why, ": ")
		}
		names := strings.Join(g.First, ", ")
		if g.Pods > len(g.First) {
			names += ", ..."
		}
		if why != "" {
			names += "\t" + why
		}
		fmt.Fprintf(table, "  %d\t%s\t%s\n", g.Pods, ways[g.Outcome], names)
	}
	if p.Current == 0 && len(p.Pods) == 0 {
		fmt.Fprintln(table, "  none that it concerns")
	} else if p.Current > 0 {
		fmt.Fprintf(table, "  %d\thave the revision already\n", p.Current)
	}
	_ = table.Flush()
	if p.Partition > 0 {
		fmt.Fprintf(a.Out, "%s %d of these Pods stay as they are\n", paint.bold("Partition:"), p.Partition)
	}
	if p.NewPods != "" {
		fmt.Fprintln(a.Out, paint.bold("New Pods:"), p.NewPods)
	}
	var conflicts []string
	for _, g := range p.Refused {
		conflicts = append(conflicts, fmt.Sprintf("new Pods in place of %s (%s) are refused: %s", podsText(g.Pods), strings.Join(g.First, ", "), g.Message))
	}
	a.printList("Conflicts", conflicts)
}

func (a *app) printList(title string, lines []string) {
	for i, line := range lines {
		if i == 0 {
			fmt.Fprintln(a.Out, a.painter().bold(title+":"))
		}
		fmt.Fprintln(a.Out, "  "+a.painter().yellow(line))
	}
}

// ways are the outcomes of Pods in words.
var ways = map[outcome.Outcome]string{
	outcome.InPlace: "in place", outcome.Resize: "resized in place", outcome.HotUpgrade: "hot upgrade",
	outcome.Recreate: "need recreation", outcome.Blocked: "blocked", outcome.Kept: "kept as they are",
	outcome.Deselected: "fall out of selection", outcome.Selected: "come into selection", outcome.Uninjected: "lack the sidecars",
}

func podsText(n int) string {
	if n == 1 {
		return "1 Pod"
	}
	return fmt.Sprintf("%d Pods", n)
}
