package main

import (
	"strings"
	"testing"
)

// The demo compiles the operator and the control plane. A module of which they use two versions
// is compiled twice, and so is everything that imports it.
func TestSharedModulesHaveOneVersion(t *testing.T) {
	for _, modfile := range []string{"../../go.mod", "../../../ecosystem/go.mod"} {
		different, err := differing(modfile, "../../"+operatorModfile)
		if err != nil {
			t.Fatal(err)
		}
		if len(different) > 0 {
			t.Errorf("%s has other versions than the operator's go.mod. In the directory of the lower version, run: go get %s", modfile, strings.Join(different, " "))
		}
	}
}
