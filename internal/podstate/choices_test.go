package podstate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/podstate"
)

func TestRevisionChoices(t *testing.T) {
	const value = `{"log":"Current","mesh":"mesh-6d5857687f"}`
	choices := podstate.ParseRevisionChoices(value)
	want := map[string]string{"log": podstate.ChoseCurrent, "mesh": "mesh-6d5857687f"}
	if diff := cmp.Diff(want, choices); diff != "" {
		t.Errorf("choices (-want +got):\n%s", diff)
	}
	if text := podstate.FormatTexts(choices); text != value {
		t.Errorf("rendered as %s", text)
	}
	for _, garbage := range []string{"", "x", `["log"]`, `{"log":1}`, "null"} {
		if got := podstate.ParseRevisionChoices(garbage); len(got) != 0 {
			t.Errorf("%q gives %v", garbage, got)
		}
	}
}
