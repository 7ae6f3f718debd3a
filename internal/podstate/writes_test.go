package podstate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

var sentAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// writtenPod was updated by the operator: sidecar log of SidecarSet logging.
func writtenPod(digestBefore string) *corev1.Pod {
	pod := injectedPod("log:2", "log:2", "log@"+digestB)
	pod.Generation, pod.Status.ObservedGeneration = 2, 2
	log := &pod.Status.ContainerStatuses[1]
	log.ContainerID, log.Ready, log.RestartCount = "log-2", true, 1
	log.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(sentAt.Add(time.Second))}
	pod.Annotations[appsv1beta1.AnnotationHash] = `{"logging":{"updateTimestamp":"2026-01-02T03:04:05Z","hash":"h2"}}`
	pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState] = lastImageID("log@" + digestB) // by this annotation it has not landed
	pod.Annotations[appsv1beta1.AnnotationInPlace] = podstate.Entries{}.With("logging", podstate.Entry{
		Generation: 2, At: sentAt, WasReady: true, Containers: map[string]podstate.Before{"log": {ID: "log-1", Digest: digestBefore}},
	}).With("gone", podstate.Entry{At: sentAt}).Format(pod.UID)
	pod.Status.ContainerStatuses[1].Image = "docker.io/library/log:2"
	return pod
}

func TestRecordFollowsTheOperatorsOwnRecord(t *testing.T) {
	logging, log := podstate.MakeName("logging"), podstate.MakeName("log")
	another := func(edit func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Image = "other:1"; edit(p) }
	}
	tests := map[string]struct {
		edit                  func(*corev1.Pod)
		written, back, landed bool
		waits                 bool
	}{
		"back":   {func(*corev1.Pod) {}, true, true, true, false},
		"moving": {func(p *corev1.Pod) { p.Status.ObservedGeneration = 1 }, true, false, false, false},
		"OpenKruise updated it since": {another(func(p *corev1.Pod) {
			p.Annotations[appsv1beta1.AnnotationHash] = `{"logging":{"updateTimestamp":"2026-01-02T03:04:06Z","hash":"h3"}}`
		}), false, false, false, true},
		"the record is of another Pod": {another(func(p *corev1.Pod) { p.UID = "another" }), false, false, false, true},
		"the record is unreadable":     {another(func(p *corev1.Pod) { p.Annotations[appsv1beta1.AnnotationInPlace] = "{" }), false, false, false, true},
		"there is no record":           {another(func(p *corev1.Pod) { delete(p.Annotations, appsv1beta1.AnnotationInPlace) }), false, false, false, true},
		"there is none, and not ready": {another(func(p *corev1.Pod) {
			delete(p.Annotations, appsv1beta1.AnnotationInPlace)
			p.Status.ContainerStatuses[1].Ready = false
		}), false, false, false, false},
		"the hash record has no time": {func(p *corev1.Pod) { p.Annotations[appsv1beta1.AnnotationHash] = `{"logging":"h2"}` }, true, true, true, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := writtenPod(digestA)
			tc.edit(pod)
			r, now := podstate.FromPod(pod), sentAt.Unix()+1
			if w := r.Written(logging); (w.At != 0) != tc.written || w.Disturbed != tc.written || w.Back(now) != tc.back {
				t.Errorf("written %+v", w)
			}
			if landed, waits := r.Landed(logging, log, now), r.Waits(logging, log, now); landed != tc.landed || waits != tc.waits {
				t.Errorf("landed %v, waits %v; want %v, %v", landed, waits, tc.landed, tc.waits)
			}
			if r.RecordUnreadable != strings.Contains(name, "unreadable") {
				t.Errorf("RecordUnreadable = %v", r.RecordUnreadable)
			}
			if w := r.Written(podstate.MakeName("gone")); w != (podstate.Written{}) {
				t.Errorf("of a SidecarSet that is not in the injected list it knows %+v", w)
			}
		})
	}
}

func TestRecordChangesWithoutAnEvent(t *testing.T) {
	logging, log := podstate.MakeName("logging"), podstate.MakeName("log")
	r := podstate.FromPod(writtenPod(digestB)) // a retag
	at, want := r.ChangesAt(sentAt.Unix()), sentAt.Unix()+30+10
	if at != want || r.Landed(logging, log, at-1) || !r.Landed(logging, log, at) || r.ChangesAt(at) != 0 {
		t.Errorf("changes at %d and then at %d; want %d and 0", at, r.ChangesAt(at), want)
	}

	pod := injectedPod("log@"+digestA, "log", "log@"+digestB) // of OpenKruise
	pod.CreationTimestamp, pod.Status.ContainerStatuses[1].Ready = metav1.NewTime(sentAt), true
	r = podstate.FromPod(pod)
	at, want = r.ChangesAt(sentAt.Unix()), sentAt.Unix()+30+300
	if at != want || !r.Waits(logging, log, at-1) || r.Waits(logging, log, at) || r.ChangesAt(at) != 0 {
		t.Errorf("of OpenKruise: changes at %d; want %d", at, want)
	}
}

