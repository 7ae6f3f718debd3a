package inplace_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
			got := inplace.Compare(old, now)
			if got.Other {
				got.Resources = nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
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
		"the Pod has one that was not set":   {burstable, `{"requests":{"cpu":"100m"},"limits":{"cpu":"1"}}`, `{"requests":{"cpu":"100m"},"limits":{"cpu":"2"}}`, `{}`, nil, `{"limits":{"cpu":"1"}}`, "", false},
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

// Contents of a SidecarSet with two resizes: the Pod records the first one, and was being
// resized to the second when the third came.
func TestPlanResizeComparesThreeWays(t *testing.T) {
	foreign := []metav1.ManagedFieldsEntry{{Manager: "vpa-updater", Subresource: "resize", FieldsV1: metav1.NewFieldsV1(
		`{"f:spec":{"f:containers":{"k:{\"name\":\"log\"}":{"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`,
	)}}
	elsewhere := foreign[0].DeepCopy()
	elsewhere.FieldsV1.SetRawString(`{"f:spec":{"f:containers":{"k:{\"name\":\"app\"}":{"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`)
	unreadable := foreign[0].DeepCopy()
	unreadable.FieldsV1.SetRawString(`{`)
	own := foreign[0].DeepCopy()
	own.Manager = inplace.FieldManager
	const other = inplace.ResourcesHeldElsewhere
	tests := map[string]struct {
		recorded, begun, now, live string
		managed                    []metav1.ManagedFieldsEntry
		want                       string // of cpu, to be written
		reason                     inplace.Reason
	}{
		"the recorded value":                             {"1", "2", "3", "1", nil, "3", ""},
		"the value of the resize that was begun":         {"1", "2", "3", "2", nil, "3", ""},
		"the wanted value":                               {"1", "2", "3", "3", nil, "", ""},
		"another one":                                    {"1", "2", "3", "4", nil, "", other},
		"taken back":                                     {"1", "2", "1", "2", nil, "1", ""},
		"taken back, not carried out":                    {"1", "2", "1", "1", nil, "", ""},
		"taken back, another writer's value stays":       {"1", "2", "1", "4", nil, "", ""},
		"taken back, which had none":                     {"", "2", "", "2", nil, "", inplace.ImmutableFieldChanged},
		"taken back, which had none, not carried out":    {"", "2", "", "", nil, "", ""},
		"a value without end":                            {"1", "2", "3", "1e90000000", nil, "", other},
		"a default of the namespace":                     {"", "", "3", "500m", nil, "3", ""},
		"a default, another container is held elsewhere": {"", "", "3", "500m", []metav1.ManagedFieldsEntry{*elsewhere, *own}, "3", ""},
		"no default, but the value of another writer":    {"", "", "3", "500m", foreign, "", other},
		"perhaps that of another writer":                 {"", "", "3", "500m", []metav1.ManagedFieldsEntry{*unreadable}, "", other},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			requests := func(cpu string) string {
				if cpu == "" {
					return `{"requests":{"memory":"1Gi"}}`
				}
				return `{"requests":{"memory":"1Gi","cpu":"` + cpu + `"}}`
			}
			changes := func(from string) []inplace.ResourceChange {
				return inplace.Compare(spec(t, `{"name":"log","resources":`+requests(from)+`}`, ""), spec(t, `{"name":"log","resources":`+requests(tc.now)+`}`, "")).Resources
			}
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Resources: resources(t, requests(tc.live))}}}}
			pod.ManagedFields = tc.managed
			plan, reason := inplace.PlanResize(pod, changes(tc.recorded), changes(tc.begun))
			got := ""
			for _, c := range plan.Containers {
				got += c.Requests.Cpu().String()
			}
			if reason != tc.reason || got != tc.want {
				t.Errorf("cpu %q is written, %q; want %q, %q", got, reason, tc.want, tc.reason)
			}
		})
	}
}
