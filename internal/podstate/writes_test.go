package podstate_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

var sentAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// writtenPod was updated by the operator: sidecar log of SidecarSet logging.
func writtenPod() *corev1.Pod {
	pod := injectedPod("log:2", "docker.io/library/log:2", "log@"+digestB)
	pod.Generation, pod.Status.ObservedGeneration = 2, 2
	log := &pod.Status.ContainerStatuses[1]
	log.ContainerID, log.Ready, log.RestartCount = "log-2", true, 1
	log.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(sentAt.Add(time.Second))}
	pod.Annotations[appsv1beta1.AnnotationHash] = `{"logging":{"updateTimestamp":"2026-01-02T03:04:05Z","hash":"h2"}}`
	pod.Annotations[appsv1beta1.AnnotationInPlace] = podstate.InPlaceRecords{}.With("logging", podstate.InPlaceRecord{
		Hash: "h2", Generation: 2, At: sentAt, StateBefore: podstate.WasNotReadyByUpdate, Containers: map[string]podstate.Before{"log": {ID: "log-1", Image: "log:1", Digest: digestA}},
	}).With("gone", podstate.InPlaceRecord{At: sentAt}).Format(pod.UID)
	return pod
}

var carriedOut = podstate.Written{
	At: uint32(sentAt.Unix()), Carried: uint32(sentAt.Unix()), Started: uint32(sentAt.Unix()) + 1, StateBefore: podstate.WasNotReadyByUpdate, Up: true,
}

func TestRecordFollowsTheOperatorsOwnRecord(t *testing.T) {
	hash := func(value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[appsv1beta1.AnnotationHash] = value }
	}
	record := func(edit func(string) string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations[appsv1beta1.AnnotationInPlace] = edit(p.Annotations[appsv1beta1.AnnotationInPlace])
		}
	}
	underWay := carriedOut
	underWay.Carried = 0
	var none podstate.Written
	tests := map[string]struct {
		edit func(*corev1.Pod)
		want podstate.Written
	}{
		"carried out":                  {func(*corev1.Pod) {}, carriedOut},
		"under way":                    {func(p *corev1.Pod) { p.Status.ObservedGeneration = 1 }, underWay},
		"OpenKruise updated it since":  {hash(`{"logging":{"updateTimestamp":"2026-01-02T03:04:06Z","hash":"h3"}}`), none},
		"in the same second":           {hash(`{"logging":{"updateTimestamp":"2026-01-02T03:04:05Z","hash":"h3"}}`), none},
		"with the same revision":       {hash(`{"logging":{"updateTimestamp":"2026-01-02T03:04:06Z","hash":"h2"}}`), none},
		"the operator wrote once more": {hash(`{"logging":{"updateTimestamp":"2026-01-02T03:03:05Z","hash":"h2"}}`), carriedOut},
		"by a clock that is late":      {hash(`{"logging":{"updateTimestamp":"2026-01-02T02:04:05Z","hash":"h3"}}`), none},
		"the hash record has no time":  {hash(`{"logging":"h2"}`), carriedOut},
		"it has another revision":      {hash(`{"logging":"h1"}`), none},
		"the hash record is damaged":   {hash(`{"logging":`), none},
		"the record is of another Pod": {func(p *corev1.Pod) { p.UID = "another" }, none},
		"the record is unreadable":     {record(func(string) string { return "{" }), none},
		"the record of another form":   {record(func(v string) string { return strings.Replace(v, `"v":1`, `"v":2`, 1) }), none},
		"an unreadable state before":   {record(func(v string) string { return strings.Replace(v, `"NotReadyByUpdate"`, `"Maybe"`, 1) }), none},
		"there is no record":           {func(p *corev1.Pod) { delete(p.Annotations, appsv1beta1.AnnotationInPlace) }, none},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := writtenPod()
			tc.edit(pod)
			r := podstate.FromPod(pod)
			if diff := cmp.Diff(tc.want, r.Written(podstate.MakeName("logging"))); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
			if unreadable := strings.Contains(name, "unreadable") || strings.Contains(name, "form"); r.RecordUnreadable != unreadable {
				t.Errorf("RecordUnreadable = %v", r.RecordUnreadable)
			}
			if w := r.Written(podstate.MakeName("gone")); w != none {
				t.Errorf("of a SidecarSet that is not in the injected list it knows %+v", w)
			}
		})
	}
}

func TestRecordChangesWithoutAnEvent(t *testing.T) {
	logging := podstate.MakeName("logging")
	if at := podstate.FromPod(writtenPod()).ChangesAt(sentAt.Unix()); at != 0 {
		t.Errorf("what is carried out changes at %d", at)
	}
	pod := writtenPod()
	pod.Status.ContainerStatuses[1].ImageID = "log@" + digestA // a retag
	r := podstate.FromPod(pod)
	at, want := r.ChangesAt(sentAt.Unix()), sentAt.Unix()+30+10
	if at != want || r.ChangesAt(at) != 0 {
		t.Errorf("changes at %d and then at %d; want %d and 0", at, r.ChangesAt(at), want)
	}
	if w := r.Written(logging); w.IsCarriedOut(at-1) || !w.IsCarriedOut(at) {
		t.Errorf("written %+v, want that it changes at %d", w, at)
	}
}

