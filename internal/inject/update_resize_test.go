package inject_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

func sizedSet(version, cpu string) *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("mesh").LatestRevision("mesh-"+version).
		Container("log", "log:"+version).With("resources", map[string]any{"requests": map[string]any{"cpu": cpu}})
}

func differenceOf(t *testing.T, old, now *fixtures.SidecarSetBuilder) *inplace.Difference {
	t.Helper()
	before, err := inject.SpecOf(old.Map())
	if err != nil {
		t.Fatal(err)
	}
	after, err := inject.SpecOf(now.Map())
	if err != nil {
		t.Fatal(err)
	}
	d := inplace.Compare(before, after)
	return &d
}

// Resources first, then images with both hashes, whichever leader looks at the Pod
// in between.
func TestUpdateInPlaceResizes(t *testing.T) {
	old, now := sizedSet("1", "100m"), sizedSet("2", "200m")
	pod := running(t, old)
	log := containerNamed(pod, "log")
	program := fixtures.Program(t, now.Map())
	in := inject.UpdateInput{Pod: pod, Program: program, Difference: differenceOf(t, old, now), Now: updatedAt}
	update := func(what string, want inplace.Verdict) inject.Update {
		t.Helper()
		u, err := inject.UpdateInPlace(in)
		if err != nil || u.Verdict != want {
			t.Fatalf("%s: %+v, %v; want %+v", what, u, err, want)
		}
		return u
	}

	u := update("before", inplace.Verdict{Way: inplace.Resize})
	if u.Patch != nil || u.Record == nil {
		t.Fatalf("patch %s, record %s; want the record first", u.Patch, u.Record)
	}
	pod = patched(t, pod, u.Record)
	in.Pod = pod
	u = update("on record", inplace.Verdict{Way: inplace.Resize})
	if want := `{"metadata":{"resourceVersion":"41"},"spec":{"containers":[{"name":"log","resources":{"requests":{"cpu":"200m"}}}]}}`; string(u.Patch) != want || u.Record != nil {
		t.Fatalf("patch %s\nwant %s", u.Patch, want)
	}

	in.Pod = patched(t, pod, u.Patch)
	if diff := cmp.Diff(pod.Annotations, in.Pod.Annotations); diff != "" {
		t.Fatalf("a resize carries no annotations:\n%s", diff)
	}
	in.Pod.Generation = 2
	status := &in.Pod.Status
	status.ObservedGeneration = 1
	if u := update("before the kubelet knows", inplace.Verdict{Way: inplace.Resize}); u.Patch != nil {
		t.Errorf("patch %s", u.Patch)
	}
	status.ObservedGeneration = 2
	status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: "too large"})
	if u := update("while it is infeasible", inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ResizeInfeasible}); u.Message != "too large" || u.Patch != nil {
		t.Errorf("message %q, patch %s", u.Message, u.Patch)
	}
	status.Conditions = status.Conditions[:1]
	for i := range status.ContainerStatuses {
		if s := &status.ContainerStatuses[i]; s.Name == "log" {
			s.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("200m")}}
		}
	}

	u = update("done", inplace.Verdict{Way: inplace.Images})
	got := patched(t, in.Pod, u.Patch)
	if image := containerNamed(got, "log").Image; image != "log:2" || log.Image != "log:1" {
		t.Errorf("image %s", image)
	}
	hashes := podstate.ParseHashes(got.Annotations[appsv1beta1.AnnotationHash])
	others := podstate.ParseHashes(got.Annotations[appsv1beta1.AnnotationHashWithoutImage])
	if hashes.Hash("mesh") != program.Hash || others.Hash("mesh") != program.HashWithoutImage {
		t.Errorf("hashes %s and %s, want those of the current content", hashes, others)
	}
	if strings.Contains(got.Annotations[appsv1beta1.AnnotationInPlace], "resizes") {
		t.Errorf("it is still on record: %s", got.Annotations[appsv1beta1.AnnotationInPlace])
	}
	in.Pod, in.Difference = got, nil
	update("after", inplace.Verdict{Way: inplace.Current})
}

