package testkit

import (
	"fmt"
	"slices"
	"strings"
)

// SumOf returns the sum of a metric's samples in Prometheus' text format whose lines contain
// all of parts, such as `verb="WATCH"`. The sum is 0 if there is no such sample: a metric with
// labels has none before its first value.
func SumOf(text, metric string, parts ...string) (sum float64, err error) {
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, metric)
		if !found || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		if slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			continue
		}
		var value float64
		if _, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &value); err != nil {
			return 0, fmt.Errorf("reading a value of %s in %q: %w", metric, line, err)
		}
		sum += value
	}
	return sum, nil
}
