package inject_test

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

// logV1 is what ControllerRevision log-1 records of SidecarSet log. It lacks members that
// defaulting would fill in, and has one that no version of the operator knows.
const logV1 = `{"spec":{"$patch":"replace","containers":[{"name":"log","image":"log:v1","future":1}],"imagePullSecrets":null,"initContainers":null,"patchPodMetadata":null,"volumes":null}}`

func logRevision() *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "log-1", Annotations: map[string]string{
			appsv1beta1.AnnotationHash: "hash-1", appsv1beta1.AnnotationHashWithoutImage: "bare-1",
		}},
		Data: runtime.RawExtension{Raw: []byte(logV1)},
	}
}

type members = map[string]any

// logAt is SidecarSet log with image log:v2 now, and log:v1 as revision log-1.
func logAt(t *testing.T, revision, update members, draw float64) inject.Candidate {
	t.Helper()
	return candidateOf(t, fixtures.SidecarSet("log"), revision, update, draw)
}

func candidateOf(t *testing.T, set *fixtures.SidecarSetBuilder, revision, update members, draw float64) inject.Candidate {
	t.Helper()
	set.Container("log", "log:v2").Spec("injectionStrategy", members{"revision": revision}).LatestRevision("log-2")
	if update != nil {
		set.Spec("updateStrategy", update)
	}
	current := fixtures.Compiled(t, set.Map())
	history, err := inject.CompileRevision(current, logRevision())
	if err != nil {
		t.Fatalf("CompileRevision: %v", err)
	}
	return inject.Candidate{Current: current, History: history, Draw: draw}
}

func TestComputeChoosesTheRevision(t *testing.T) {
	byName := members{"revisionName": "log-1"}
	partial := members{"revisionName": "log-1", "policy": "Partial"}
	chose := func(before string) *fixtures.PodBuilder {
		return fixtures.Pod("p").Annotation(appsv1beta1.AnnotationRevisionChoice, before)
	}
	tests := map[string]struct {
		revision, update members
		draw             float64
		enforced         bool
		pod              *fixtures.PodBuilder
		image, choice    string
	}{
		"the recorded one where no policy is given": {revision: byName, draw: 0.99, image: "log:v1"},
		"the recorded one always": {
			revision: members{"customVersion": "v1", "policy": "Always"}, update: members{"partition": 0}, draw: 0.99, image: "log:v1"},
		"always whatever the update's selector (T18)": {
			revision: byName, update: members{"selector": members{"matchLabels": members{"canary": "yes"}}},
			pod: fixtures.Pod("p").Label("canary", "yes"), image: "log:v1"},
		"the current one where nothing is named": {revision: members{"policy": "Always"}, image: "log:v2"},
		"in part, the recorded one below the share": {
			revision: partial, update: members{"partition": "30%"}, draw: 0.29, image: "log:v1", choice: `{"log":"log-1"}`},
		"in part, the current one above the share": {
			revision: partial, update: members{"partition": "30%"}, draw: 0.3, image: "log:v2", choice: `{"log":"Current"}`},
		"in part, never by a number (T18)": {
			revision: partial, update: members{"partition": 5}, draw: 0, image: "log:v2", choice: `{"log":"Current"}`},
		"in part, never without a partition": {revision: partial, image: "log:v2", choice: `{"log":"Current"}`},
		"in part, in Pods that the update leaves out, whatever the partition": {
			revision: partial, update: members{"partition": "x", "selector": members{"matchLabels": members{"canary": "yes"}}}, draw: 0.99, image: "log:v1"},
		"in part, by chance in Pods that the update selects": {
			revision: partial, update: members{"selector": members{"matchLabels": members{"canary": "yes"}}}, draw: 0.99,
			pod: fixtures.Pod("p").Label("canary", "yes"), image: "log:v2", choice: `{"log":"Current"}`},
		"what was chosen before: the current one": {
			revision: partial, update: members{"partition": "50%"}, draw: 0, image: "log:v2",
			pod: chose(`{"log":"Current"}`)},
		"by chance where another revision was chosen before": {
			revision: partial, update: members{"partition": "50%"}, draw: 0, image: "log:v1", choice: `{"log":"log-1"}`,
			pod: chose(`{"log":"log-0"}`)},
		"choices of other SidecarSets stay": {
			revision: partial, draw: 0, image: "log:v2", choice: `{"log":"Current","mesh":"mesh-1"}`,
			pod: chose(`{"mesh":"mesh-1"}`)},
		// The choice that the Pod records counts for an enforced SidecarSet only if chance decides.
		"enforced: not the recorded one at 0 %": {
			revision: partial, update: members{"partition": "0%"}, draw: 0, enforced: true, pod: chose(`{"log":"log-1"}`), image: "log:v2", choice: `{"log":"Current"}`},
		"enforced: not the current one at 100 %": {
			revision: partial, update: members{"partition": "100%"}, draw: 0.99, enforced: true, pod: chose(`{"log":"Current"}`), image: "log:v1", choice: `{"log":"log-1"}`},
		"enforced: in between it is either of them": {
			revision: partial, update: members{"partition": "50%"}, draw: 0.99, enforced: true, pod: chose(`{"log":"log-1"}`), image: "log:v1"},
		"enforced: so it is for the current one": {
			revision: partial, update: members{"partition": "50%"}, draw: 0, enforced: true, pod: chose(`{"log":"Current"}`), image: "log:v2"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.pod == nil {
				tc.pod = fixtures.Pod("p")
			}
			in := fixtures.Input(t, tc.pod.Container("app", "app:v1").Obj())
			set := fixtures.SidecarSet("log")
			if tc.enforced {
				set.Annotation(appsv1beta1.AnnotationEnforce, "true")
			}
			in.Candidates = []inject.Candidate{candidateOf(t, set, tc.revision, tc.update, tc.draw)}
			plan, err := inject.Compute(in)
			if err != nil {
				t.Fatalf("Compute: %v", err)
			}
			if len(plan.Insertions) != 1 || !strings.Contains(string(plan.Insertions[0].Body), `"image":"`+tc.image+`"`) {
				t.Errorf("insertions %v, want %s", plan.Insertions, tc.image)
			}
			if got := plan.Annotations[appsv1beta1.AnnotationRevisionChoice]; got != tc.choice {
				t.Errorf("choice %s, want %s", got, tc.choice)
			}
		})
	}
}

