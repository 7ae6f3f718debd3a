// Package transcript keeps what documents show of the plugin as it is: it runs the commands of a
// document and compares, or replaces, their output. It is for tests only.
//
// A block of a document is checked if it begins with ```console. Its lines that begin with
// "$ kubectl" are commands; what follows one, up to the next line that begins with "$", is its
// output. A second word after ```console names the test that checks the block.
package transcript

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Runner runs kubectl and returns what it writes, standard error last. If it returns false, it runs
// no such command, and the document keeps what it shows.
type Runner func(args []string) (output string, ran bool)

var block = regexp.MustCompile("(?ms)^```console *([^\n]*)\n(.*?)^```")

// Check runs the commands in the blocks of a test, "" or the word after ```console, in the order of
// the document. With update, the document gets their output; without it, a difference fails the
// test. It returns the number of commands.
func Check(t *testing.T, path, test string, update bool, run Runner) (commands int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	now := block.ReplaceAllStringFunc(string(text), func(found string) string {
		parts := block.FindStringSubmatch(found)
		if strings.TrimSpace(parts[1]) != test {
			return found
		}
		body, n := replay(parts[2], run)
		commands += n
		if body != parts[2] && !update {
			t.Errorf("%s shows\n%s\nwhere the plugin now prints\n%s\nUpdate it with -update, and look at the difference.", path, parts[2], body)
		}
		return strings.TrimSuffix(found, parts[2]+"```") + body + "```"
	})
	if update && now != string(text) {
		if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return commands
}

// replay returns the block with the output that its commands have now.
func replay(body string, run Runner) (now string, commands int) {
	var out strings.Builder
	ran := false
	for line := range strings.Lines(body) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		if isCommand || !ran {
			out.WriteString(line)
		}
		if !isCommand {
			continue
		}
		args, isKubectl := strings.CutPrefix(command, "kubectl ")
		output := ""
		if ran = isKubectl; ran {
			output, ran = run(strings.Fields(args))
		}
		if ran {
			commands++
		}
		for text := range strings.Lines(strings.TrimRight(output, "\n")) {
			out.WriteString(strings.TrimRight(text, " \n") + "\n")
		}
	}
	return out.String(), commands
}
