package inplace_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

var (
	createdAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	updatedAt = createdAt.Add(time.Hour)
)

// update is UpdateInPlace, by default with a revision that is not compared with others.
func update(in inplace.UpdateInput) (inplace.Update, error) {
	if in.Revision == nil {
		in.Revision = inplace.RevisionOf(in.Compiled)
	}
	return inplace.UpdateInPlace(in)
}

// reset is ResetHotUpgrades.
func reset(in inplace.UpdateInput) (inplace.Update, error) {
	in.Revision = inplace.RevisionOf(in.Compiled)
	return inplace.ResetHotUpgrades(in)
}

// entryOf is the Pod's record of its last update for SidecarSet mesh.
func entryOf(t *testing.T, pod *corev1.Pod) podstate.InPlaceRecord {
	t.Helper()
	entries, err := podstate.InPlaceRecordsOf(pod)
	entry, ok := entries.Sets["mesh"]
	if err != nil || !ok {
		t.Errorf("no record of an update: %v", err)
	}
	return entry
}

// written is what the Pod says about its last update for SidecarSet mesh.
func written(pod *corev1.Pod) podstate.Written {
	return podstate.FromPod(pod).Written(podstate.MakeName("mesh"))
}

// meshSet has a sidecar of each kind, whose images end in version.
func meshSet(version string) *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("mesh").LatestRevision("mesh-"+version).
		Container("log", "log:"+version).Native("proxy", "proxy:"+version).InitContainer("setup", "setup:"+version)
}

// running is the Pod that the SidecarSets are injected into, once its kubelet runs
// it: with generation 1, a status, and what the API server fills in.
func running(t *testing.T, sets ...*fixtures.SidecarSetBuilder) *corev1.Pod {
	t.Helper()
	var sidecarSets []*inject.Compiled
	for _, set := range sets {
		sidecarSets = append(sidecarSets, fixtures.Compiled(t, set.Map()))
	}
	pod := cluster.Inject(t, fixtures.Pod("web").InitContainer("migrate", "app:v1").Container("app", "app:v1").Volume("data"), createdAt, sidecarSets...)
	pod.UID, pod.ResourceVersion = "uid-1", "41"
	cluster.Run(pod, true, createdAt)
	return pod
}

