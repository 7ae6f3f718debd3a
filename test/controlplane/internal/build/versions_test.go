package build

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// The demo compiles the operator and the control plane. A module of which they use two versions
// is compiled twice, and so is everything that imports it.
func TestSharedModulesHaveOneVersion(t *testing.T) {
	operators := map[string]string{}
	for _, r := range modfile(t, "../../../../go.mod").Require {
		operators[r.Path] = r.Version
	}
	for _, path := range []string{"../../go.mod", "../../../ecosystem/go.mod"} {
		file, replaced := modfile(t, path), map[string]bool{}
		for _, r := range file.Replace {
			replaced[r.Old.Path] = true
		}
		for _, r := range file.Require {
			if version := operators[r.Path]; version != "" && version != r.Version && !replaced[r.Path] {
				t.Errorf("%s has %s of %s, the operator %s. In the directory of the lower version, run: go get %s@%s", path, r.Version, r.Path, version, r.Path, max(r.Version, version))
			}
		}
	}
}

// gomod is a part of what go mod edit -json prints.
type gomod struct {
	Require []struct{ Path, Version string }
	Replace []struct{ Old struct{ Path string } }
}

func modfile(t *testing.T, path string) (file gomod) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", path).Output()
	if err == nil {
		err = json.Unmarshal(out, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}
