package inplace_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/inplace"
)

func spec(t *testing.T, containers, initContainers string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(fmt.Appendf(nil, `{"containers":[%s],"initContainers":[%s]}`, containers, initContainers), &out); err != nil {
		t.Fatalf("a spec of the test: %v", err)
	}
	return out
}

// Running-pods-facts §2: which changes are of resources only.
func TestCompare(t *testing.T) {
	const (
		log    = `{"name":"log","image":"log:1","resources":{"requests":{"cpu":"100m"}}}`
		native = `{"name":"proxy","image":"proxy:1","restartPolicy":"Always","resources":{"limits":{"memory":"1Gi"}}}`
		setup  = `{"name":"setup","image":"setup:1","resources":{}}`
	)
	other := inplace.Difference{Other: true}
	list := func(name corev1.ResourceName, value string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(value)}
	}
	tests := map[string]struct {
		old, now [2]string
		want     inplace.Difference
	}{
		"nothing":                               {[2]string{log, native}, [2]string{log, native}, inplace.Difference{}},
		"images":                                {[2]string{log, native}, [2]string{`{"name":"log","image":"log:2","resources":{"requests":{"cpu":"100m"}}}`, native}, inplace.Difference{}},
		"no image any more":                     {[2]string{log, ""}, [2]string{`{"name":"log","resources":{"requests":{"cpu":"100m"}}}`, ""}, inplace.Difference{}},
		"cpu":                                   {[2]string{log, ""}, [2]string{`{"name":"log","resources":{"requests":{"cpu":"1"}}}`, ""}, inplace.Difference{Resources: []inplace.ResourceChange{{Container: "log", Old: corev1.ResourceRequirements{Requests: list("cpu", "100m")}, New: corev1.ResourceRequirements{Requests: list("cpu", "1")}}}}},
		"memory of a native one":                {[2]string{log, native}, [2]string{log, `{"name":"proxy","restartPolicy":"Always","resources":{"limits":{"memory":"2Gi"},"requests":{"memory":"1Gi"}}}`}, inplace.Difference{Resources: []inplace.ResourceChange{{Container: "proxy", Init: true, Old: corev1.ResourceRequirements{Limits: list("memory", "1Gi"), Requests: list("memory", "1Gi")}, New: corev1.ResourceRequirements{Limits: list("memory", "2Gi"), Requests: list("memory", "1Gi")}}}}},
		"a value is added":                      {[2]string{log, ""}, [2]string{`{"name":"log","resources":{"requests":{"cpu":"100m"},"limits":{"cpu":"1"}}}`, ""}, inplace.Difference{Resources: []inplace.ResourceChange{{Container: "log", Old: corev1.ResourceRequirements{Requests: list("cpu", "100m")}, New: corev1.ResourceRequirements{Requests: list("cpu", "100m"), Limits: list("cpu", "1")}}}}},
		"a value is removed":                    {[2]string{log, ""}, [2]string{`{"name":"log","resources":{}}`, ""}, other},
		"another resource":                      {[2]string{log, ""}, [2]string{`{"name":"log","resources":{"requests":{"cpu":"100m","ephemeral-storage":"1Gi"}}}`, ""}, other},
		"a claim":                               {[2]string{log, ""}, [2]string{`{"name":"log","resources":{"requests":{"cpu":"100m"},"claims":[{"name":"gpu"}]}}`, ""}, other},
		"a value without end":                   {[2]string{log, ""}, [2]string{`{"name":"log","resources":{"requests":{"cpu":"1e90000000"}}}`, ""}, other},
		"no quantity":                           {[2]string{log, ""}, [2]string{`{"name":"log","resources":{"requests":{"cpu":"lots"}}}`, ""}, other},
		"an environment":                        {[2]string{log, ""}, [2]string{`{"name":"log","env":[{"name":"A"}],"resources":{"requests":{"cpu":"100m"}}}`, ""}, other},
		"a member not known":                    {[2]string{log, ""}, [2]string{`{"name":"log","invented":1,"resources":{"requests":{"cpu":"100m"}}}`, ""}, other},
		"resources by policy":                   {[2]string{`{"name":"log","resourcesPolicy":{},"resources":{}}`, ""}, [2]string{`{"name":"log","resourcesPolicy":{},"resources":{"limits":{"cpu":"1"}}}`, ""}, other},
		"one more":                              {[2]string{log, ""}, [2]string{log + "," + log, ""}, other},
		"another name":                          {[2]string{log, ""}, [2]string{`{"name":"lag","resources":{"requests":{"cpu":"100m"}}}`, ""}, other},
		"a native one more":                     {[2]string{log, ""}, [2]string{log, native}, other},
		"a plain init container, no native one": {[2]string{log, setup}, [2]string{log, ""}, inplace.Difference{}},
		"resources of a plain init container":   {[2]string{log, native + "," + setup}, [2]string{log, native + `,{"name":"setup","resources":{"limits":{"cpu":"1"}}}`}, other},
		"cpu, with a restart":                   {[2]string{`{"name":"log","resizePolicy":[{"resourceName":"cpu","restartPolicy":"RestartContainer"}],"resources":{"requests":{"cpu":"1"}}}`, ""}, [2]string{`{"name":"log","resizePolicy":[{"resourceName":"cpu","restartPolicy":"RestartContainer"}],"resources":{"requests":{"cpu":"2"}}}`, ""}, inplace.Difference{Restarts: true, Resources: []inplace.ResourceChange{{Container: "log", Old: corev1.ResourceRequirements{Requests: list("cpu", "1")}, New: corev1.ResourceRequirements{Requests: list("cpu", "2")}}}}},
		"cpu, with a restart for memory":        {[2]string{`{"name":"log","resizePolicy":[{"resourceName":"memory","restartPolicy":"RestartContainer"}],"resources":{"requests":{"cpu":"1"}}}`, ""}, [2]string{`{"name":"log","resizePolicy":[{"resourceName":"memory","restartPolicy":"RestartContainer"}],"resources":{"requests":{"cpu":"2"}}}`, ""}, inplace.Difference{Resources: []inplace.ResourceChange{{Container: "log", Old: corev1.ResourceRequirements{Requests: list("cpu", "1")}, New: corev1.ResourceRequirements{Requests: list("cpu", "2")}}}}},
		"a resize policy":                       {[2]string{log, ""}, [2]string{`{"name":"log","resizePolicy":[],"resources":{"requests":{"cpu":"100m"}}}`, ""}, other},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			old, now := spec(t, tc.old[0], tc.old[1]), spec(t, tc.now[0], tc.now[1])
			if diff := cmp.Diff(tc.want, inplace.Compare(old, now)); diff != "" {
				t.Errorf("difference (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(spec(t, tc.now[0], tc.now[1]), now); diff != "" {
				t.Errorf("the spec was changed:\n%s", diff)
			}
		})
	}
}

