// Command report measures one Pod admission with the operator's handler and with the comparator,
// in interleaved rounds, and prints the ratios beside the targets. It measures first in one
// process, from bytes to bytes, and then over HTTPS from one process to others. Times depend on
// the machine and its load. Use only the ratios, allocations and bytes.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/test/bench"
)

func main() {
	rounds := flag.Int("rounds", 11, "rounds in which all cases take their turn")
	budget := flag.Duration("budget", 20*time.Millisecond, "CPU time for one case in one round")
	window := flag.Duration("window", 700*time.Millisecond, "how long one server is sent requests over HTTPS in one round")
	site := flag.String("serve", "", "be a server of the comparison over HTTPS, until stdin ends; not meant for people")
	flag.Parse()
	logf.SetLogger(logr.Discard())

	var err error
	if *site != "" {
		err = bench.Serve(context.Background(), bench.Site(*site), os.Stdin, os.Stdout)
	} else {
		err = report(context.Background(), *rounds, *budget, *window)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func report(ctx context.Context, rounds int, budget, window time.Duration) error {
	compiled, err := os.Executable()
	if err != nil {
		return err
	}
	results := bench.Compare(rounds, budget)
	printTable(os.Stdout, results)
	printTargets(os.Stdout, results, bench.StoreChange(1000, rounds))

	https, err := bench.CompareHTTPS(ctx, rounds, window, func(site bench.Site) *exec.Cmd {
		command := exec.CommandContext(ctx, compiled, "-serve="+string(site))
		command.Stderr = os.Stderr
		return command
	})
	if err != nil {
		return fmt.Errorf("comparing over HTTPS: %w", err)
	}
	printHTTPS(os.Stdout, https)
	return nil
}

func printTable(w io.Writer, r bench.Results) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "Pod\tcase\tSidecarSets\tcomparator CPU\tallocs\tbytes\tours CPU\tallocs\tbytes\tCPU 1/\tallocs 1/\tbytes 1/\t")
	for _, c := range r.Cases {
		theirs, ours := r.Comparator[c], r.Ours[c]
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%.0f\t%.0f\t%s\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t\n", c.Size, c.Kind, c.Count,
			micros(theirs.CPU()), theirs.Allocs, theirs.Bytes, micros(ours.CPU()), ours.Allocs, ours.Bytes,
			theirs.CPURatio(ours), theirs.Allocs/ours.Allocs, theirs.Bytes/ours.Bytes)
	}
	_ = table.Flush() // an error would come from w, which is the terminal
	fmt.Fprintln(w)
}

func printTargets(w io.Writer, r bench.Results, change time.Duration) {
	small, big := bench.Small.Name, bench.Big.Name
	match := bench.Case{Size: small, Kind: bench.Matched, Count: 100}
	bigMatch := bench.Case{Size: big, Kind: bench.Matched, Count: 100}
	none := bench.Case{Size: small, Kind: bench.None, Count: 100}
	bigNone := bench.Case{Size: big, Kind: bench.None, Count: 100}
	repeated := bench.Case{Size: small, Kind: bench.Repeated, Count: 100}

	theirs, ours := r.Comparator, r.Ours
	atLeast := func(name, what string, got, want float64) { verdict(w, name, what, got, want, got >= want, ">=") }
	atMost := func(name, what string, got, want float64) { verdict(w, name, what, got, want, got <= want, "<=") }

	atLeast("P1", "matched, 9 KB, 100 SidecarSets: CPU, times less than the comparator", theirs[match].CPURatio(ours[match]), 30)
	atLeast("P1", "the same: bytes", theirs[match].Bytes/ours[match].Bytes, 40)
	atLeast("P1", "the same: allocations", theirs[match].Allocs/ours[match].Allocs, 30)
	atMost("P1b", "our own result again: CPU, times a match", ours[repeated].CPURatio(ours[match]), 1.2)
	atLeast("P2", "matched, 60 KB: CPU", theirs[bigMatch].CPURatio(ours[bigMatch]), 30)
	atLeast("P3", "none matched, 9 KB: CPU", theirs[none].CPURatio(ours[none]), 15)
	atMost("P3", "none matched: the 60 KB Pod, times the 9 KB Pod", ours[bigNone].CPURatio(ours[none]), 1.5)
	for _, kind := range bench.Kinds {
		one, thousand, most := bench.Case{Size: small, Kind: kind, Count: 1}, bench.Case{Size: small, Kind: kind, Count: 1000}, bench.Case{Size: small, Kind: kind, Count: 10_000}
		atMost("P4", fmt.Sprintf("%s, 9 KB: 1,000 SidecarSets, times one (the bound of now)", kind), ours[thousand].CPURatio(ours[one]), 1.2)
		atMost("P4", fmt.Sprintf("%s, 9 KB: 10,000 SidecarSets, times one", kind), ours[most].CPURatio(ours[one]), 1.1)
	}
	atMost("P8", "one of 1,000 SidecarSets changes: ms of CPU until visible", change.Seconds()*1000, 2)
}

func printHTTPS(w io.Writer, r bench.HTTPSResults) {
	fmt.Fprintf(w, "\nOver HTTPS: HTTP/1.1, TLS 1.3, %d requests in flight on kept connections; client and server are two processes with one processor each.\n", bench.InFlight)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "Pod\tcase\tanswer\tserver\tCPU per request\trequests/s\tCPU, times static\trequests/s, times comparator\t")
	for _, c := range bench.HTTPSCases {
		for _, site := range bench.Sites {
			fmt.Fprintf(table, "%s\t%s\t%d B\t%s\t%s\t%.0f\t%.2f\t%.2f\t\n", c.Size.Name, c.Kind, r.Answers[c], site,
				micros(r.CPU(c, site)), r.Rate(c, site), r.CPURatio(c, site, bench.SiteStatic), r.RateRatio(c, site, bench.SiteComparator))
		}
	}
	_ = table.Flush() // an error would come from w, which is the terminal
	fmt.Fprintln(w)
	match := bench.HTTPSCases[0]
	static, rate := r.CPURatio(match, bench.SiteOurs, bench.SiteStatic), r.RateRatio(match, bench.SiteOurs, bench.SiteComparator)
	verdict(w, "P5", "over HTTPS, matched, 9 KB: CPU, times a static answer of that size", static, 2, static <= 2, "<=")
	verdict(w, "P5", "the same: requests/s, times the comparator", rate, 8, rate >= 8, ">=")
}

func verdict(w io.Writer, name, what string, got, want float64, met bool, relation string) {
	word := "met"
	if !met {
		word = "NOT MET"
	}
	fmt.Fprintf(w, "%-4s %-75s %6.2f  (%s %g)  %s\n", name, what, got, relation, want, word)
}

func micros(d time.Duration) string { return fmt.Sprintf("%.1fµs", float64(d.Nanoseconds())/1000) }
