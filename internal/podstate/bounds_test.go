package podstate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/podstate"
)

// members returns a JSON object of n members with hexadecimal names.
func members(n int, value func(int) string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%x":%s`, i, value(i))
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

func list(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("s%x", n-i)
	}
	return strings.Join(names, ",")
}

// The creator of a Pod writes its annotations, up to 3 MiB of them. Values that no
// operator writes are not read at all.
func TestValuesBeyondTheBoundsAreGarbage(t *testing.T) {
	hash := func(int) string { return `{"hash":"h"}` }
	legacy := func(int) string { return `"h"` }
	text := func(int) string { return `"x"` }
	long := func(int) string { return `"` + strings.Repeat("x", 1024) + `"` }
	hashes := func(value string) int { return len(recordsIn(t, podstate.ParseHashes(value).String())) }
	names := func(value string) int { return len(podstate.ParseInjectedList(value)) }
	texts := func(value string) int { return len(podstate.ParseTexts(value)) }
	tests := map[string]struct {
		read  func(string) int
		value string
		want  int
	}{
		"256 hashes in no order are read":          {hashes, members(256, hash), 256},
		"257 hashes are not":                       {hashes, members(257, hash), 0},
		"nor are 300 hashes as they are written":   {hashes, podstate.ParseHashes("").With(entries(300)...).String(), 0},
		"256 legacy hashes are read":               {hashes, members(256, legacy), 256},
		"3 MiB of legacy hashes are not":           {hashes, members(200_000, legacy), 0},
		"one hash of 64 KiB is not":                {hashes, `{"a":{"hash":"` + strings.Repeat("h", 64<<10) + `"}}`, 0},
		"256 names are read":                       {names, list(256), 256},
		"257 names are not":                        {names, list(257), 0},
		"3 MiB of names are not":                   {names, list(400_000), 0},
		"256 pairs are read":                       {texts, members(256, text), 256},
		"257 pairs are not":                        {texts, members(257, text), 0},
		"pairs of more than 64 KiB are not":        {texts, members(64, long), 0},
		"3 MiB of pairs are not":                   {texts, members(200_000, text), 0},
		"a member of another type spoils them all": {texts, `{"a":"x","b":1}`, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.read(tc.value); got != tc.want {
				t.Errorf("%d are read of %d bytes, want %d", got, len(tc.value), tc.want)
			}
		})
	}
}

func entries(n int) []podstate.HashRecord {
	all := make([]podstate.HashRecord, n)
	for i := range all {
		all[i] = podstate.HashRecord{SidecarSetName: fmt.Sprint("s", i), Hash: "h"}
	}
	return all
}