// A resize that is taken back, before it is done, is undone: the Pod then has what it
// records.
func TestUpdateInPlaceUndoesAResize(t *testing.T) {
	old, now := sizedSet("1", "100m"), sizedSet("1", "9")
	pod := running(t, old)
	in := inject.UpdateInput{Pod: pod, Program: fixtures.Program(t, now.Map()), Difference: differenceOf(t, old, now), Now: updatedAt}
	step := func(write func(inject.Update) []byte, want inplace.Verdict) {
		t.Helper()
		u, err := inject.UpdateInPlace(in)
		if err != nil || u.Verdict != want || write(u) == nil {
			t.Fatalf("%+v, %v; want %+v and something to write", u, err, want)
		}
		in.Pod = patched(t, in.Pod, write(u))
	}
	record := func(u inject.Update) []byte { return u.Record }
	patch := func(u inject.Update) []byte { return u.Patch }
	step(record, inplace.Verdict{Way: inplace.Resize})
	step(patch, inplace.Verdict{Way: inplace.Resize})
	in.Pod.Status.Conditions = append(in.Pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred})
	in.Program, in.Difference = fixtures.Program(t, old.Map()), nil
	step(record, inplace.Verdict{Way: inplace.Resize})
	step(patch, inplace.Verdict{Way: inplace.Resize})
	if cpu := containerNamed(in.Pod, "log").Resources.Requests.Cpu().String(); cpu != "100m" {
		t.Errorf("cpu is %s, want 100m", cpu)
	}
	in.Pod.Status.Conditions = in.Pod.Status.Conditions[:1]
	for i := range in.Pod.Status.ContainerStatuses {
		s := &in.Pod.Status.ContainerStatuses[i]
		s.Resources = containerNamed(in.Pod, s.Name).Resources.DeepCopy()
	}
	step(patch, inplace.Verdict{Way: inplace.Images})
	if u, err := inject.UpdateInPlace(in); err != nil || u.Verdict != (inplace.Verdict{Way: inplace.Current}) {
		t.Errorf("in the end: %+v, %v", u, err)
	}
}

// A kubelet that cannot resize reports no resources. A resize that the API server
// refuses for that is taken back by a write of what the Pod records.
func TestUpdateInPlaceTakesBackAResizeThatNoNodeMade(t *testing.T) {
	old, now := sizedSet("1", "100m"), sizedSet("1", "9")
	in := inject.UpdateInput{Pod: running(t, old), Program: fixtures.Program(t, now.Map()), Difference: differenceOf(t, old, now), Now: updatedAt}
	u, err := inject.UpdateInPlace(in)
	if err != nil || u.Record == nil {
		t.Fatalf("%+v, %v; want a record", u, err)
	}
	in.Pod = patched(t, in.Pod, u.Record)
	in.Program, in.Difference = fixtures.Program(t, old.Map()), nil
	for i := range in.Pod.Status.ContainerStatuses { // it restarts
		if s := &in.Pod.Status.ContainerStatuses[i]; s.Name == "log" {
			running := s.State
			s.State = corev1.ContainerState{}
			if u, err := inject.UpdateInPlace(in); err != nil || u.Verdict != (inplace.Verdict{Way: inplace.Resize}) {
				t.Errorf("while the container does not run: %+v, %v", u, err)
			}
			s.State = running
		}
	}
	u, err = inject.UpdateInPlace(in)
	if err != nil || u.Verdict != (inplace.Verdict{Way: inplace.Images}) || u.Patch == nil {
		t.Fatalf("taken back: %+v, %v; want a write", u, err)
	}
	in.Pod = patched(t, in.Pod, u.Patch)
	if u, err := inject.UpdateInPlace(in); err != nil || u.Verdict != (inplace.Verdict{Way: inplace.Current}) || len(u.Changes) > 0 {
		t.Errorf("in the end: %+v, %v", u, err)
	}
}

func TestUpdateInPlaceDoesNotResize(t *testing.T) {
	old := sizedSet("1", "100m")
	tests := map[string]struct {
		now  *fixtures.SidecarSetBuilder
		edit func(*corev1.Container)
		want inplace.Verdict
	}{
		"what another writer has resized": {sizedSet("1", "200m"), func(c *corev1.Container) { c.Resources.Requests["cpu"] = resource.MustParse("3") }, inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ResourcesHeldElsewhere}},
		"with a restart": {sizedSet("1", "200m"), func(c *corev1.Container) {
			c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: corev1.RestartContainer}}
		}, inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ResizeRestarts}},
		"if more changes": {sizedSet("1", "200m").Env("A", "b"), nil, inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ImmutableFieldChanged}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := running(t, old)
			if tc.edit != nil {
				tc.edit(containerNamed(pod, "log"))
			}
			u, err := inject.UpdateInPlace(inject.UpdateInput{Pod: pod, Program: fixtures.Program(t, tc.now.Map()), Difference: differenceOf(t, old, tc.now), Now: updatedAt})
			if err != nil || u.Verdict != tc.want || u.Patch != nil {
				t.Errorf("%+v, %v; want %+v", u, err, tc.want)
			}
		})
	}
}

func containerNamed(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}
