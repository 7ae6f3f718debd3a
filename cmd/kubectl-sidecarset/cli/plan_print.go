package cli

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/forecast"
)

// printPlan prints one plan for people.
func (a *app) printPlan(p *sidecarSetPlan) {
	paint := a.painter()
	title := map[string]string{"create": "will be created", "update": "will change", "none": "nothing changes"}[p.Action]
	fmt.Fprintln(a.Out, paint.bold("SidecarSet "+p.Name+": "+title))
	a.printUnified(p.Diff)
	a.printList("Warnings", p.Warnings)
	if p.Forecast == nil {
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
		fmt.Fprintf(table, "  %d\t%s\t%s\n", g.Pods, ways[g.Fate], names)
	}
	if p.Current == 0 && len(p.Pods) == 0 {
		fmt.Fprintln(table, "  none that it concerns")
	} else if p.Current > 0 {
		fmt.Fprintf(table, "  %d\tcarry the content already\n", p.Current)
	}
	_ = table.Flush()
	if r := p.Rollout; len(r.Batches) > 0 {
		if r.Kept > 0 {
			fmt.Fprintf(a.Out, "%s %d of these Pods stay as they are\n", paint.bold("Partition:"), r.Kept)
		}
		fmt.Fprintf(a.Out, "%s %s; about %s if each Pod is back after %d s and min-ready-seconds is %d\n", paint.bold("Rollout:"),
			batchesText(r.Batches), duration.HumanDuration(time.Duration(r.Seconds)*time.Second), r.PodBackSeconds, r.MinReadySeconds)
	}
	if p.Requests != nil {
		fmt.Fprintln(a.Out, paint.bold("Requests:"))
		a.printAmount(p.Requests.InPlace, "in place")
		a.printAmount(p.Requests.Recreated, "once they are recreated")
		for i, n := range p.Requests.Nodes {
			if i == 3 {
				fmt.Fprintf(a.Out, "  %d more nodes; -o json shows them\n", len(p.Requests.Nodes)-i)
				break
			}
			a.printAmount(n.Amount, "on node "+n.Node)
		}
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

// ways are the fates of Pods in words.
var ways = map[forecast.Fate]string{
	forecast.InPlace: "in place", forecast.Resize: "resized in place", forecast.HotUpgrade: "hot upgrade",
	forecast.Recreate: "need recreation", forecast.Blocked: "blocked", forecast.Kept: "kept as they are",
	forecast.Deselected: "fall out of selection", forecast.Selected: "come into selection", forecast.Uninjected: "lack the sidecars",
}

// batchesText says how many Pods are taken at a time, such as "1 Pod, then 5 times 2 Pods".
func batchesText(batches []forecast.Batch) string {
	var texts []string
	for i := 0; i < len(batches); {
		size, same := batches[i].Pods, 1
		for i+same < len(batches) && batches[i+same].Pods == size {
			same++
		}
		if i += same; same > 3 {
			texts = append(texts, fmt.Sprintf("%d times %s", same, podsText(size)))
		} else {
			texts = append(texts, slices.Repeat([]string{podsText(size)}, same)...)
		}
	}
	return strings.Join(texts, ", then ")
}

func podsText(n int) string {
	if n == 1 {
		return "1 Pod"
	}
	return fmt.Sprintf("%d Pods", n)
}

func (a *app) printAmount(of forecast.Amount, what string) {
	signed := func(q resource.Quantity) string {
		if q.Sign() < 0 {
			return q.String()
		}
		return "+" + q.String()
	}
	if !of.Zero() {
		fmt.Fprintf(a.Out, "  %s CPU, %s memory over %s, %s\n", signed(of.CPU), signed(of.Memory), podsText(of.Pods), what)
	}
}
