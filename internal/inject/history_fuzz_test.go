package inject_test

import (
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

// Whatever a ControllerRevision holds, it is refused with a reason or injected
// with a patch that applies.
func FuzzCompileRevision(f *testing.F) {
	set := fixtures.SidecarSet("log").Container("log", "log:v2").Spec("injectionStrategy", members{"revision": members{"revisionName": "log-1"}})
	current, err := inject.Compile(set.Map())
	if err != nil {
		f.Fatal(err)
	}
	pod := fixtures.Pod("p").Container("app", "app:v1").Obj()
	f.Add([]byte(logV1))
	f.Fuzz(func(t *testing.T, data []byte) {
		recorded := logRevision()
		recorded.Data.Raw = data
		history, err := inject.CompileRevision(current, recorded)
		if err != nil {
			return
		}
		in := inject.Input{Pod: fixtures.View(t, pod), Now: fixtures.Now, Candidates: []inject.Candidate{{Current: current, History: history}}}
		plan, err := inject.Compute(in)
		if err != nil {
			return
		}
		fixtures.Apply(t, plan, pod)
	})
}