func resources(t *testing.T, text string) (r corev1.ResourceRequirements) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("resources of the test: %v", err)
	}
	return r
}

func TestPlanResize(t *testing.T) {
	const burstable = `{"requests":{"cpu":"100m"}}`
	tests := map[string]struct {
		old, now, live, app string
		policy              []corev1.ContainerResizePolicy
		want                string
		reason              inplace.Reason
		restarts            bool
	}{
		"the Pod has the old value":          {burstable, `{"requests":{"cpu":"1"}}`, burstable, `{}`, nil, `{"requests":{"cpu":"1"}}`, "", false},
		"in another form":                    {burstable, `{"requests":{"cpu":"1"}}`, `{"requests":{"cpu":"0.1"}}`, `{}`, nil, `{"requests":{"cpu":"1"}}`, "", false},
		"the Pod has the new value":          {burstable, `{"requests":{"cpu":"1"}}`, `{"requests":{"cpu":"1"}}`, `{}`, nil, ``, "", false},
		"the Pod has another value":          {burstable, `{"requests":{"cpu":"1"}}`, `{"requests":{"cpu":"300m"}}`, `{}`, nil, ``, inplace.ResourcesHeldElsewhere, false},
		"the Pod has one that was not set":   {burstable, `{"requests":{"cpu":"100m"},"limits":{"cpu":"1"}}`, `{"requests":{"cpu":"100m"},"limits":{"cpu":"2"}}`, `{}`, nil, ``, inplace.ResourcesHeldElsewhere, false},
		"the Pod lacks one that was set":     {burstable, `{"requests":{"cpu":"1"}}`, `{}`, `{"requests":{"cpu":"1"}}`, nil, ``, inplace.ResourcesHeldElsewhere, false},
		"another value that does not change": {`{"requests":{"cpu":"1","memory":"1Gi"}}`, `{"requests":{"cpu":"2","memory":"1Gi"}}`, `{"requests":{"cpu":"1","memory":"5Gi"}}`, `{}`, nil, `{"requests":{"cpu":"2"}}`, "", false},
		"a limit is added":                   {burstable, `{"requests":{"cpu":"100m"},"limits":{"cpu":"1"}}`, burstable, `{}`, nil, `{"limits":{"cpu":"1"}}`, "", false},
		"BestEffort gets a request":          {`{}`, burstable, `{}`, `{}`, nil, ``, inplace.ImmutableFieldChanged, false},
		"Burstable by the application":       {`{}`, burstable, `{}`, burstable, nil, burstable, "", false},
		"Guaranteed gets other requests":     {`{"limits":{"cpu":"1","memory":"1Gi"}}`, `{"limits":{"cpu":"2","memory":"1Gi"},"requests":{"cpu":"1"}}`, `{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}}`, `{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}}`, nil, ``, inplace.ImmutableFieldChanged, false},
		"Guaranteed stays so":                {`{"limits":{"cpu":"1","memory":"1Gi"}}`, `{"limits":{"cpu":"2","memory":"1Gi"}}`, `{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}}`, `{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1Gi"}}`, nil, `{"limits":{"cpu":"2"},"requests":{"cpu":"2"}}`, "", false},
		"a restart is asked for":             {burstable, `{"requests":{"cpu":"1"}}`, burstable, `{}`, []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: corev1.RestartContainer}}, `{"requests":{"cpu":"1"}}`, "", true},
		"a restart for another":              {burstable, `{"requests":{"cpu":"1"}}`, burstable, `{}`, []corev1.ContainerResizePolicy{{ResourceName: "memory", RestartPolicy: corev1.RestartContainer}, {ResourceName: "cpu", RestartPolicy: corev1.NotRequired}}, `{"requests":{"cpu":"1"}}`, "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "app", Resources: resources(t, tc.app)}, {Name: "log", Resources: resources(t, tc.live), ResizePolicy: tc.policy},
			}}}
			before := pod.DeepCopy()
			d := inplace.Compare(
				spec(t, `{"name":"log","resources":`+tc.old+`}`, ""), spec(t, `{"name":"log","resources":`+tc.now+`}`, ""))
			if d.Other {
				t.Fatal("not only resources")
			}
			plan, reason := inplace.PlanResize(pod, d.Resources, nil)
			if reason != tc.reason || plan.Restarts.Restarts() != tc.restarts {
				t.Fatalf("%+v, %q; want %q, restarts %v", plan, reason, tc.reason, tc.restarts)
			}
			want := `{"metadata":{"resourceVersion":"7"},"spec":{}}`
			if tc.want != "" {
				want = `{"metadata":{"resourceVersion":"7"},"spec":{"containers":[{"name":"log","resources":` + tc.want + `}]}}`
			}
			var got, wanted any
			patch, err := plan.Patch("7")
			if err != nil || json.Unmarshal(patch, &got) != nil || json.Unmarshal([]byte(want), &wanted) != nil {
				t.Fatalf("patch %s, %v", patch, err)
			}
			if diff := cmp.Diff(wanted, got); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the Pod was changed:\n%s", diff)
			}
		})
	}
}

