package podstate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/podstate"
)

func TestTexts(t *testing.T) {
	tests := map[string]struct {
		value string
		want  map[string]string
	}{
		"choices that we write":            {`{"log":"Current","mesh":"mesh-6d5857687f"}`, map[string]string{"log": podstate.ChoseCurrent, "mesh": "mesh-6d5857687f"}},
		"working containers that we write": {`{"log":"log-2","mesh":"mesh-1"}`, map[string]string{"log": "log-2", "mesh": "mesh-1"}},
		"nothing":                          {"", nil},
		"null":                             {"null", nil},
		"garbage":                          {"{", nil},
		"a word":                           {"x", nil},
		"a list":                           {`["log"]`, nil},
		"a map of numbers":                 {`{"log":1}`, nil},
		"a map of something else":          {`{"log":"log-2","mesh":1}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := podstate.ParseTexts(tc.value)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ParseTexts (-want +got):\n%s", diff)
			}
			if text := podstate.FormatTexts(got); len(tc.want) > 0 && text != tc.value {
				t.Errorf("FormatTexts = %s, want %s", text, tc.value)
			}
		})
	}
}
