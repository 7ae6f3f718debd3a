package inject

import (
	"slices"
	"testing"
)

func TestReferencesIn(t *testing.T) {
	for expr, want := range map[string][]string{
		"": nil, "plain/path": nil, "$(A)": {"A"}, "$(A)/$(B_2)-$(c.d-e)": {"A", "B_2", "c.d-e"}, "$$(X)": {"X"},
		"$(": nil, "$()": nil, "$(A": nil, "$(1A)": nil, "$(A B)": nil, "$($(A))": {"A"}, "$(A$(B)": {"B"}, "$(A)(B)$(-)": {"A", "-"}, "$(é)": nil,
	} {
		if got := slices.Collect(referencesIn(expr)); !slices.Equal(got, want) {
			t.Errorf("%q refers to %q, want %q", expr, got, want)
		}
	}
}