func TestPlanResizeOfWhatThePodHasNot(t *testing.T) {
	plain := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "proxy"}}}}
	for name, change := range map[string]inplace.ResourceChange{
		"no container": {Container: "log"}, "no init container": {Container: "log", Init: true}, "a plain init container": {Container: "proxy", Init: true},
	} {
		if _, reason := inplace.PlanResize(plain, []inplace.ResourceChange{change}, nil); reason != inplace.ImmutableFieldChanged {
			t.Errorf("%s: %q", name, reason)
		}
	}
}

// Running-pods-facts §2: the conditions of a resize, and when it is done.
func TestObserveResize(t *testing.T) {
	condition := func(kind corev1.PodConditionType, reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "m"}}
		}
	}
	old := func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Resources.Requests["cpu"] = resource.MustParse("1") }
	both := func(a, b func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { a(p); b(p) }
	}
	tests := map[string]struct {
		edit func(*corev1.Pod)
		want inplace.ResizeState
	}{
		"done":                                  {func(*corev1.Pod) {}, inplace.ResizeDone},
		"not observed":                          {func(p *corev1.Pod) { p.Status.ObservedGeneration = 2 }, inplace.ResizeMoving},
		"an old kubelet":                        {func(p *corev1.Pod) { p.Status.ObservedGeneration = 0 }, inplace.ResizeDone},
		"deferred":                              {both(old, condition(corev1.PodResizePending, corev1.PodReasonDeferred)), inplace.ResizePutOff},
		"infeasible":                            {both(old, condition(corev1.PodResizePending, corev1.PodReasonInfeasible)), inplace.ResizeExcluded},
		"that of another container is deferred": {condition(corev1.PodResizePending, corev1.PodReasonDeferred), inplace.ResizeDone},
		"in progress":                           {condition(corev1.PodResizeInProgress, ""), inplace.ResizeMoving},
		"failed":                                {condition(corev1.PodResizeInProgress, corev1.PodReasonError), inplace.ResizeBroken},
		"a condition that is over": {func(p *corev1.Pod) {
			condition(corev1.PodResizePending, corev1.PodReasonDeferred)(p)
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		}, inplace.ResizeDone},
		"the old limit": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].Resources.Limits["memory"] = resource.MustParse("1Gi")
		}, inplace.ResizeMoving},
		"the old request": {old, inplace.ResizeMoving},
		"a rounded request": {func(p *corev1.Pod) {
			s := &p.Status.ContainerStatuses[0]
			s.Resources.Requests["cpu"] = resource.MustParse("2001m")
			s.AllocatedResources = corev1.ResourceList{"cpu": resource.MustParse("2")}
		}, inplace.ResizeDone},
		"a node that reports none": {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Resources = nil }, inplace.ResizeMoving},
		"a container not reported": {func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, inplace.ResizeMoving},
		"other resources of its own": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["ephemeral-storage"] = resource.MustParse("1Gi")
		}, inplace.ResizeDone},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			has := resources(t, `{"requests":{"cpu":"2"},"limits":{"memory":"2Gi"}}`)
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Resources: *has.DeepCopy()}}}}
			pod.Generation, pod.Status.ObservedGeneration = 3, 3
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "log", Resources: &has}}
			tc.edit(pod)
			got, message := inplace.ObserveResize(pod, []string{"log"})
			if got != tc.want || (message == "m") != (len(pod.Status.Conditions) > 0 && tc.want != inplace.ResizeDone) {
				t.Errorf("state %d, %q; want %d", got, message, tc.want)
			}
		})
	}
}

