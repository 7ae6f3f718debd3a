package podstate_test

import (
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// injectedPod has an app and one sidecar "log" of SidecarSet "logging".
func injectedPod(image, statusImage, imageID string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			UID: "uid", Namespace: "ns", Name: "web",
			Labels: map[string]string{"app": "web", "tier": "front"},
			Annotations: map[string]string{
				appsv1beta1.AnnotationInjectedList: "mesh,logging",
				appsv1beta1.AnnotationHash:         `{"logging":{"hash":"h1","sidecarSetName":"logging"}}`,
			},
		},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "setup", Image: "setup:1"}},
			Containers:     []corev1.Container{{Name: "app", Image: "app:1"}, {Name: "log", Image: image}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "app", Image: "docker.io/library/app:1", ImageID: "app@" + digestA},
				{Name: "log", Image: statusImage, ImageID: imageID},
			},
		},
	}
}

func TestFromPodActiveAndReady(t *testing.T) {
	tests := map[string]struct {
		edit          func(*corev1.Pod)
		active, ready bool
		phase         podstate.Phase // in the order of updates
	}{
		"running and ready":         {func(*corev1.Pod) {}, true, true, podstate.Running},
		"not ready":                 {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, true, false, podstate.Running},
		"without a Ready condition": {func(p *corev1.Pod) { p.Status.Conditions = nil }, true, false, podstate.Running},
		"pending, whatever it says": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, true, false, podstate.Pending},
		"unknown":                   {func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }, true, false, podstate.Unknown},
		"without a phase":           {func(p *corev1.Pod) { p.Status.Phase = "" }, true, false, 0},
		"succeeded": {func(p *corev1.Pod) {
			p.Status.Phase, p.Spec.RestartPolicy = corev1.PodSucceeded, corev1.RestartPolicyOnFailure
		}, false, false, 0},
		"evicted, and exited with 0": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false, false, 0},
		"deleted, and exited with 0": {func(p *corev1.Pod) {
			p.Status.Phase, p.DeletionTimestamp = corev1.PodSucceeded, &metav1.Time{Time: time.Unix(1, 0)}
		}, false, false, 0},
		"failed":                          {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false, false, 0},
		"being deleted while it is ready": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, false, false, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := injectedPod("log:1", "log:1", "log@"+digestA)
			tc.edit(pod)
			r := podstate.FromPod(pod)
			if r.Active != tc.active || r.Ready != tc.ready || r.Succeeded != (name == "succeeded") {
				t.Errorf("active, ready, succeeded = %v, %v, %v; want %v, %v", r.Active, r.Ready, r.Succeeded, tc.active, tc.ready)
			}
			if failed := name == "failed" || strings.HasPrefix(name, "evicted"); r.Failed != failed {
				t.Errorf("it has failed: %v, want %v", r.Failed, failed)
			}
			if r.Order.Phase != tc.phase {
				t.Errorf("its phase is %v, want %v", r.Order.Phase, tc.phase)
			}
			if r.FullName() != "ns/web" {
				t.Errorf("it is called %s", r.FullName())
			}
		})
	}
}

func TestFromPodKeepsLittleOfPodsWithoutSidecars(t *testing.T) {
	pod := injectedPod("log:1", "log:1", "log@"+digestA)
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	r := podstate.FromPod(pod)
	if r.Containers != nil || r.Injections != nil || !r.Facts.Mirror || !r.Active {
		t.Errorf("record = %+v", r)
	}
	if diff := cmp.Diff(labels.Set(pod.Labels), r.Labels.Labels()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

func TestRecordWorking(t *testing.T) {
	tests := map[string]struct {
		annotation, want string
		ok               bool
	}{
		"absent":     {"", "", false},
		"recorded":   {`{"mesh":"mesh-2"}`, "mesh-2", true},
		"of another": {`{"log":"log-1"}`, "", false},
		"garbage":    {`[`, "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := injectedPod("log:1", "log:1", "")
			if tc.annotation != "" {
				pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer] = tc.annotation
			}
			if got, ok := podstate.FromPod(pod).Working(podstate.MakeName("mesh")); got != podstate.MakeName(tc.want) || ok != tc.ok {
				t.Errorf("Working = %v, %v; want %q, %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestLabelSetsAreEqualExactlyIfTheirLabelsAre(t *testing.T) {
	sets := []map[string]string{
		nil, {"a": ""}, {"a": "b"}, {"a": "b", "c": "d"}, {"a": "d", "c": "b"}, {"example.com/a": "b"},
		{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "6", "g": "7", "h": "8", "i": "9", "j": "10"},
	}
	for i, a := range sets {
		if got := podstate.MakeLabelSet(a).Labels(); !maps.Equal(got, labels.Set(a)) {
			t.Errorf("%v comes back as %v", a, got)
		}
		for j, b := range sets {
			if equal := podstate.MakeLabelSet(a) == podstate.MakeLabelSet(maps.Clone(b)); equal != (i == j) {
				t.Errorf("%v == %v is %v", a, b, equal)
			}
		}
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "7": 7, "18446744073709551615": math.MaxUint64} {
		if got, err := podstate.ParseVersion(text); err != nil || got != want {
			t.Errorf("ParseVersion(%q) = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "+1", "1.5", "0x1", "1_000", " 1", "18446744073709551616", "abc"} {
		if got, err := podstate.ParseVersion(text); err == nil || got != 0 {
			t.Errorf("ParseVersion(%q) = %d, %v; want an error", text, got, err)
		}
	}
}
