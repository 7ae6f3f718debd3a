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

// shardsVariable is the environment variable that overrides Options.Processes. It is 1 in the
// processes that share the tests.
const shardsVariable = "SHARDS"

// shares returns the tests for each process. It returns nothing if this process is to run the
// tests itself: because one process is enough, or the flags select a part of a test.
func shares(o Options) ([][]string, error) {
	if o.Processes < 2 {
		return nil, nil
	}
	count := o.Processes
	if text := os.Getenv(shardsVariable); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("%s is not a number of processes: %w", shardsVariable, err)
		}
	}
	run := flagValue("test.run")
	if count < 2 || strings.Contains(run, "/") || flagValue("test.bench") != "" || flagValue("test.fuzz") != "" {
		return nil, nil
	}
	tests, err := listTests(cmp.Or(run, "."))
	if err != nil || len(tests) < 2 {
		return nil, err
	}
	dealt := make([][]string, min(count, len(tests)))
	for i, test := range tests {
		dealt[i%len(dealt)] = append(dealt[i%len(dealt)], test)
	}
	return dealt, nil
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

// runShares runs this binary once for each share, all at the same time. The other arguments are
// the same. It prints the output of a process when the process ends. It returns the exit code.
func runShares(shares [][]string) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stand:", err)
		return 1
	}
	var printing sync.Mutex
	var wg sync.WaitGroup
	code := 0
	for i, tests := range shares {
		wg.Go(func() {
			output, err := runShare(self, tests)
			printing.Lock()
			defer printing.Unlock()
			fmt.Printf("process %d of %d: %s\n", i+1, len(shares), strings.Join(tests, " "))
			_, _ = os.Stdout.Write(output)
			if len(output) > 0 && output[len(output)-1] != '\n' {
				fmt.Println() // go test -json looks for its marks at the beginning of a line
			}
			if err != nil {
				fmt.Printf("process %d of %d: %v\n", i+1, len(shares), err)
				code = 1
			}
		})
	}
	wg.Wait()
	return code
}

// runShare runs the tests in another process of this binary, and returns what it printed.
func runShare(self string, tests []string) (output []byte, err error) {
	cmd := exec.CommandContext(context.Background(), self, argsFor(tests)...)
	cmd.Env = append(os.Environ(), shardsVariable+"=1")
	var buffer bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buffer, &buffer
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	onLastingThread(func() { err = cmd.Start() })
	if err != nil {
		return nil, err
	}
	err = cmd.Wait()
	return buffer.Bytes(), err
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
