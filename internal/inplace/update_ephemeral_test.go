package inplace_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inplace"
)

// debugged is a Pod with ephemeral containers, as the API server stores it: with a member
// that this build does not know. No update in place may change a byte of them.
type debugged struct {
	generations int64 // made by writes
	t           *testing.T
	pod         *corev1.Pod
	stored      []byte
	before      []byte
}

func debug(t *testing.T, pod *corev1.Pod) *debugged {
	t.Helper()
	d := &debugged{t: t}
	for _, c := range []corev1.EphemeralContainerCommon{
		// The SidecarSets of these tests have images of this name, and get a plain init
		// container of this name.
		{Name: "debug", Image: "log:1", Env: []corev1.EnvVar{{Name: "IS_INJECTED", Value: "true"}}},
		{Name: "shell", Image: "mesh:v1", Command: []string{"sh"}},
	} {
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: c, TargetContainerName: "log"})
		pod.Status.EphemeralContainerStatuses = append(pod.Status.EphemeralContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "docker.io/library/log@sha256:log:1", ContainerID: "containerd://" + c.Name,
		})
	}
	var object map[string]any
	if err := json.Unmarshal(fixtures.Encode(t, pod), &object); err != nil {
		t.Fatal(err)
	}
	for _, c := range object["spec"].(map[string]any)["ephemeralContainers"].([]any) {
		c.(map[string]any)["memberOfTheNextVersion"] = map[string]any{"image": "log:1"}
	}
	d.read(fixtures.Encode(t, object))
	d.before = ephemeral(t, d.stored)
	return d
}

func (d *debugged) read(stored []byte) {
	d.t.Helper()
	d.stored, d.pod = stored, &corev1.Pod{}
	if err := json.Unmarshal(stored, d.pod); err != nil {
		d.t.Fatal(err)
	}
}

// ephemeral is the JSON of a stored Pod's ephemeral containers and of their statuses.
func ephemeral(t *testing.T, stored []byte) []byte {
	t.Helper()
	var pod struct {
		Spec struct {
			EphemeralContainers json.RawMessage `json:"ephemeralContainers"`
		} `json:"spec"`
		Status struct {
			EphemeralContainerStatuses json.RawMessage `json:"ephemeralContainerStatuses"`
		} `json:"status"`
	}
	if err := json.Unmarshal(stored, &pod); err != nil {
		t.Fatal(err)
	}
	return append(pod.Spec.EphemeralContainers, pod.Status.EphemeralContainerStatuses...)
}

// write makes the API server apply a patch, and checks the ephemeral containers.
func (d *debugged) write(what string, patch []byte) {
	d.t.Helper()
	if patch == nil {
		d.t.Fatalf("%s: nothing is written", what)
	}
	stored, err := strategicpatch.StrategicMergePatch(d.stored, patch, &corev1.Pod{})
	if err != nil {
		d.t.Fatalf("%s: applying %s: %v", what, patch, err)
	}
	if got := ephemeral(d.t, stored); len(d.before) == 0 || !bytes.Equal(d.before, got) {
		d.t.Errorf("%s: the ephemeral containers are\n%s\nand were\n%s", what, got, d.before)
	}
	if bytes.Contains(patch, []byte("ephemeral")) || bytes.Contains(patch, []byte(`"debug"`)) || bytes.Contains(patch, []byte(`"shell"`)) {
		d.t.Errorf("%s: the patch is about ephemeral containers: %s", what, patch)
	}
	d.read(stored)
	if bytes.Contains(patch, []byte(`"spec":`)) {
		d.generations++
	}
	d.pod.Generation += d.generations
}

func TestUpdateInPlaceLeavesEphemeralContainers(t *testing.T) {
	step := func(t *testing.T, d *debugged, in inplace.UpdateInput, want inplace.Way) inplace.Update {
		t.Helper()
		in.Pod, in.Now = d.pod, updatedAt
		u, err := update(in)
		if err != nil || u.Verdict.Way != want {
			t.Fatalf("UpdateInPlace = %+v, %v; want the way %d", u.Verdict, err, want)
		}
		return u
	}
	t.Run("images", func(t *testing.T) {
		d := debug(t, running(t, fixtures.SidecarSet("mesh").Container("log", "log:1")))
		// Without native sidecars, the hash does not cover init containers.
		next := fixtures.Program(t, fixtures.SidecarSet("mesh").Container("log", "log:2").InitContainer("debug", "setup:2").Map())
		u := step(t, d, inplace.UpdateInput{Program: next}, inplace.Images)
		if len(u.Changes) != 1 {
			t.Errorf("changes %+v, want one", u.Changes)
		}
		d.write("images", u.Patch)
	})
	t.Run("resize", func(t *testing.T) {
		old, now := sizedSet("1", "100m"), sizedSet("2", "200m")
		d := debug(t, running(t, old))
		in := inplace.UpdateInput{Program: fixtures.Program(t, now.Map()), Content: contentOf(t, now, old)}
		d.write("the record", step(t, d, in, inplace.Resize).Record)
		d.write("the resize", step(t, d, in, inplace.Resize).Patch)
		d.pod.Status.ObservedGeneration = d.pod.Generation
		for i := range d.pod.Status.ContainerStatuses {
			s := &d.pod.Status.ContainerStatuses[i]
			s.Resources = containerNamed(d.pod, s.Name).Resources.DeepCopy()
		}
		d.write("the images", step(t, d, in, inplace.Images).Patch)
	})
	t.Run("hot upgrade", func(t *testing.T) {
		d := debug(t, running(t, hotSidecar("mesh:v1")))
		in := inplace.UpdateInput{Program: fixtures.Program(t, hotSidecar("mesh:v2").Map())}
		d.write("the upgrade", step(t, d, in, inplace.Images).Patch)
		kubeletRuns(d.pod, "mesh-2")
		in.Pod, in.Now = d.pod, updatedAt.Add(time.Hour)
		u, err := reset(in)
		if err != nil {
			t.Fatal(err)
		}
		d.write("the reset", u.Patch)
	})
}
