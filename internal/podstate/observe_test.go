package podstate

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var sent = time.Unix(1_000_000, 0).UTC()

const second = 1_000_000 // the time of the write

// updated is a Pod that is back since 20 seconds after the write: its log sidecar
// runs as log-2, from another image.
func updated() *corev1.Pod {
	status := func(name, image, id string, restarts int32, started time.Time) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: name, Image: image, ContainerID: id, ImageID: name + "@sha256:" + image, Ready: true, Started: new(true), RestartCount: restarts,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}},
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Generation: 2},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "proxy", Image: "proxy:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}},
			Containers:     []corev1.Container{{Name: "app", Image: "app:1"}, {Name: "log", Image: "log:2"}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, ObservedGeneration: 2,
			Conditions:            []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(sent.Add(21 * time.Second))}},
			InitContainerStatuses: []corev1.ContainerStatus{status("proxy", "proxy:1", "proxy-1", 0, sent.Add(-time.Hour))},
			ContainerStatuses: []corev1.ContainerStatus{
				status("app", "app:1", "app-1", 0, sent.Add(-time.Hour)), status("log", "docker.io/library/log:2", "log-2", 1, sent.Add(20*time.Second)),
			},
		},
	}
}

// The completion rule of docs/design/0009, part by part. Times count from the write.
func TestObserve(t *testing.T) {
	const never = 0
	type want struct {
		started, back uint32 // seconds after the write, plus one; 0: not
		ack           bool
		why           Wait
	}
	log := func(p *corev1.Pod) *corev1.ContainerStatus { return &p.Status.ContainerStatuses[1] }
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	old := func(p *corev1.Pod) {
		*log(p) = corev1.ContainerStatus{
			Name: "log", Image: "log:1", ImageID: "log@sha256:log:1", ContainerID: "log-1", Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(sent.Add(-time.Hour))}},
		}
	}
	and := func(edits ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, edit := range edits {
				edit(p)
			}
		}
	}
	unobserved := func(p *corev1.Pod) { p.Status.ObservedGeneration = 1 }
	silent := func(p *corev1.Pod) { p.Status.ObservedGeneration = 0 }
	reverted := func(p *corev1.Pod) { p.Spec.Containers[1].Image = "log:1" }
	notReady := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	grace := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
	}
	entry := func(edit func(*Before)) map[string]Before {
		before := Before{ID: "log-1", Image: "log:1", Digest: "sha256:log:1"}
		edit(&before)
		return map[string]Before{"log": before}
	}
	back := want{21, 1, true, NoWait}
	tests := map[string]struct {
		edit       func(*corev1.Pod)
		containers map[string]Before
		want       want
	}{
		"all is as it has to be":                 {nil, nil, back},
		"no container had to change":             {nil, map[string]Before{}, want{1, 1, true, NoWait}},
		"a container that the Pod lacks":         {nil, map[string]Before{"gone": {ID: "x"}}, want{1, 1, true, NoWait}},
		"the old one, the kubelet does not know": {and(old, unobserved), nil, want{0, never, false, WaitsForNode}},
		"the old one, a kubelet that is silent":  {and(old, silent), nil, want{0, never, false, WaitsForNode}},
		"the old one, before it is killed":       {old, nil, want{0, never, true, WaitsForKill}},
		"the new one, a status of before":        {unobserved, nil, want{21, never, true, WaitsForReady}},
		"a kubelet that is silent":               {silent, nil, back},
		"no status of the container":             {func(p *corev1.Pod) { p.Status.ContainerStatuses = p.Status.ContainerStatuses[:1] }, nil, want{0, never, true, NoWait}},
		"the old one ended, and a pull":          {and(old, func(p *corev1.Pod) { log(p).State, log(p).Ready = waiting, false }), nil, want{0, never, true, NoWait}},
		"the new one crashed":                    {func(p *corev1.Pod) { log(p).State, log(p).Ready = waiting, false }, nil, want{1, never, true, NoWait}},
		"it was restarted since":                 {func(p *corev1.Pod) { log(p).RestartCount = 2 }, nil, want{1, 1, true, NoWait}},
		"a restartCount alone":                   {func(p *corev1.Pod) { log(p).ContainerID = "log-1" }, nil, back},
		"the container is not ready":             {func(p *corev1.Pod) { log(p).Ready = false }, nil, want{21, never, true, WaitsForReady}},
		"the container is not started":           {func(p *corev1.Pod) { *log(p).Started = false }, nil, want{21, never, true, WaitsForReady}},
		"the Pod is not Ready":                   {notReady, nil, want{21, never, true, WaitsForReady}},
		"the Pod has no condition":               {func(p *corev1.Pod) { p.Status.Conditions = nil }, nil, want{21, never, true, WaitsForReady}},
		"the Pod is pending":                     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, nil, want{21, never, true, WaitsForReady}},
		"a native sidecar in its startup": {func(p *corev1.Pod) { *p.Status.InitContainerStatuses[0].Started = false }, map[string]Before{"proxy": {ID: "proxy-1", Image: "proxy:0"}},
			want{0, never, true, WaitsForStartupProbe}},
		"a native sidecar from before": {nil, map[string]Before{"proxy": {ID: "proxy-1", Image: "proxy:0"}}, want{0, never, true, WaitsForKill}},
		"one of two is the old one":    {nil, map[string]Before{"proxy": {ID: "proxy-1", Image: "proxy:0"}, "log": {ID: "log-1"}}, want{0, never, true, WaitsForKill}},

		"the image of a write in between": {func(p *corev1.Pod) { p.Spec.Containers[1].Image = "log:3" }, nil, want{21, 41, true, NoWait}},
		"the digest that the spec asks for": {func(p *corev1.Pod) {
			p.Spec.Containers[1].Image, log(p).Image = "log@sha256:x", "y"
			log(p).ImageID = "z@sha256:x"
		}, nil, back},
		"the digest from before":           {nil, entry(func(b *Before) { b.Digest = "sha256:docker.io/library/log:2" }), want{21, 41, true, NoWait}},
		"the digest from before, no grace": {grace(0), entry(func(b *Before) { b.Digest = "sha256:docker.io/library/log:2" }), want{21, 11, true, NoWait}},
		"the digest from before, an hour":  {grace(3600), entry(func(b *Before) { b.Digest = "sha256:docker.io/library/log:2" }), want{21, 41, true, NoWait}},
		"no digest from before":            {nil, entry(func(b *Before) { b.Digest = "" }), back},

		"changed back before it ran":             {and(old, reverted), nil, want{1, 1, true, NoWait}},
		"changed back, a kubelet that is silent": {and(old, reverted, silent), nil, want{1, 41, false, WaitsForNode}},
		"changed back, and the kubelet acts":     {and(old, reverted, unobserved), nil, want{1, never, false, WaitsForNode}},
		"a webhook took the image out": {and(old, reverted, func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 1, 1 }), nil,
			want{1, 1, true, NoWait}},
		"changed back, as far as the status says": {and(old, reverted), entry(func(b *Before) { b.Image = "" }), want{1, 1, true, NoWait}},
		"perhaps changed back":                    {and(old, grace(100)), entry(func(b *Before) { b.Image = "" }), want{1, 41, true, WaitsForKill}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := updated()
			e := Entry{Generation: 2, At: sent, WasReady: true, Containers: tc.containers}
			if tc.containers == nil {
				e.Containers = entry(func(*Before) {})
			}
			if tc.edit != nil {
				tc.edit(pod)
			}
			w := e.Observe(pod)
			after := func(at uint32) uint32 {
				if at == 0 {
					return 0
				}
				return at - second + 1
			}
			got := want{after(w.Started), after(w.BackAt), w.Acknowledged, w.Why}
			if got != tc.want || w.At != second || !w.Disturbed {
				t.Errorf("%+v, want %+v (%+v)", got, tc.want, w)
			}
		})
	}
}

