package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDerive(t *testing.T) {
	tests := map[string]struct{ version, wantMinor, wantStaging string }{
		"a release":              {"v1.36.4", "v1.36", "v0.36.4"},
		"a release candidate":    {"v1.38.0-rc.1", "v1.38", "v0.38.0-rc.1"},
		"no patch version":       {"v1.36", "", ""},
		"no v":                   {"1.36.4", "", ""},
		"another major version":  {"v2.0.0", "", ""},
		"the staging's own kind": {"v0.36.4", "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			minor, staging, err := derive(tc.version)
			if minor != tc.wantMinor || staging != tc.wantStaging || (err == nil) != (tc.wantMinor != "") {
				t.Errorf("derive(%q) = %q, %q, %v; want %q, %q", tc.version, minor, staging, err, tc.wantMinor, tc.wantStaging)
			}
		})
	}
}

const upstreamJSON = `{
  "Go": "1.26.0",
  "Require": [{"Path": "go.etcd.io/etcd/client/v3", "Version": "v3.6.8"}],
  "Replace": [
    {"Old": {"Path": "k8s.io/client-go"}, "New": {"Path": "./staging/src/k8s.io/client-go"}},
    {"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}}
  ]
}`

func TestRender(t *testing.T) {
	upstream := new(gomod)
	if err := json.Unmarshal([]byte(upstreamJSON), upstream); err != nil {
		t.Fatal(err)
	}
	got, err := render("v1.36.4", "v0.36.4", upstream)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\ngo 1.26.0\n",
		"\ngodebug default=go1.26\n",
		"\tk8s.io/kubernetes v1.36.4\n",
		"\tgo.etcd.io/etcd/server/v3 v3.6.8\n",
		"replace (\n\tk8s.io/api => k8s.io/api v0.36.4\n\tk8s.io/client-go => k8s.io/client-go v0.36.4\n)\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestRenderRefusesWhatItDoesNotKnow(t *testing.T) {
	if got, err := render("v1.99.0", "v0.99.0", &gomod{Go: "1.30"}); err == nil {
		t.Errorf("rendered %s", got)
	}
}

// The demo compiles the operator and the control plane. A module of which they use two versions
// is compiled twice, and so is everything that imports it.
func TestSharedModulesHaveOneVersion(t *testing.T) {
	for _, modfile := range []string{"../../go.mod", "../../../certmanager/go.mod"} {
		different, err := differing(modfile, "../../"+operatorModfile)
		if err != nil {
			t.Fatal(err)
		}
		if len(different) > 0 {
			t.Errorf("%s has other versions than the operator's go.mod. In the directory of the lower version, run: go get %s", modfile, strings.Join(different, " "))
		}
	}
}
