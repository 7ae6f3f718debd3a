package inplace_test

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

// revisionOf is a revision that is compared with recorded ones.
func revisionOf(t *testing.T, now *fixtures.SidecarSetBuilder, olds ...*fixtures.SidecarSetBuilder) *inplace.Revision {
	t.Helper()
	specOf := func(set *fixtures.SidecarSetBuilder) map[string]any {
		spec, err := inject.SpecOf(set.Map())
		if err != nil {
			t.Fatal(err)
		}
		return spec
	}
	d := inplace.Differences{}
	for _, old := range olds {
		d[podstate.MakeName(fixtures.Compiled(t, old.Map()).HashWithoutImage)] = inplace.Compare(specOf(old), specOf(now))
	}
	return inplace.RevisionOf(fixtures.Compiled(t, now.Map())).With(d)
}

// Resources first, then images with both hashes, whichever leader looks at the Pod
// in between.
func TestUpdateInPlaceResizes(t *testing.T) {
	old, now := sizedSet("1", "100m"), sizedSet("2", "200m")
	pod := running(t, old)
	log := containerNamed(pod, "log")
	compiled := fixtures.Compiled(t, now.Map())
	in := inplace.UpdateInput{Pod: pod, Compiled: compiled, Revision: revisionOf(t, now, old), Now: updatedAt}
	step := func(what string, want inplace.Verdict) inplace.Update {
		t.Helper()
		u, err := update(in)
		u.Verdict.Changed = 0
		if err != nil || u.Verdict != want {
			t.Fatalf("%s: %+v, %v; want %+v", what, u, err, want)
		}
		return u
	}

	u := step("before", inplace.Verdict{Method: inplace.Resize})
	if u.Patch != nil || u.Record == nil {
		t.Fatalf("patch %s, record %s; want the record first", u.Patch, u.Record)
	}
	pod = patched(t, pod, u.Record)
	in.Pod = pod
	u = step("on record", inplace.Verdict{Method: inplace.Resize})
	if want := `{"metadata":{"resourceVersion":"41"},"spec":{"containers":[{"name":"log","resources":{"requests":{"cpu":"200m"}}}]}}`; string(u.Patch) != want || u.Record != nil {
		t.Fatalf("patch %s\nwant %s", u.Patch, want)
	}

	in.Pod = patched(t, pod, u.Patch)
	if diff := cmp.Diff(pod.Annotations, in.Pod.Annotations); diff != "" {
		t.Fatalf("a resize has no annotations:\n%s", diff)
	}
	in.Pod.Generation = 2
	status := &in.Pod.Status
	status.ObservedGeneration = 1
	if u := step("before the kubelet knows", inplace.Verdict{Method: inplace.Resize, Moves: true}); u.Patch != nil {
		t.Errorf("patch %s", u.Patch)
	}
	status.ObservedGeneration = 2
	status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible, Message: "too large"})
	if u := step("while it is infeasible", inplace.Verdict{Method: inplace.Recreate, Reason: inplace.ResizeInfeasible}); u.Message != "too large" || u.Patch != nil {
		t.Errorf("message %q, patch %s", u.Message, u.Patch)
	}
	status.Conditions = status.Conditions[:1]
	statusOf(in.Pod, "log").Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("200m")}}

	u = step("done", inplace.Verdict{Method: inplace.Images})
	got := patched(t, in.Pod, u.Patch)
	if image := containerNamed(got, "log").Image; image != "log:2" || log.Image != "log:1" {
		t.Errorf("image %s", image)
	}
	hashes := podstate.ParseHashes(got.Annotations[appsv1beta1.AnnotationHash])
	others := podstate.ParseHashes(got.Annotations[appsv1beta1.AnnotationHashWithoutImage])
	if hashes.Hash("mesh") != compiled.Hash || others.Hash("mesh") != compiled.HashWithoutImage {
		t.Errorf("hashes %s and %s, want those of the current revision", hashes, others)
	}
	if strings.Contains(got.Annotations[appsv1beta1.AnnotationInPlace], "resizes") {
		t.Errorf("it is still on record: %s", got.Annotations[appsv1beta1.AnnotationInPlace])
	}
	in.Pod = got
	step("after", inplace.Verdict{Method: inplace.Current})
}

func TestUpdateInPlaceDoesNotResize(t *testing.T) {
	old := sizedSet("1", "100m")
	tests := map[string]struct {
		now  *fixtures.SidecarSetBuilder
		edit func(*corev1.Container)
		want inplace.Verdict
	}{
		"what another writer has resized": {sizedSet("1", "200m"), func(c *corev1.Container) { c.Resources.Requests["cpu"] = resource.MustParse("3") }, inplace.Verdict{Method: inplace.Recreate, Reason: inplace.ResourcesHeldElsewhere}},
		"with a restart": {sizedSet("1", "200m"), func(c *corev1.Container) {
			c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: corev1.RestartContainer}}
		}, inplace.Verdict{Method: inplace.Recreate, Reason: inplace.ResizeRestarts}},
		"if more changes": {sizedSet("1", "200m").Env("A", "b"), nil, inplace.Verdict{Method: inplace.Recreate, Reason: inplace.ImmutableFieldChanged}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := running(t, old)
			if tc.edit != nil {
				tc.edit(containerNamed(pod, "log"))
			}
			u, err := update(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, tc.now.Map()), Revision: revisionOf(t, tc.now, old), Now: updatedAt})
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

func statusOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == name {
			return s
		}
	}
	return nil
}