// What is recorded of a Pod that is written again.
func TestNewEntry(t *testing.T) {
	logWrite := []Change{{Container: "log", Kind: Regular, From: "log:2", To: "log:3"}}
	first := Entry{Generation: 2, At: sent, WasReady: true, Containers: map[string]Before{"log": {ID: "log-1", Image: "log:1", Digest: "sha256:d"}}}
	ran := Before{ID: "log-2", Restarts: 1, Image: "log:2", Digest: "sha256:docker.io/library/log:2"}
	unknown := ran
	unknown.Image = ""
	now := sent.Add(time.Minute)
	notReady := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	tests := map[string]struct {
		edit func(*corev1.Pod)
		w    Write
		want Entry
	}{
		"the first write":                 {nil, Write{Changes: logWrite}, Entry{WasReady: true, Containers: map[string]Before{"log": ran}}},
		"of a Pod that was not available": {notReady, Write{Changes: logWrite}, Entry{Containers: map[string]Before{"log": ran}}},
		"of a Pod that still counts":      {notReady, Write{Changes: logWrite, Previous: &first}, Entry{WasReady: true, Containers: map[string]Before{"log": ran}}},
		"of a Pod that broke much later": {func(p *corev1.Pod) { notReady(p); p.Status.Conditions[0].LastTransitionTime.Time = sent.Add(time.Hour) },
			Write{Changes: logWrite, Previous: &first}, Entry{Containers: map[string]Before{"log": ran}}},
		"an image that is certain after OpenKruise": {nil, Write{Changes: logWrite, Uncertain: true}, Entry{WasReady: true, Containers: map[string]Before{"log": ran}}},
		"an image that is not":                      {func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Image = "alias" }, Write{Changes: logWrite, Uncertain: true}, Entry{WasReady: true, Containers: map[string]Before{"log": unknown}}},
		"another write before the kubelet acts": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].ContainerID, p.Status.ContainerStatuses[1].RestartCount = "log-1", 0
		}, Write{Changes: logWrite, Previous: &first}, Entry{WasReady: true, Containers: first.Containers}},
		"another write after it acts":               {nil, Write{Changes: logWrite, Previous: &first}, Entry{WasReady: true, Containers: map[string]Before{"log": ran}}},
		"another write, of an image not certain":    {func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Image = "alias" }, Write{Changes: logWrite, Previous: &first}, Entry{WasReady: true, Containers: map[string]Before{"log": unknown}}},
		"a plain init container":                    {nil, Write{Changes: []Change{{Container: "setup", Kind: Plain}}}, Entry{Containers: map[string]Before{}}},
		"the hash alone goes on with what it began": {nil, Write{Previous: &first}, Entry{Generation: -1, Began: sent, WasReady: true, Containers: first.Containers}},
		"the hash after a resize":                   {nil, Write{Resize: &Resize{At: sent, WasReady: true}}, Entry{Generation: -1, Began: sent, WasReady: true, Containers: map[string]Before{}}},
		"a container that has not restarted stays": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].ContainerID, p.Status.ContainerStatuses[1].RestartCount = "log-1", 0
		},
			Write{Previous: &first, Changes: []Change{{Container: "proxy", Kind: Native, From: "proxy:1", To: "proxy:2"}}},
			Entry{WasReady: true, Containers: map[string]Before{"log": first.Containers["log"], "proxy": {ID: "proxy-1", Image: "proxy:1", Digest: "sha256:proxy:1"}}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := updated()
			if tc.edit != nil {
				tc.edit(pod)
			}
			tc.w.Pod, tc.w.Now = pod, now
			tc.want.Generation, tc.want.At = tc.want.Generation+3, now
			if diff := cmp.Diff(tc.want, NewEntry(tc.w)); diff != "" {
				t.Errorf("entry (-want +got):\n%s", diff)
			}
		})
	}
}