// patched is the Pod as an API server stores it after the patch.
func patched(t *testing.T, pod *corev1.Pod, patch []byte) *corev1.Pod {
	t.Helper()
	merged, err := strategicpatch.StrategicMergePatch(fixtures.Encode(t, pod), patch, &corev1.Pod{})
	if err != nil {
		t.Fatalf("applying %s: %v", patch, err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(merged, out); err != nil {
		t.Fatalf("reading the patched Pod: %v", err)
	}
	return out
}

func TestUpdateInPlaceWritesImagesAndRecords(t *testing.T) {
	pod := running(t, meshSet("1"), fixtures.SidecarSet("other").Container("tail", "tail:1"))
	// No update may change ephemeral containers, whatever their names and images.
	debug := corev1.EphemeralContainerCommon{Name: "debug", Image: "log:1", Env: []corev1.EnvVar{{Name: "IS_INJECTED", Value: "true"}}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: debug, TargetContainerName: "log"}}
	before := pod.DeepCopy()
	set := meshSet("2").PatchAnnotation("Retain", "kept", "x").PatchAnnotation("Overwrite", "app", "y")
	compiled := fixtures.Compiled(t, set.Map())
	u, err := update(inplace.UpdateInput{Pod: pod, Compiled: compiled, Previous: fixtures.Compiled(t, meshSet("1").Map()), StateBefore: podstate.WasNotReadyByUpdate, Now: updatedAt})
	if err != nil || u.Verdict.Method != inplace.Images {
		t.Fatalf("UpdateInPlace = %v, %v", u.Verdict, err)
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("the Pod was changed:\n%s", diff)
	}
	wantChanges := []podstate.Change{
		{Container: "proxy", Kind: podstate.Native, From: "proxy:1", To: "proxy:2"},
		{Container: "setup", Kind: podstate.Plain, From: "setup:1", To: "setup:2"},
		{Container: "log", Kind: podstate.Regular, From: "log:1", To: "log:2"},
	}
	if diff := cmp.Diff(wantChanges, u.Changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}

	got := patched(t, pod, u.Patch)
	want := before.DeepCopy()
	for _, containers := range [][]corev1.Container{want.Spec.InitContainers, want.Spec.Containers} {
		for i := range containers {
			switch c := &containers[i]; c.Name {
			case "proxy", "setup", "log":
				c.Image = c.Name + ":2"
			}
		}
	}
	other := podstate.ParseHashes(before.Annotations[appsv1beta1.AnnotationHash]).Keep(func(name string) bool { return name == "other" })
	want.Annotations["kept"], want.Annotations["app"] = "x", "y"
	want.Annotations[appsv1beta1.AnnotationHash] = other.With(podstate.HashRecord{
		UpdateTimestamp: updatedAt, Hash: compiled.Hash, SidecarSetName: "mesh", SidecarList: []string{"log", "proxy"}, ControllerRevision: "mesh-2",
	}).String()
	want.Annotations[appsv1beta1.AnnotationInPlaceUpdateState] = `{"mesh":{"revision":"` + compiled.Hash + `","updateTimestamp":"2026-01-02T04:04:05Z",` +
		`"lastContainerStatuses":{"log":{"imageID":"log@sha256:log:1"},"proxy":{"imageID":"proxy@sha256:proxy:1"}}}}`
	want.Annotations[appsv1beta1.AnnotationInPlace] = `{"v":1,"uid":"uid-1","sets":{"mesh":{"hash":"` + compiled.Hash + `","generation":2,"at":"2026-01-02T04:04:05Z","stateBefore":"NotReadyByUpdate","containers":{` +
		`"log":{"id":"test://log:1#uid-1/0","image":"log:1","digest":"sha256:log:1"},"proxy":{"id":"test://proxy:1#uid-1/0","image":"proxy:1","digest":"sha256:proxy:1"}}}}}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the patched Pod (-want +got):\n%s", diff)
	}

	var patch struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(u.Patch, &patch); err != nil || patch.Metadata.ResourceVersion != "41" || strings.Contains(string(u.Patch), "ephemeral") {
		t.Errorf("the patch is %s, %v; want one with the precondition 41, without ephemeral containers", u.Patch, err)
	}

	// The Pod now has the revision, and the leader that reads it next sees what was done.
	again, err := update(inplace.UpdateInput{Pod: got, Compiled: compiled, Now: updatedAt})
	if err != nil || again.Verdict.Method != inplace.Current || again.Patch != nil {
		t.Errorf("the second time: %+v, %v; want nothing to do", again, err)
	}
	if w := written(got); w.At != uint32(updatedAt.Unix()) || w.Carried != 0 || w.StateBefore != podstate.WasNotReadyByUpdate {
		t.Errorf("written %+v, want that it is not carried out", w)
	}
}

func TestUpdateInPlaceLeavesRewrittenImages(t *testing.T) {
	pod := running(t, meshSet("1"))
	containerNamed(pod, "log").Image = "mirror.example.com/log:1"
	next := fixtures.SidecarSet("mesh").Container("log", "log:1").Native("proxy", "proxy:2").InitContainer("setup", "setup:1")
	in := inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, next.Map()), Previous: fixtures.Compiled(t, meshSet("1").Map()), Now: updatedAt}
	names := func(u inplace.Update) (names []string) {
		for _, c := range u.Changes {
			names = append(names, c.Container)
		}
		return names
	}
	u, err := update(in)
	if diff := cmp.Diff([]string{"proxy"}, names(u)); diff != "" || err != nil {
		t.Errorf("changes (-want +got):\n%s%v", diff, err)
	}
	in.Previous = nil // which image is meant is then known of the current revision only
	u, err = update(in)
	if diff := cmp.Diff([]string{"proxy", "log"}, names(u)); diff != "" || err != nil {
		t.Errorf("changes without the previous revision (-want +got):\n%s%v", diff, err)
	}
}

func TestUpdateInPlaceOfAnnotationsAloneMakesNoGeneration(t *testing.T) {
	pod := running(t, meshSet("1"))
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].Name != "app" {
				containers[i].Image = containers[i].Name + ":2" // by hand
			}
		}
	}
	u, err := update(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, meshSet("2").Map()), Now: updatedAt})
	if err != nil || u.Verdict.Method != inplace.Images || len(u.Changes) != 0 {
		t.Fatalf("UpdateInPlace = %+v, %v", u, err)
	}
	got := patched(t, pod, u.Patch)
	if diff := cmp.Diff(pod.Spec, got.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if w := written(got); !w.IsCarriedOut(updatedAt.Unix()) || entryOf(t, got).Generation != 1 {
		t.Errorf("written %+v, want that it is carried out at once", w)
	}
}

func TestUpdateInPlaceJudgesTheLivePod(t *testing.T) {
	sizedMesh := func(version string) *fixtures.SidecarSetBuilder {
		return meshSet(version).With("resources", map[string]any{"requests": map[string]any{"cpu": "1"}})
	}
	tests := map[string]struct {
		edit func(*corev1.Pod)
		next *fixtures.SidecarSetBuilder
		want inplace.Verdict
	}{
		"that has finished":         {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, nil, inplace.Verdict{Method: inplace.LeaveAlone}},
		"with an unreadable record": {func(p *corev1.Pod) { p.Annotations[appsv1beta1.AnnotationInPlace] = `{"v":2}` }, nil, inplace.Verdict{Method: inplace.LeaveAlone, Reason: inplace.RecordUnreadable}},
		"without a hash":            {func(p *corev1.Pod) { delete(p.Annotations, appsv1beta1.AnnotationHashWithoutImage) }, nil, inplace.Verdict{Method: inplace.Recreate, Reason: inplace.RevisionUnknown}},
		"with another container":    {nil, meshSet("2").Container("more", "more:1"), inplace.Verdict{Method: inplace.Recreate, Reason: inplace.ImmutableFieldChanged}},
		"that is not compared yet":  {nil, sizedMesh("2"), inplace.Verdict{Method: inplace.Unknown}},
		"that can follow":           {nil, nil, inplace.Verdict{Method: inplace.Images}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := running(t, meshSet("1"))
			if tc.edit != nil {
				tc.edit(pod)
			}
			if tc.next == nil {
				tc.next = meshSet("2")
			}
			u, err := update(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, tc.next.Map()), Now: updatedAt})
			u.Verdict.Changed = 0
			if err != nil || u.Verdict != tc.want {
				t.Fatalf("verdict %+v, %v; want %+v", u.Verdict, err, tc.want)
			}
			if (u.Patch != nil) != (tc.want.Method == inplace.Images) {
				t.Errorf("patch %s", u.Patch)
			}
		})
	}
}

func TestUpdateInPlaceMergesPatchPodMetadata(t *testing.T) {
	pod := running(t, meshSet("1"))
	pod.Annotations["config"], pod.Annotations["broken"] = `{"a":1}`, `{`
	next := meshSet("2").PatchAnnotation("MergePatchJson", "config", `{"b":2}`)
	u, err := update(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, next.Map()), Now: updatedAt})
	if err != nil {
		t.Fatalf("UpdateInPlace: %v", err)
	}
	if got := patched(t, pod, u.Patch).Annotations["config"]; got != `{"a":1,"b":2}` {
		t.Errorf("config = %s", got)
	}
	next = meshSet("2").PatchAnnotation("MergePatchJson", "broken", `{"b":2}`)
	_, err = update(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, next.Map()), Now: updatedAt})
	var problem *inject.MetadataError
	if !errors.As(err, &problem) || problem.Key != "broken" {
		t.Errorf("error %v, want a MetadataError", err)
	}
}

// OpenKruise may have updated the Pod a moment ago. Then the name in the spec is that of the
// container's image only if the status shows it.
func TestUpdateInPlaceAdoptsPodsOfOpenKruise(t *testing.T) {
	for name, tc := range map[string]struct {
		statusImage, want string
	}{
		"that show their image": {"docker.io/library/log:1", "log:1"},
		"that may not run it":   {"sha256:config", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := running(t, meshSet("1"))
			pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState] = `{"mesh":{"revision":"frozen","updateTimestamp":"2025-01-02T03:04:05Z","lastContainerStatuses":{"log":{"imageID":"x"},"gone":{"imageID":"x"}}},"zoo":{"lastContainerStatuses":{}}}`
			for i := range pod.Status.ContainerStatuses {
				pod.Status.ContainerStatuses[i].Image = tc.statusImage
			}
			next := fixtures.SidecarSet("mesh").Container("log", "log:2").Native("proxy", "proxy:1").InitContainer("setup", "setup:1")
			compiled := fixtures.Compiled(t, next.Map())
			u, err := update(inplace.UpdateInput{Pod: pod, Compiled: compiled, Now: updatedAt})
			if err != nil || u.Verdict.Method != inplace.Images {
				t.Fatalf("UpdateInPlace = %+v, %v", u.Verdict, err)
			}
			got := patched(t, pod, u.Patch)
			want := map[string]podstate.Before{"log": {ID: "test://log:1#uid-1/0", Image: tc.want, Digest: "sha256:log:1"}}
			if diff := cmp.Diff(want, entryOf(t, got).Containers); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
			state := `{"mesh":{"revision":"` + compiled.Hash + `","updateTimestamp":"2026-01-02T04:04:05Z",` +
				`"lastContainerStatuses":{"gone":{"imageID":"x"},"log":{"imageID":"log@sha256:log:1"}}},"zoo":{"lastContainerStatuses":{}}}`
			if diff := cmp.Diff(state, got.Annotations[appsv1beta1.AnnotationInPlaceUpdateState]); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}
