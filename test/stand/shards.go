package stand

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// shardsVariable is the environment variable that says how many processes share the tests of a
// package. Tests on a control plane wait more than they compute, so two processors are enough
// for several processes.
const shardsVariable = "SHARDS"

// shards returns the tests for each process: first for the processes that run at the same time,
// then for one that runs when they have ended. It returns nothing if this process is to run the
// tests itself: because SHARDS asks for only one, or the flags select a part of a test.
func shards(o Options) (concurrent [][]string, after []string, err error) {
	count, _ := strconv.Atoi(os.Getenv(shardsVariable))
	if o.Seconds == nil { // this suite is better run in one process
		count = 1
	}
	run := flagValue("test.run")
	if count < 2 || strings.Contains(run, "/") || flagValue("test.bench") != "" || flagValue("test.fuzz") != "" {
		return nil, nil, nil
	}
	tests, err := listTests(cmp.Or(run, "."))
	if err != nil || len(tests) < 2 {
		return nil, nil, err
	}
	concurrent, after = deal(tests, o, count)
	return concurrent, after, nil
}

// deal distributes the tests that run at the same time, and returns the tests that run after
// them.
func deal(tests []string, o Options, count int) (concurrent [][]string, after []string) {
	var parallel, others []string
	for _, test := range tests {
		switch {
		case slices.Contains(o.Alone, test):
			after = append(after, test)
		case slices.Contains(o.Parallel, test):
			parallel = append(parallel, test)
		default:
			others = append(others, test)
		}
	}
	if len(others) > 0 {
		concurrent = distribute(others, o.Seconds, min(count, len(others)))
	}
	if len(parallel) > 0 {
		concurrent = append(concurrent, parallel)
	}
	if len(concurrent) == 0 {
		return [][]string{after}, nil
	}
	return concurrent, after
}

// distribute gives each test, the longest first, to the process that has the least to do. A
// test without a weight takes a second.
func distribute(tests []string, weights map[string]int, count int) [][]string {
	weight := func(test string) int { return max(weights[test], 1) }
	tests = slices.Clone(tests)
	slices.SortStableFunc(tests, func(a, b string) int { return cmp.Compare(weight(b), weight(a)) })
	dealt, loads := make([][]string, count), make([]int, count)
	for _, test := range tests {
		least := slices.Index(loads, slices.Min(loads))
		dealt[least] = append(dealt[least], test)
		loads[least] += weight(test)
	}
	return dealt
}

// listTests asks this binary which of its tests the pattern selects.
func listTests(pattern string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(context.Background(), self, "-test.list="+pattern).Output()
	if err != nil {
		return nil, fmt.Errorf("listing the tests: %w", err)
	}
	var tests []string
	for _, line := range strings.Fields(string(out)) {
		if strings.HasPrefix(line, "Test") {
			tests = append(tests, line)
		}
	}
	return tests, nil
}

// runShards runs this binary once for each shard, all at the same time, and then once more for
// the tests in after. The other arguments are the same. It prints the output of a process when
// the process ends. It returns the exit code.
func runShards(concurrent [][]string, after []string) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stand:", err)
		return 1
	}
	shards := concurrent
	if len(after) > 0 {
		shards = append(slices.Clone(concurrent), after)
	}
	var printing sync.Mutex
	var wg sync.WaitGroup
	code := 0
	for i, tests := range shards {
		if i == len(concurrent) {
			wg.Wait()
		}
		wg.Go(func() {
			cmd := exec.CommandContext(context.Background(), self, argsFor(tests)...)
			cmd.Env = append(os.Environ(), shardsVariable+"=1")
			var output bytes.Buffer
			cmd.Stdout, cmd.Stderr = &output, &output
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
			err := cmd.Run()
			printing.Lock()
			defer printing.Unlock()
			fmt.Printf("process %d of %d: %s\n", i+1, len(shards), strings.Join(tests, " "))
			_, _ = os.Stdout.Write(output.Bytes())
			if err != nil {
				fmt.Printf("process %d of %d: %v\n", i+1, len(shards), err)
				code = 1
			}
		})
	}
	wg.Wait()
	return code
}

// argsFor returns the arguments of this process, changed to run these tests: of equal flags, the
// last one counts. The go command reads from test.testlogfile what a test depends on; several
// processes cannot write this file.
func argsFor(tests []string) []string {
	return append(slices.Clone(os.Args[1:]), "-test.testlogfile=", "-test.run=^("+strings.Join(tests, "|")+")$")
}

func flagValue(name string) string {
	if f := flag.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}