// Running-pods-facts §2: the conditions of a resize, when it is done, and when it takes a place.
func TestObserveResize(t *testing.T) {
	condition := func(kind corev1.PodConditionType, reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "m"})
		}
	}
	status := func(p *corev1.Pod) *corev1.ContainerStatus { return &p.Status.ContainerStatuses[0] }
	old := func(p *corev1.Pod) { status(p).Resources.Requests["cpu"] = resource.MustParse("1") }
	both := func(a, b func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { a(p); b(p) }
	}
	const huge = "1e900000001" // to compare it takes hours
	tests := map[string]struct {
		edit   func(*corev1.Pod)
		want   ResizeState
		counts bool
	}{
		"done":                                  {func(*corev1.Pod) {}, ResizeDone, true},
		"not written":                           {func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 2, 2 }, ResizeOpen, false},
		"not observed":                          {func(p *corev1.Pod) { p.Status.ObservedGeneration = 2 }, ResizeMoving, true},
		"an old kubelet":                        {func(p *corev1.Pod) { p.Status.ObservedGeneration = 0 }, ResizeDone, true},
		"deferred":                              {both(old, condition(corev1.PodResizePending, corev1.PodReasonDeferred)), ResizePutOff, false},
		"infeasible":                            {both(old, condition(corev1.PodResizePending, corev1.PodReasonInfeasible)), ResizeExcluded, false},
		"that of another container is deferred": {condition(corev1.PodResizePending, corev1.PodReasonDeferred), ResizeDone, true},
		"in progress":                           {condition(corev1.PodResizeInProgress, ""), ResizeMoving, true},
		"failed":                                {condition(corev1.PodResizeInProgress, corev1.PodReasonError), ResizeBroken, true},
		"the old limit":                         {func(p *corev1.Pod) { status(p).Resources.Limits["memory"] = resource.MustParse("1Gi") }, ResizeMoving, true},
		"the old request":                       {old, ResizeMoving, true},
		"a rounded request": {func(p *corev1.Pod) {
			status(p).Resources.Requests["cpu"] = resource.MustParse("2001m")
			status(p).AllocatedResources = corev1.ResourceList{"cpu": resource.MustParse("2")}
		}, ResizeDone, true},
		"a node that reports none": {func(p *corev1.Pod) { status(p).Resources = nil }, ResizeMoving, true},
		"a container not reported": {func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, ResizeMoving, true},
		"a value that takes hours": {func(p *corev1.Pod) { status(p).Resources.Requests["cpu"] = resource.MustParse(huge) }, ResizeMoving, true},
		"other resources of its own": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["ephemeral-storage"] = resource.MustParse("1Gi")
		}, ResizeDone, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			has := corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("2")}, Limits: corev1.ResourceList{"memory": resource.MustParse("2Gi")}}
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Resources: *has.DeepCopy()}}}}
			pod.Generation, pod.Status.ObservedGeneration, pod.Status.Phase = 3, 3, corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "log", Resources: &has}}
			tc.edit(pod)
			z := Resize{Generation: 3, At: sent, WasReady: true, Containers: []string{"log"}}
			got, message := z.Observe(pod)
			if got != tc.want || (message == "m") != (len(pod.Status.Conditions) > 1 && tc.want != ResizeDone) {
				t.Errorf("state %d, %q; want %d", got, message, tc.want)
			}
			if w := z.written(pod); w.Counts(second+500) != tc.counts || w.Back(second+5000) {
				t.Errorf("%+v counts: %v", w, w.Counts(second+500))
			}
		})
	}
}