// While a resize is under way, the Pod is not back, and counts if the resize or the update before
// it disturbs it.
func TestAResizeComesBeforeAnUpdate(t *testing.T) {
	logging := podstate.MakeName("logging")
	deferred := corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred}
	for name, tc := range map[string]struct {
		edit   func(*corev1.Pod)
		counts bool
		state  podstate.ResizeState // after ten minutes
	}{
		"not observed": {func(p *corev1.Pod) { p.Generation = 3 }, true, podstate.ResizeUnanswered},
		"deferred": {func(p *corev1.Pod) {
			p.Generation, p.Status.ObservedGeneration = 3, 3
			p.Status.Conditions = append(p.Status.Conditions, deferred)
		}, false, podstate.ResizePutOff},
		"not sent":                         {func(*corev1.Pod) {}, false, podstate.ResizeOpen},
		"not sent, and the update goes on": {func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Ready = false }, true, podstate.ResizeOpen},
	} {
		t.Run(name, func(t *testing.T) {
			pod := writtenPod(digestA)
			tc.edit(pod)
			entries, err := podstate.EntriesOf(pod)
			if err != nil {
				t.Fatal(err)
			}
			at := sentAt.Add(time.Minute)
			pod.Annotations[appsv1beta1.AnnotationInPlace] = entries.WithResize("logging", podstate.Resize{Hash: "w2", Generation: 3, At: at, WasReady: true, Containers: []string{"log"}}).Format(pod.UID)
			r, now := podstate.FromPod(pod), at.Unix()+1
			if w := r.Written(logging); w.BackAt != 0 || w.Counts(now) != tc.counts {
				t.Errorf("written %+v", w)
			}
			if in, _ := r.Injection(logging); in.ResizeTo != podstate.MakeName("w2") || r.Resize(logging, now+600) != tc.state {
				t.Errorf("%+v, state %d", in, r.Resize(logging, now+600))
			}
			if next := r.ChangesAt(now); (next == at.Unix()+300) != (tc.state == podstate.ResizeUnanswered) {
				t.Errorf("changes at %d", next)
			}
		})
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
	for name, want := range map[string]podstate.Kind{"setup": podstate.Plain, "proxy": podstate.Native, "app": podstate.Regular, "log": podstate.Regular} {
		if c, ok := r.Container(podstate.MakeName(name)); !ok || c.Kind != want || c.Ready != (name == "proxy") {
			t.Errorf("%s is %+v", name, c)
		}
	}
	// By the digest, which OpenKruise does not look at in init containers.
	if r.Landed(podstate.MakeName("mesh"), podstate.MakeName("proxy"), 0) || !r.Waits(podstate.MakeName("mesh"), podstate.MakeName("proxy"), 0) {
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
	update := podstate.UpdateRecord{SidecarSet: "log", Revision: "h2", At: sentAt.In(time.FixedZone("", 3600)), ImageIDs: map[string]string{"b": "id-b", "a": ""}}
	const own = `"log":{"revision":"h2","updateTimestamp":"2026-01-02T03:04:05Z","lastContainerStatuses":{"a":{},"b":{"imageID":"id-b"}`
	tests := map[string]struct{ value, want string }{
		"none yet":                  {``, `{` + own + `}}}`},
		"null":                      {`null`, `{` + own + `}}}`},
		"garbage is replaced":       {`{"x":`, `{` + own + `}}}`},
		"a record that is renewed":  {`{"log":{"revision":"h1","updateTimestamp":"2020-01-01T00:00:00Z","lastContainerStatuses":{"b":{"imageID":"old"}}}}`, `{` + own + `}}}`},
		"others stay as they are":   {`{"zoo":{"x":[1,2]},"log":null,"ant":{"lastContainerStatuses":{"c":{"imageID":"i"}}}}`, `{"ant":{"lastContainerStatuses":{"c":{"imageID":"i"}}},` + own + `}},"zoo":{"x":[1,2]}}`},
		"its other containers stay": {`{"log":{"lastContainerStatuses":{"c":{"imageID":"i","x":1},"a":{"imageID":"old"}},"nextContainerImages":{"x":"y"}}}`, `{` + own + `,"c":{"imageID":"i","x":1}},"nextContainerImages":{"x":"y"}}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, podstate.RecordUpdate(tc.value, update)); diff != "" {
				t.Errorf("annotation (-want +got):\n%s", diff)
			}
		})
	}
}

func TestForgetUpdates(t *testing.T) {
	of := func(name string) bool { return name == "log" }
	tests := map[string]struct{ value, want string }{
		"what is about others stays": {`{ "a": {"x":[1, 2]}, "log":{}, "b\u0061":{"lastContainerStatuses":{"c":{"imageID":"i"}}} }`,
			`{"a":{"x":[1,2]},"ba":{"lastContainerStatuses":{"c":{"imageID":"i"}}}}`},
		"nothing to forget":    {`{"a":{}}`, `{"a":{}}`},
		"one that stood twice": {`{"log":{},"log":{"x":1}}`, `{}`},
		"garbage":              {`garbage`, `{}`},
		"a list":               {`[]`, `{}`},
		"null":                 {`null`, `{}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := podstate.ForgetUpdates(tc.value, of); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