// A value counts as the content's own if the operator has written it.
func TestPlanResizeRecognizesValuesThatTheOperatorWrote(t *testing.T) {
	cpu := func(values ...string) []inplace.Size {
		return []inplace.Size{{Container: "log", Resource: corev1.ResourceCPU, Values: values}}
	}
	tests := map[string]struct {
		old, now, live string
		recorded       []inplace.Size
		want           string // of cpu, to be written
		sizes          []inplace.Size
		covered        bool
		reason         inplace.Reason
	}{
		"another content":                            {"1", "3", "2", cpu("1", "2"), "3", cpu("1", "2", "3"), false, ""},
		"which is on record":                         {"1", "3", "2", cpu("1", "2", "3"), "3", cpu("1", "2", "3"), true, ""},
		"a record that another writer outran":        {"1", "3", "4", cpu("1", "2"), "", nil, false, inplace.ResourcesHeldElsewhere},
		"the content of before":                      {"1", "1", "2", cpu("1", "2"), "1", cpu("1", "2", "1"), false, ""},
		"which is on record too":                     {"1", "1", "2", cpu("1", "2", "1"), "1", cpu("1", "2", "1"), true, ""},
		"which the Pod has":                          {"1", "1", "1", cpu("1", "2", "1"), "", cpu("1", "1"), false, ""},
		"of before, and another writer's value":      {"1", "1", "4", cpu("1", "2"), "", nil, false, ""},
		"of before, which had none":                  {"", "", "2", cpu("", "2"), "", nil, false, inplace.ImmutableFieldChanged},
		"of before, which had none, and the Pod too": {"", "", "", cpu("", "2"), "", cpu("", ""), false, ""},
		"a record that says nothing":                 {"1", "3", "1", cpu("x", "y"), "3", cpu("1", "3"), false, ""},
		"a record that asks for nothing":             {"1", "1", "2", cpu("x", "2"), "", nil, false, inplace.ResourcesHeldElsewhere},
		"a Pod with an endless value":                {"1", "3", "1e90000000", cpu("1", "2"), "", nil, false, inplace.ResourcesHeldElsewhere},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			requests := func(cpu string) string {
				if cpu == "" {
					return `{"requests":{"memory":"1Gi"}}`
				}
				return `{"requests":{"memory":"1Gi","cpu":"` + cpu + `"}}`
			}
			d := inplace.Compare(spec(t, `{"name":"log","resources":`+requests(tc.old)+`}`, ""), spec(t, `{"name":"log","resources":`+requests(tc.now)+`}`, ""))
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Resources: resources(t, requests(tc.live))}}}}
			plan, reason := inplace.PlanResize(pod, d.Resources, tc.recorded)
			if reason != tc.reason {
				t.Fatalf("reason %q, want %q", reason, tc.reason)
			}
			got := ""
			for _, c := range plan.Containers {
				got += c.Requests.Cpu().String()
			}
			if diff := cmp.Diff(tc.sizes, plan.Sizes); got != tc.want || diff != "" {
				t.Errorf("cpu %q is written, want %q; sizes (-want +got):\n%s", got, tc.want, diff)
			}
			if covered := len(plan.Containers) > 0 && plan.Covers(tc.recorded); covered != tc.covered {
				t.Errorf("it is on record: %v, want %v", covered, tc.covered)
			}
			if len(plan.Containers) > 0 && !plan.Covers(plan.Sizes) {
				t.Error("what the plan says is to be recorded does not cover it")
			}
		})
	}
}