// A revision that brings no container leaves no other trace of the choice.
func TestComputeKeepsTheChoiceOfARevisionWithoutContainers(t *testing.T) {
	candidate := logAt(t, members{"revisionName": "log-1", "policy": "Partial"}, members{"partition": "50%"}, 0.1)
	recorded := logRevision()
	recorded.Data.Raw = []byte(`{"spec":{"$patch":"replace","containers":null}}`)
	history, err := inject.CompileRevision(candidate.Current, recorded)
	if err != nil {
		t.Fatal(err)
	}
	candidate.History = history
	pod := fixtures.Pod("p").Container("app", "app:v1").Obj()
	in := fixtures.Input(t, pod)
	in.Candidates = []inject.Candidate{candidate}
	plan, err := inject.Compute(in)
	if got := plan.Annotations[appsv1beta1.AnnotationRevisionChoice]; err != nil || got != `{"log":"log-1"}` {
		t.Fatalf("choice %s, %v", got, err)
	}
	in.Pod = fixtures.View(t, fixtures.Apply(t, plan, pod))
	in.Candidates[0].Draw = 0.9
	if plan, err = inject.Compute(in); err != nil || !plan.Empty() {
		t.Errorf("second call: %v, %v", plan, err)
	}
}

func TestComputeRefusesAMissingRevisionOnlyWhereItIsNeeded(t *testing.T) {
	partial := func(partition any) inject.Candidate {
		return logAt(t, members{"customVersion": "v1", "policy": "Partial"}, members{"partition": partition}, 0.5)
	}
	tests := map[string]struct {
		candidate inject.Candidate
		problem   string
	}{
		"needed always":                  {logAt(t, members{"customVersion": "v1"}, nil, 0), "customVersion v1"},
		"needed by chance":               {partial("51%"), "customVersion v1"},
		"not needed by chance (T15)":     {partial("50%"), ""},
		"needed or not cannot be known":  {partial("x"), `spec.updateStrategy.partition "x" is neither`},
		"a selector that is none":        {logAt(t, members{"customVersion": "v1", "policy": "Partial"}, members{"selector": members{"matchExpressions": []any{members{"key": "a", "operator": "Is"}}}}, 0), "spec.updateStrategy.selector"},
		"not needed while paused for it": {inject.Candidate{Current: fixtures.Compiled(t, log().Spec("injectionStrategy", members{"paused": true, "revision": members{"customVersion": "v1"}}).Map())}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := fixtures.Input(t, fixtures.Pod("p").Container("app", "app:v1").Obj())
			tc.candidate.History = nil
			in.Candidates = []inject.Candidate{tc.candidate}
			_, err := inject.Compute(in)
			if tc.problem == "" && err != nil || tc.problem != "" && (err == nil || !strings.Contains(err.Error(), tc.problem)) {
				t.Errorf("error %v, want one about %q", err, tc.problem)
			}
			var missing *inject.RevisionError
			if tc.problem == "customVersion v1" && (!errors.As(err, &missing) || missing.SidecarSet != "log") {
				t.Errorf("error %v is no RevisionError of log", err)
			}
		})
	}
}

func TestSidecarSetsNameTheRevisionOfTheirContent(t *testing.T) {
	const example = "s1-6d5857687f"
	set := fixtures.SidecarSet("s1").Container("agent", "busybox:1.36").LatestRevision("s1-old").Map()
	set["metadata"].(members)["generation"] = int64(2)
	set["status"].(members)["observedGeneration"] = int64(1)
	in := fixtures.Input(t, fixtures.Pod("p").Container("app", "app:v1").Obj(), set)
	plan, err := inject.Compute(in)
	if err != nil || !strings.Contains(plan.Annotations[appsv1beta1.AnnotationHash], `"controllerRevision":"`+example+`"`) {
		t.Errorf("%v; record %s, want %s", err, plan.Annotations[appsv1beta1.AnnotationHash], example)
	}
}

func TestCompileRevisionNamesWhatItCannotUse(t *testing.T) {
	current := fixtures.Compiled(t, fixtures.SidecarSet("log").Container("log", "log:v2").Map())
	for _, data := range []string{`{`, `{"spec":{"containers":[null]}}`, `{"spec":{"containers":7}}`} {
		r := logRevision()
		r.Data.Raw = []byte(data)
		if _, err := inject.CompileRevision(current, r); err == nil || !strings.Contains(err.Error(), "ControllerRevision system/log-1") {
			t.Errorf("%s: error %v", data, err)
		}
	}
}
