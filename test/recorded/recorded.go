// Package recorded has what a real kubelet has published of Pods that changed: facts that the
// operator relies on. The node tier records the sequences as files in internal/podstate/testdata, where
// unit tests replay them. With a kubelet of another version, the node tier records them again and
// compares what the operator is told. Only tests import the package.
package recorded

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// Sequence is a fact about a kubelet: the versions of one Pod, as the API server had them.
type Sequence struct {
	// Fact is what the sequence shows.
	Fact string `json:"fact"`
	// Kubelet is the version of the kubelet.
	Kubelet string `json:"kubelet"`
	// Versions are those that differ in what the operator reads.
	Versions []Version `json:"versions"`
}

// Version is one version of the Pod.
type Version struct {
	// Seconds is the time since the first version.
	Seconds int64 `json:"seconds"`
	// Awaited is what the recorder waited for before it continued; "" for versions in between, which
	// another run may lack.
	Awaited string `json:"awaited,omitempty"`
	// Told is what the operator is told by the Pod.
	Told string `json:"told"`
	// Pod has only what the operator reads.
	Pod corev1.Pod `json:"pod"`
}

// begin is the time of the first version in a file.
var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// New returns the sequence of versions that were seen at these times. awaited says what was awaited
// by resourceVersion.
func New(fact, kubelet string, pods []*corev1.Pod, seen []time.Time, awaited map[string]string) *Sequence {
	s := &Sequence{Fact: fact, Kubelet: kubelet}
	shorten := newShortener(seen[0].Add(time.Second).Truncate(time.Second))
	for i, pod := range pods {
		v := Version{Seconds: int64(seen[i].Sub(seen[0]) / time.Second), Awaited: awaited[pod.ResourceVersion], Pod: shorten.pod(pod)}
		if last := len(s.Versions) - 1; last >= 0 && (v.Awaited == "" || s.Versions[last].Awaited == "") && equality.Semantic.DeepEqual(s.Versions[last].Pod, v.Pod) {
			s.Versions[last].Awaited += v.Awaited
			continue
		}
		s.Versions = append(s.Versions, v)
	}
	return s
}

// shortener leaves out what the operator does not read, and what differs in each run.
type shortener struct {
	by    time.Duration
	known map[string]string
}

func newShortener(first time.Time) *shortener {
	return &shortener{by: begin.Sub(first), known: map[string]string{}}
}

var (
	hexadecimal = regexp.MustCompile(`[0-9a-f]{64}`)
	registry    = regexp.MustCompile(`127\.0\.0\.1:\d+/`)
)

// text gives each long identifier a short name, and images the registry of examples.
func (s *shortener) text(value string) string {
	value = registry.ReplaceAllString(value, "example.com/")
	return hexadecimal.ReplaceAllStringFunc(value, func(long string) string {
		if s.known[long] == "" {
			s.known[long] = fmt.Sprint("id-", len(s.known)+1)
		}
		return s.known[long]
	})
}

func (s *shortener) time(at metav1.Time) metav1.Time {
	if at.IsZero() {
		return at
	}
	return metav1.NewTime(at.Add(s.by).UTC())
}

func (s *shortener) pod(in *corev1.Pod) (out corev1.Pod) {
	out.Name, out.UID, out.Generation = in.Name, "uid", in.Generation
	out.Spec.RestartPolicy, out.Spec.TerminationGracePeriodSeconds = in.Spec.RestartPolicy, in.Spec.TerminationGracePeriodSeconds
	containers := func(in []corev1.Container) (out []corev1.Container) {
		for _, c := range in {
			out = append(out, corev1.Container{Name: c.Name, Image: s.text(c.Image), RestartPolicy: c.RestartPolicy, Resources: c.Resources})
		}
		return out
	}
	out.Spec.InitContainers, out.Spec.Containers = containers(in.Spec.InitContainers), containers(in.Spec.Containers)
	out.Status.Phase, out.Status.ObservedGeneration = in.Status.Phase, in.Status.ObservedGeneration
	for _, c := range in.Status.Conditions {
		switch c.Type {
		case corev1.PodReady, corev1.PodResizePending, corev1.PodResizeInProgress:
			out.Status.Conditions = append(out.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: s.time(c.LastTransitionTime)})
		}
	}
	statuses := func(in []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
		for _, c := range in {
			out = append(out, corev1.ContainerStatus{
				Name: c.Name, Image: s.text(c.Image), ImageID: s.text(c.ImageID), ContainerID: s.text(c.ContainerID), RestartCount: c.RestartCount,
				Ready: c.Ready, Started: c.Started, Resources: c.Resources, AllocatedResources: c.AllocatedResources,
				State: s.state(c.State), LastTerminationState: s.state(c.LastTerminationState),
			})
		}
		return out
	}
	out.Status.InitContainerStatuses, out.Status.ContainerStatuses = statuses(in.Status.InitContainerStatuses), statuses(in.Status.ContainerStatuses)
	return out
}

func (s *shortener) state(in corev1.ContainerState) (out corev1.ContainerState) {
	if in.Running != nil {
		out.Running = &corev1.ContainerStateRunning{StartedAt: s.time(in.Running.StartedAt)}
	}
	if in.Waiting != nil {
		out.Waiting = &corev1.ContainerStateWaiting{Reason: in.Waiting.Reason}
	}
	if in.Terminated != nil {
		out.Terminated = &corev1.ContainerStateTerminated{Reason: in.Terminated.Reason, ExitCode: in.Terminated.ExitCode}
	}
	return out
}