func TestSizesOfAPod(t *testing.T) {
	size := inplace.Size{Container: "log", Resource: corev1.ResourceCPU, Values: []string{"1", "2"}}
	sizes := inplace.Sizes{At: someMark.At, Values: []inplace.Size{size, {Container: "proxy", Limit: true, Resource: corev1.ResourceMemory, Values: []string{"", "1Gi", "2Gi"}}}}
	m := inplace.Marks{}.With("ant", someMark).WithSizes("ant", sizes).WithSizes("bee", inplace.Sizes{At: someMark.At})
	const want = `"resizes":{"ant":{"at":"2026-01-02T03:04:05Z","of":{"log":{"requests.cpu":["1","2"]},"proxy":{"limits.memory":["","1Gi","2Gi"]}}},"bee":{"at":"2026-01-02T03:04:05Z","of":{}}}}`
	if value := m.Format("u"); !strings.HasSuffix(value, want) {
		t.Errorf("annotation %s, want it to end with %s", value, want)
	}
	read, err := inplace.MarksOf(marked(m.Format("u")))
	got, ok := read.Resizes["ant"]
	if diff := cmp.Diff(sizes, got); !ok || err != nil || diff != "" {
		t.Errorf("read again: %v, %v (-want +got):\n%s", ok, err, diff)
	}
	if diff := cmp.Diff(m.Sets, read.Sets); diff != "" {
		t.Errorf("Marks (-want +got):\n%s", diff)
	}
	for name, without := range map[string]inplace.Marks{
		"ended": read.WithoutSizes("ant"), "not carried": read.Keep(func(set string) bool { return set != "ant" }),
	} {
		if _, has := without.Resizes["ant"]; has || strings.Contains(without.Format("u"), "2Gi") {
			t.Errorf("%s: %s", name, without.Format("u"))
		}
	}
	if _, has := read.Resizes["ant"]; !has {
		t.Error("a copy has changed its original")
	}
}

