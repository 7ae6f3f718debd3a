package podstate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

var sentAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// markedPod was updated by the operator: sidecar log of SidecarSet logging.
func markedPod(digestBefore string) *corev1.Pod {
	pod := injectedPod("log:2", "log:2", "log@"+digestB)
	pod.Generation, pod.Status.ObservedGeneration = 2, 2
	log := &pod.Status.ContainerStatuses[1]
	log.ContainerID, log.Ready = "log-2", true
	log.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(sentAt.Add(time.Second))}
	pod.Annotations[appsv1beta1.AnnotationHash] = `{"logging":{"updateTimestamp":"2026-01-02T03:04:05Z","hash":"h2"}}`
	pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState] = lastImageID("log@" + digestB) // by this annotation it has not landed
	pod.Annotations[appsv1beta1.AnnotationInPlace] = inplace.Marks{}.With("logging", inplace.Mark{
		Generation: 2, At: sentAt, WasReady: true, Containers: map[string]inplace.Before{"log": {ID: "log-1", Digest: digestBefore}},
	}).With("gone", inplace.Mark{At: sentAt}).Format(pod.UID)
	pod.Status.ContainerStatuses[1].Image = "other:1"
	return pod
}

func TestRecordFollowsTheOperatorsOwnRecord(t *testing.T) {
	logging, log := podstate.MakeName("logging"), podstate.MakeName("log")
	tests := map[string]struct {
		edit   func(*corev1.Pod)
		state  inplace.State
		landed bool
		waits  bool
	}{
		"back":   {func(*corev1.Pod) {}, inplace.Back, true, false},
		"moving": {func(p *corev1.Pod) { p.Status.ObservedGeneration = 1 }, inplace.Moving, false, false},
		"OpenKruise updated it since": {func(p *corev1.Pod) {
			p.Annotations[appsv1beta1.AnnotationHash] = `{"logging":{"updateTimestamp":"2026-01-02T03:04:06Z","hash":"h3"}}`
		}, inplace.Unmarked, false, true},
		"the record is of another Pod": {func(p *corev1.Pod) { p.UID = "another" }, inplace.Unmarked, false, true},
		"the record is unreadable":     {func(p *corev1.Pod) { p.Annotations[appsv1beta1.AnnotationInPlace] = "{" }, inplace.Unmarked, false, true},
		"there is no record":           {func(p *corev1.Pod) { delete(p.Annotations, appsv1beta1.AnnotationInPlace) }, inplace.Unmarked, false, true},
		"there is none, and not ready": {func(p *corev1.Pod) {
			delete(p.Annotations, appsv1beta1.AnnotationInPlace)
			p.Status.ContainerStatuses[1].Ready = false
		}, inplace.Unmarked, false, false},
		"the hash record has no time": {func(p *corev1.Pod) { p.Annotations[appsv1beta1.AnnotationHash] = `{"logging":"h2"}` }, inplace.Back, true, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := markedPod(digestA)
			tc.edit(pod)
			r := podstate.FromPod(pod)
			if p := r.Progress(logging); p.State() != tc.state || p.WasReady != (tc.state != inplace.Unmarked) {
				t.Errorf("progress %+v, want state %d", p, tc.state)
			}
			if r.Landed(logging, log) != tc.landed || r.Waits(logging, log) != tc.waits {
				t.Errorf("landed %v, waits %v; want %v, %v", r.Landed(logging, log), r.Waits(logging, log), tc.landed, tc.waits)
			}
			if r.RecordUnreadable != strings.Contains(name, "unreadable") {
				t.Errorf("RecordUnreadable = %v", r.RecordUnreadable)
			}
			if p := r.Progress(podstate.MakeName("gone")); p != (inplace.Progress{}) {
				t.Errorf("of a SidecarSet that is not in the injected list it knows %+v", p)
			}
		})
	}
}

func TestRecordSettlesWithoutAnEvent(t *testing.T) {
	logging, log := podstate.MakeName("logging"), podstate.MakeName("log")
	r := podstate.FromPod(markedPod(digestB)) // a retag
	at, ok := r.SettlesAt()
	if want := sentAt.Add((1 + 30 + 10 + 1) * time.Second); !ok || !at.Equal(want) {
		t.Fatalf("settles at %v, %v; want %v", at, ok, want)
	}
	if r.Landed(logging, log) || r.At(at.Add(-time.Second)) != r {
		t.Error("it has settled early")
	}
	later := r.At(at)
	if !later.Landed(logging, log) || later.Progress(logging).InFlight() || r.Landed(logging, log) {
		t.Errorf("later %+v, and before %+v", later.Progress(logging), r.Progress(logging))
	}
	if _, ok := later.SettlesAt(); ok || later.At(at) != later || later.Bytes() != r.Bytes() {
		t.Error("it settles twice")
	}
}