// A resize on which the kubelet works is not carried out until it is done, whatever else the Pod
// has. One that the kubelet has put off or refused leaves the containers as they are.
func TestAResizeComesBeforeAnUpdate(t *testing.T) {
	logging := podstate.MakeName("logging")
	at := sentAt.Add(time.Minute)
	pending := func(kind corev1.PodConditionType, reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Generation, p.Status.ObservedGeneration = 3, 3
			p.Spec.Containers[1].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("2")}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: strings.Repeat("é", 150)})
		}
	}
	resizing := podstate.Written{At: uint32(at.Unix()), Started: uint32(at.Unix())}
	unseen, down := resizing, resizing
	unseen.Why, down.StateBefore = podstate.WaitsForNode, podstate.WasNotReady
	for name, tc := range map[string]struct {
		edit     func(*corev1.Pod)
		wasReady bool
		want     podstate.Written
		state    podstate.ResizeState
	}{
		"not sent":               {func(*corev1.Pod) {}, true, carriedOut, podstate.ResizeOpen},
		"not observed":           {func(p *corev1.Pod) { p.Generation = 3 }, true, unseen, podstate.ResizeMoving},
		"put off":                {pending(corev1.PodResizePending, corev1.PodReasonDeferred), true, carriedOut, podstate.ResizePutOff},
		"infeasible":             {pending(corev1.PodResizePending, corev1.PodReasonInfeasible), true, carriedOut, podstate.ResizeExcluded},
		"under way":              {pending(corev1.PodResizeInProgress, ""), true, resizing, podstate.ResizeMoving},
		"under way, it was down": {pending(corev1.PodResizeInProgress, ""), false, down, podstate.ResizeMoving},
		"failed":                 {pending(corev1.PodResizeInProgress, corev1.PodReasonError), true, resizing, podstate.ResizeBroken},
		"done": {func(p *corev1.Pod) {
			p.Generation, p.Status.ObservedGeneration = 3, 3
			p.Status.ContainerStatuses[1].Resources = &corev1.ResourceRequirements{}
		}, true, carriedOut, podstate.ResizeDone},
		"another SidecarSet resizes": {func(p *corev1.Pod) { p.Annotations[appsv1beta1.AnnotationInjectedList] = "mesh" }, true, podstate.Written{}, podstate.NoResize},
	} {
		t.Run(name, func(t *testing.T) {
			pod := writtenPod()
			tc.edit(pod)
			entries, err := podstate.InPlaceRecordsOf(pod)
			if err != nil {
				t.Fatal(err)
			}
			pod.Annotations[appsv1beta1.AnnotationInPlace] = entries.WithResize("logging", podstate.Resize{
				Hash: "w2", Before: "w1", Generation: 3, At: at, WasReady: tc.wasReady, Containers: []string{"log"},
			}).Format(pod.UID)
			r := podstate.FromPod(pod)
			if diff := cmp.Diff(tc.want, r.Written(logging)); diff != "" || r.Resize(logging) != tc.state {
				t.Errorf("state %d, written (-want +got):\n%s", r.Resize(logging), diff)
			}
			in, known := r.Injection(logging)
			if known && (in.ResizeTo != podstate.MakeName("w2") || in.ResizeBefore != podstate.MakeName("w1")) {
				t.Errorf("it is being resized to %+v", in)
			}
			if len(r.ResizeMessage) > 200 || !utf8.ValidString(r.ResizeMessage) || (r.ResizeMessage != "") != (len(pod.Status.Conditions) > 1) {
				t.Errorf("message %q", r.ResizeMessage)
			}
		})
	}
}

func TestRecordHasWhatARolloutNeeds(t *testing.T) {
	pod := injectedPod("log:1", "log:1", "log@"+digestA)
	pod.CreationTimestamp = metav1.Unix(100, 0)
	pod.Spec.NodeName, pod.Spec.TerminationGracePeriodSeconds = "n", new(int64(7))
	pod.OwnerReferences = []metav1.OwnerReference{{UID: "other"}, {UID: "rs", Controller: new(true)}}
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
	if diff := cmp.Diff(podstate.Order{Assigned: true, Phase: podstate.Running, Created: 100, Restarts: 3, NativeRestarts: 4}, r.Order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if r.Since != 200 || r.Grace != 7 || r.Node != podstate.MakeName("n") || r.Controller != podstate.MakeName("rs") {
		t.Errorf("record %+v", r)
	}
	logging, _ := r.Injection(podstate.MakeName("logging"))
	mesh, _ := r.Injection(podstate.MakeName("mesh"))
	if logging.Hash != podstate.MakeName("h1") || mesh.Hash != 0 {
		t.Errorf("hashes of logging and mesh are %v and %v", logging.Hash, mesh.Hash)
	}
	if logging.HashWithoutImage != podstate.MakeName("w1") || logging.Upgradable != podstate.IsUpgradable || mesh.HashWithoutImage != 0 || mesh.Upgradable != podstate.NotUpgradable {
		t.Errorf("logging %+v, mesh %+v", logging, mesh)
	}
	for name, want := range map[string]podstate.Kind{"setup": podstate.Plain, "proxy": podstate.Native, "app": podstate.Regular, "log": podstate.Regular} {
		if c, ok := r.Container(podstate.MakeName(name)); !ok || c.Kind != want || c.Ready != (name == "proxy") {
			t.Errorf("%s is %+v", name, c)
		}
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