// What is recorded of a quantity can be read, however its author wrote it.
func TestRecordedSizesCanBeReadInAnyNotation(t *testing.T) {
	for text, want := range map[string]string{
		"100m": "100m", "0.1": "100m", "1.5Gi": "1536Mi", "1e3": "1e3", "2E": "2E", "1Ei": "1Ei", "+1": "1", ".5": "500m", "9223372036854775807": "9223372036854775807",
		"0.0000000000000000000000000000000000001": "1n", strings.Repeat("0", 40) + "1": "1", "1" + strings.Repeat("0", 20) + "e-20": "1",
		"9223372036854775807.123456789": "9223372036854775807123456789n",
	} {
		value := resource.MustParse(text)
		change := inplace.ResourceChange{
			Container: "log",
			Old:       corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": value}},
			New:       corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("7")}},
		}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Resources: change.Old}}}}
		plan, reason := inplace.PlanResize(pod, []inplace.ResourceChange{change}, nil)
		if reason != "" || len(plan.Sizes) != 1 || plan.Sizes[0].Values[0] != want {
			t.Errorf("%s: %+v, %q", text, plan.Sizes, reason)
			continue
		}
		m, err := inplace.MarksOf(marked(inplace.Marks{}.WithSizes("a", inplace.Sizes{At: someMark.At, Values: plan.Sizes}).Format("u")))
		if read, _ := m.Resizes["a"]; err != nil || !plan.Covers(read.Values) {
			t.Errorf("%s: %+v is read as %+v, %v", text, plan.Sizes, read, err)
		}
	}
}

func TestSizesThatCannotBeRead(t *testing.T) {
	values := func(values string) string {
		return `{"a":{"at":"2026-01-02T03:04:05Z","of":{"log":{"requests.cpu":[` + values + `]}}}}`
	}
	for _, of := range []string{
		`[]`, `{"a":1}`, `{"a":{}}`, `{"a":{"at":"yesterday"}}`, `{"a":{"at":"2026-01-02T03:04:05Z","of":{"log":{"requests.disk":["1","2"]}}}}`,
		`{"a":{"at":"2026-01-02T03:04:05Z","of":{"log":{"cpu":["1","2"]}}}}`, `{"a":{"at":"2026-01-02T03:04:05Z","of":{"log":{"requests.cpu":["1"]}}}}`,
		`{"a":{"at":"2026-01-02T03:04:05Z","of":{"log":{"requests.cpu":["1","2","3","4","5"]}}}}`,
		`{"a":{"at":"2026-01-02T03:04:05Z"},"a":{"at":"2026-01-02T03:04:05Z"}}`,
		values(`"garbage","100m"`), values(`"1"," "`), values(`"1","1e900000000"`), values(`"1","1E-90000"`), values(`"1","1e+9999"`),
		values(`"1","1111111111111111111e900000000"`), values(`"1","` + strings.Repeat("1", 33) + `"`),
	} {
		if m, err := inplace.MarksOf(marked(`{"v":1,"uid":"u","sets":{},"resizes":` + of + `}`)); err == nil {
			t.Errorf("%s is read as %+v", of, m)
		}
	}
}

// A resize is the operator's turn until the Pod's spec has the values.
func TestObserveSizes(t *testing.T) {
	pod := func(live, status string) *corev1.Pod {
		has := resources(t, status)
		return &corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Resources: resources(t, live)}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "log", Resources: &has}}},
		}
	}
	sizes := inplace.Sizes{Values: []inplace.Size{{Container: "log", Resource: corev1.ResourceCPU, Values: []string{"1", "2"}}}}
	const one, two = `{"requests":{"cpu":"1"}}`, `{"requests":{"cpu":"2"}}`
	silent := func(p *corev1.Pod) *corev1.Pod {
		p.Status.ContainerStatuses[0].Resources = nil
		p.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{}
		return p
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want inplace.ResizeState
	}{
		"a kubelet that cannot": {silent(pod(two, one)), inplace.ResizeMoving},
		"before it is written":  {pod(one, one), inplace.ResizeOpen}, "before the kubelet is done": {pod(two, one), inplace.ResizeMoving},
		"done": {pod(two, two), inplace.ResizeDone}, "no such container": {&corev1.Pod{}, inplace.ResizeOpen},
	} {
		if got, _ := sizes.Observe(tc.pod); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	sizes.Values[0].Values = []string{"1", "1"} // taken back
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want inplace.ResizeState
	}{
		"done": {pod(one, one), inplace.ResizeDone}, "before the kubelet is done": {pod(one, two), inplace.ResizeMoving},
		"a kubelet that cannot": {silent(pod(one, one)), inplace.ResizeDone},
	} {
		if got, _ := sizes.Observe(tc.pod); got != tc.want {
			t.Errorf("taken back, %s: %d, want %d", name, got, tc.want)
		}
	}
}
