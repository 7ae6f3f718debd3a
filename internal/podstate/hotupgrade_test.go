package podstate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/podstate"
)

func TestWorkingContainers(t *testing.T) {
	tests := map[string]struct {
		value string
		want  map[string]string
	}{
		"what we write":           {`{"log":"log-2","mesh":"mesh-1"}`, map[string]string{"log": "log-2", "mesh": "mesh-1"}},
		"nothing":                 {"", map[string]string{}},
		"null":                    {"null", map[string]string{}},
		"garbage":                 {"{", map[string]string{}},
		"a map of something else": {`{"log":"log-2","mesh":1}`, map[string]string{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := podstate.ParseWorking(tc.value)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ParseWorking (-want +got):\n%s", diff)
			}
			if text := podstate.FormatTexts(got); len(tc.want) > 0 && text != tc.value {
				t.Errorf("FormatTexts = %s, want %s", text, tc.value)
			}
		})
	}
}