func TestRecordHasWhatARolloutNeeds(t *testing.T) {
	pod := injectedPod("log:1", "log:1", "log@"+digestA)
	pod.CreationTimestamp = metav1.Unix(100, 0)
	pod.Spec.NodeName = "n"
	always := corev1.ContainerRestartPolicyAlways
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: "proxy", Image: "proxy@" + digestB, RestartPolicy: &always})
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: "setup", RestartCount: 9}, {Name: "proxy", RestartCount: 4, ImageID: "proxy@" + digestA, Ready: true},
	}
	pod.Status.ContainerStatuses[0].RestartCount, pod.Status.ContainerStatuses[1].RestartCount = 2, 3
	pod.Status.Conditions[0].LastTransitionTime = metav1.Unix(200, 0)
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: appsv1beta1.PodConditionUpgradable, Message: `{"logging":true,"mesh":false,"more":1}`})
	pod.Annotations[appsv1beta1.AnnotationHashWithoutImage] = `{"logging":{"hash":"w1"}}`
	r := podstate.FromPod(pod)
	if diff := cmp.Diff(podstate.Order{Assigned: true, Phase: podstate.Running, ReadySince: 200, Created: 100, Restarts: 3, NativeRestarts: 4}, r.Order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	logging, _ := r.Injection(podstate.MakeName("logging"))
	mesh, _ := r.Injection(podstate.MakeName("mesh"))
	if logging.HashWithoutImage != podstate.MakeName("w1") || logging.Upgradable != podstate.IsUpgradable || mesh.HashWithoutImage != 0 || mesh.Upgradable != podstate.NotUpgradable {
		t.Errorf("logging %+v, mesh %+v", logging, mesh)
	}
	for name, want := range map[string]inplace.Kind{"setup": inplace.Plain, "proxy": inplace.Native, "app": inplace.Regular, "log": inplace.Regular} {
		if c, ok := r.Container(podstate.MakeName(name)); !ok || c.Kind != want || c.Ready != (name == "proxy") {
			t.Errorf("%s is %+v", name, c)
		}
	}
	// By the digest, which OpenKruise does not look at in init containers.
	if r.Landed(podstate.MakeName("mesh"), podstate.MakeName("proxy")) || !r.Waits(podstate.MakeName("mesh"), podstate.MakeName("proxy")) {
		t.Error("a native sidecar with another digest than its image has landed")
	}
}

func TestOrderOfPods(t *testing.T) {
	tests := map[string]struct {
		edit func(*corev1.Pod)
		want podstate.Order
	}{
		"running":         {func(*corev1.Pod) {}, podstate.Order{Phase: podstate.Running}},
		"pending":         {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, podstate.Order{Phase: podstate.Pending}},
		"unknown":         {func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }, podstate.Order{Phase: podstate.Unknown}},
		"without a phase": {func(p *corev1.Pod) { p.Status.Phase = "" }, podstate.Order{}},
		"not ready since": {func(p *corev1.Pod) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.Unix(5, 0)
		}, podstate.Order{Phase: podstate.Running}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := injectedPod("log:1", "log:1", "log@"+digestA)
			tc.edit(pod)
			if diff := cmp.Diff(tc.want, podstate.FromPod(pod).Order); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAMalformedUpgradableConditionIsIgnored(t *testing.T) {
	for name, message := range map[string]string{
		"empty": "", "a text": "all good", "a list": "[]", "half": `{"logging":tr`, "null": `{"logging":null}`, "a text in it": `{"logging":"true"}`,
		"257 SidecarSets": members(257, func(int) string { return "true" }), "100 KiB": `{"logging":true}` + strings.Repeat(" ", 100<<10),
	} {
		t.Run(name, func(t *testing.T) {
			pod := injectedPod("log:1", "log:1", "")
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: appsv1beta1.PodConditionUpgradable, Message: message})
			if in, ok := podstate.FromPod(pod).Injection(podstate.MakeName("logging")); !ok || in.Upgradable != podstate.Unsaid {
				t.Errorf("%+v, %v", in, ok)
			}
		})
	}
}

func TestRecordUpdate(t *testing.T) {
	update := podstate.UpdateRecord{SidecarSet: "log", Revision: "h2", At: sentAt.In(time.FixedZone("", 3600)), ImageIDs: []podstate.ContainerImageID{{"b", "id-b"}, {"a", ""}}}
	const own = `"log":{"revision":"h2","updateTimestamp":"2026-01-02T03:04:05Z","lastContainerStatuses":{"b":{"imageID":"id-b"},"a":{}`
	tests := map[string]struct{ value, want string }{
		"none yet":                  {``, `{` + own + `}}}`},
		"null":                      {`null`, `{` + own + `}}}`},
		"garbage is replaced":       {`{"x":`, `{` + own + `}}}`},
		"a mark that is refreshed":  {`{"log":{"revision":"h1","updateTimestamp":"2020-01-01T00:00:00Z","lastContainerStatuses":{"b":{"imageID":"old"}}}}`, `{` + own + `}}}`},
		"others stay as they are":   {`{"zoo":{"x":[1, 2]},"log":null,"ant":{"lastContainerStatuses":{"c":{"imageID":"i"}}}}`, `{"zoo":{"x":[1, 2]},"ant":{"lastContainerStatuses":{"c":{"imageID":"i"}}},` + own + `}}}`},
		"its other containers stay": {`{"log":{"lastContainerStatuses":{"c":{"imageID":"i"},"a":{"imageID":"old"}},"nextContainerImages":{"x":"y"}}}`, `{` + own + `,"c":{"imageID":"i"}},"nextContainerImages":{"x":"y"}}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, podstate.RecordUpdate(tc.value, update)); diff != "" {
				t.Errorf("annotation (-want +got):\n%s", diff)
			}
		})
	}
}