// Read reads the sequence in a file.
func Read(file string) (*Sequence, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &Sequence{}
	if err := yaml.UnmarshalStrict(text, s); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	return s, nil
}

// Write writes a file: YAML with one line for each version.
func (s *Sequence) Write(file string) error {
	var text strings.Builder
	fmt.Fprintf(&text, "fact: %q\nkubelet: %s\nversions:\n", s.Fact, s.Kubelet)
	for _, v := range s.Versions {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "- %s\n", line)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

// set is the SidecarSet that has written the Pod.
const set = "mesh"

// Replay lets the operator look at each version, as if it had made the writes, and sets Told. It
// returns an error if the operator takes a write for carried out while an old container is shown.
func (s *Sequence) Replay() error {
	var entry *podstate.InPlaceRecord
	var resize *podstate.Resize
	var old []string // the containers before the last write of images, as name and ID
	for i := range s.Versions {
		v := &s.Versions[i]
		now := begin.Add(time.Duration(v.Seconds) * time.Second)
		if i > 0 && v.Pod.Generation > s.Versions[i-1].Pod.Generation {
			before := &s.Versions[i-1].Pod
			images, sizes := changes(before, &v.Pod)
			w := podstate.Write{Pod: before, Hash: "h", Previous: entry, Resize: resize, Changes: images, Now: now}
			if len(sizes) > 0 {
				resize = new(podstate.NewResize(w, fmt.Sprint("generation ", v.Pod.Generation), sizes))
			} else {
				entry, old = new(podstate.NewInPlaceRecord(w)), nil
				for _, c := range images {
					if _, status := podstate.ContainerOf(before, c.Container); status != nil {
						old = append(old, c.Container+" "+status.ContainerID)
					}
				}
			}
		}
		record := podstate.FromPod(annotated(&v.Pod, entry, resize))
		v.Told = tell(record)
		w := record.Written(podstate.MakeName(set))
		for _, c := range slices.Concat(v.Pod.Status.InitContainerStatuses, v.Pod.Status.ContainerStatuses) {
			if w.IsCarriedOut(now.Unix()) && c.State.Running != nil && slices.Contains(old, c.Name+" "+c.ContainerID) {
				return fmt.Errorf("version %d: taken for carried out while the old container %s is shown", i, c.Name)
			}
		}
	}
	return nil
}

// changes are the containers that get other images, and those that get other resources.
func changes(before, after *corev1.Pod) (images []podstate.Change, sizes []string) {
	for i, lists := range [][2][]corev1.Container{{before.Spec.InitContainers, after.Spec.InitContainers}, {before.Spec.Containers, after.Spec.Containers}} {
		for j := range lists[0] {
			was, is := &lists[0][j], &lists[1][j]
			kind := podstate.KindOf(after, is)
			if i == 0 {
				kind = podstate.InitKindOf(is)
			}
			if was.Image != is.Image {
				images = append(images, podstate.Change{Container: is.Name, Kind: kind, From: was.Image, To: is.Image})
			}
			if !equality.Semantic.DeepEqual(was.Resources, is.Resources) {
				sizes = append(sizes, is.Name)
			}
		}
	}
	return images, sizes
}

// annotated is the Pod with what the operator records in it.
func annotated(pod *corev1.Pod, entry *podstate.InPlaceRecord, resize *podstate.Resize) *corev1.Pod {
	var entries podstate.InPlaceRecords
	if entry != nil {
		entries = entries.With(set, *entry)
	}
	if resize != nil {
		entries = entries.WithResize(set, *resize)
	}
	out := pod.DeepCopy()
	out.Annotations = map[string]string{
		appsv1beta1.AnnotationInjectedList: set,
		appsv1beta1.AnnotationHash:         podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: set, Hash: "h"}).String(),
		appsv1beta1.AnnotationInPlace:      entries.Format(pod.UID),
	}
	return out
}

// tell says in words what a Record says about a Pod.
func tell(r *podstate.Summary) string {
	told := []string{"not Ready"}
	if r.Ready {
		told[0] = "Ready"
	}
	switch w := r.Written(podstate.MakeName(set)); {
	case w.At == 0:
	case w.Carried == 0:
		told = append(told, "not carried out")
		if w.Why != podstate.NoWait {
			told = append(told, []string{"", "waits for the node", "waits for the kill", "waits for the startup probe"}[w.Why])
		}
	default:
		is := "carried out"
		if wait := w.Carried - w.At; wait > 0 {
			is = fmt.Sprintf("carried out %d s after the write", wait)
		}
		told = append(told, is, map[bool]string{true: "up", false: "not up"}[w.Up])
	}
	if state := r.Resize(podstate.MakeName(set)); state != podstate.NoResize {
		told = append(told, []string{"", "resize open", "resize moving", "resize done", "resize put off", "resize excluded", "resize broken"}[state])
	}
	troubles := map[string]bool{}
	for _, c := range r.Containers {
		if c.Trouble != 0 {
			troubles[c.Trouble.String()] = true
		}
	}
	return strings.Join(append(told, slices.Sorted(maps.Keys(troubles))...), ", ")
}

// Story is what the operator is told by the versions that were awaited. It does not depend on how fast
// a machine is.
func (s *Sequence) Story() (story []string) {
	for _, v := range s.Versions {
		if v.Awaited != "" {
			story = append(story, v.Awaited+": "+v.Told)
		}
	}
	return story
}
