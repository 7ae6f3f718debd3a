package podstate

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

var sent = time.Unix(1_000_000, 0).UTC()

const second = 1_000_000 // the time of the write

// updated is a Pod whose update is carried out since 20 seconds after the write: its log sidecar
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

// When a write is carried out, rule by rule. Times count from the write.
func TestObserve(t *testing.T) {
	type want struct {
		carried, started int64 // -1: not
		up               bool
		why              Wait
	}
	log := func(p *corev1.Pod) *corev1.ContainerStatus { return &p.Status.ContainerStatuses[1] }
	old := func(p *corev1.Pod) {
		*log(p) = corev1.ContainerStatus{
			Name: "log", Image: "log:1", ImageID: "log@sha256:log:1", ContainerID: "log-1", Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(sent.Add(-time.Hour))}},
		}
	}
	ended := func(p *corev1.Pod) {
		log(p).State, log(p).Ready = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}, false
	}
	and := func(edits ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, edit := range edits {
				edit(p)
			}
		}
	}
	observes := func(generation int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.ObservedGeneration = generation }
	}
	unobserved, silent := observes(1), observes(0)
	asks := func(image string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[1].Image = image }
	}
	reverted := asks("log:1")
	grace := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
	}
	entry := func(edit func(*Before)) map[string]Before {
		before := Before{ID: "log-1", Image: "log:1", Digest: "sha256:log:1"}
		edit(&before)
		return map[string]Before{"log": before}
	}
	retag := entry(func(b *Before) { b.Digest = "sha256:docker.io/library/log:2" })
	uncertain := entry(func(b *Before) { b.Image = "" })
	const never = -1
	done := want{0, 20, true, NoWait}
	tests := map[string]struct {
		edit       func(*corev1.Pod)
		containers map[string]Before
		want       want
	}{
		// The generation.
		"all is as it has to be":               {nil, nil, done},
		"a later generation":                   {func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 7, 7 }, nil, done},
		"a later generation, not observed":     {func(p *corev1.Pod) { p.Generation = 7 }, nil, done},
		"an earlier generation":                {unobserved, nil, want{never, 20, true, NoWait}},
		"a kubelet that reports none":          {silent, nil, done},
		"no container had to change":           {nil, map[string]Before{}, want{0, 0, true, NoWait}},
		"no container, an earlier generation":  {unobserved, map[string]Before{}, want{never, 0, true, NoWait}},
		"a container that the Pod lacks":       {nil, map[string]Before{"gone": {ID: "x"}}, want{0, 0, true, NoWait}},
		"a webhook took the image out":         {and(old, reverted, func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 1, 1 }), nil, want{0, 0, true, NoWait}},
		"the old one, an earlier generation":   {and(old, unobserved), nil, want{never, 0, false, WaitsForNode}},
		"the old one, a kubelet without any":   {and(old, silent), nil, want{never, 0, false, WaitsForNode}},
		"the old one, before it is killed":     {old, nil, want{never, 0, false, WaitsForKill}},
		"the old one ended, and a pull":        {and(old, ended), nil, want{never, 0, false, NoWait}},
		"the old one ended, the generation no": {and(old, ended, unobserved), nil, want{never, 0, false, NoWait}},

		// Started again.
		"no status of the container":   {func(p *corev1.Pod) { p.Status.ContainerStatuses = p.Status.ContainerStatuses[:1] }, nil, want{never, 0, false, NoWait}},
		"the new one has ended since":  {ended, nil, want{0, 0, false, NoWait}},
		"it was restarted since":       {func(p *corev1.Pod) { log(p).RestartCount = 2 }, nil, want{0, 0, true, NoWait}},
		"a restartCount alone":         {func(p *corev1.Pod) { log(p).ContainerID = "log-1" }, nil, done},
		"no ID was reported before":    {func(p *corev1.Pod) { log(p).RestartCount = 0 }, entry(func(b *Before) { b.ID = "" }), done},
		"a start before the write":     {func(p *corev1.Pod) { log(p).State.Running.StartedAt.Time = sent.Add(-time.Minute) }, nil, want{0, 0, true, NoWait}},
		"the container is not ready":   {func(p *corev1.Pod) { log(p).Ready = false }, nil, want{0, 20, false, NoWait}},
		"the container is not started": {func(p *corev1.Pod) { *log(p).Started = false }, nil, want{0, 20, false, NoWait}},
		"the Pod is not Ready":         {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, nil, done},
		"one of two is the old one":    {nil, map[string]Before{"proxy": {ID: "proxy-1", Image: "proxy:0"}, "log": {ID: "log-1"}}, want{never, 20, false, WaitsForKill}},
		"a native sidecar in its startup": {func(p *corev1.Pod) { *p.Status.InitContainerStatuses[0].Started = false }, map[string]Before{"proxy": {ID: "proxy-0", Image: "proxy:0"}},
			want{0, 0, false, WaitsForStartupProbe}},

		// The image that was written, or time.
		"the image of a write in between":           {asks("log:3"), nil, want{40, 20, true, NoWait}},
		"the image of a write in between has ended": {and(asks("log:3"), ended), nil, want{40, 0, false, NoWait}},
		"the digest that the spec asks for": {func(p *corev1.Pod) {
			asks("log@sha256:x")(p)
			log(p).Image, log(p).ImageID = "y", "z@sha256:x"
		}, nil, done},
		"another digest than the spec asks for": {asks("log@sha256:x"), nil, want{40, 20, true, NoWait}},
		"the digest from before":                {grace(7), retag, want{17, 20, true, NoWait}},
		"the digest from before, no grace":      {grace(0), retag, want{10, 20, true, NoWait}},
		"the digest from before, an hour":       {grace(3600), retag, want{40, 20, true, NoWait}},
		"no digest from before":                 {nil, entry(func(b *Before) { b.Digest = "" }), done},

		// Nothing was to restart.
		"changed back before it ran":               {and(old, reverted), nil, want{0, 0, true, NoWait}},
		"changed back, a kubelet without any":      {and(old, reverted, silent), nil, want{40, 0, true, WaitsForNode}},
		"changed back, an earlier generation":      {and(old, reverted, unobserved), nil, want{never, 0, true, WaitsForNode}},
		"changed back, and it has ended":           {and(old, reverted, ended), nil, want{never, 0, false, NoWait}},
		"changed back, as far as the status says":  {and(old, reverted), uncertain, want{0, 0, true, NoWait}},
		"perhaps changed back":                     {and(old, grace(100)), uncertain, want{40, 0, true, WaitsForKill}},
		"perhaps changed back, an earlier one":     {and(old, unobserved), uncertain, want{never, 0, false, WaitsForNode}},
		"changed back, and it crashed before":      {and(old, reverted, func(p *corev1.Pod) { log(p).ContainerID = "log-2" }), nil, want{0, 0, true, NoWait}},
		"changed back, but it was replaced before": {and(reverted, grace(5)), nil, want{40, 20, true, NoWait}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := updated()
			e := InPlaceRecord{Hash: "h", Generation: 2, At: sent, StateBefore: WasNotReadyByUpdate, Containers: tc.containers}
			if tc.containers == nil {
				e.Containers = entry(func(*Before) {})
			}
			if tc.edit != nil {
				tc.edit(pod)
			}
			w := e.Observe(pod)
			got := want{int64(w.Carried) - second, int64(w.Started) - second, w.Up, w.Why}
			if w.Carried == 0 {
				got.carried = never
			}
			if got != tc.want || w.At != second || w.StateBefore != WasNotReadyByUpdate {
				t.Errorf("%+v, want %+v (%+v)", got, tc.want, w)
			}
			for now := int64(second); now < second+60; now++ {
				if is := tc.want.carried != never && now >= second+tc.want.carried; w.IsCarriedOut(now) != is {
					t.Fatalf("%d s after the write it is carried out: %v", now-second, !is)
				}
			}
		})
	}
}

// Users, kubelets and mirrors name images in different ways.
func TestTheStatusShowsTheWrittenImage(t *testing.T) {
	const a, b = "sha256:aaaa", "sha256:bbbb"
	tests := map[string]struct {
		image, statusImage, imageID string
		shows                       bool
	}{
		"the same name":                         {"log:2", "log:2", "log@" + a, true},
		"a runtime's full name":                 {"log:2", "docker.io/library/log:2", "log@" + a, true},
		"the registry's old name":               {"docker.io/me/log:2", "index.docker.io/me/log:2", "", true},
		"a missing tag is latest":               {"log", "docker.io/library/log:latest", "", true},
		"a registry without a dot":              {"localhost/log:2", "localhost/log:2", "", true},
		"another tag":                           {"log:2", "log:1", "log@" + a, false},
		"another registry":                      {"log:2", "example.com/log:2", "log@" + a, false},
		"a bare ID":                             {"log:2", a, a, false},
		"a digest":                              {"log@" + a, "log@" + a, "log@" + a, true},
		"a digest by the registry's full name":  {"log@" + a, "log:1", "docker.io/library/log@" + a, true},
		"a digest of a mirror":                  {"log@" + a, "log:1", "mirror.example.com/cache/log@" + a, true},
		"a digest with a tag before it":         {"log:1@" + a, "log:1", "docker-pullable://log@" + a, true},
		"a digest in the name, and a bare ID":   {"log@" + a, "log@" + a, b, true},
		"a digest and a bare ID alone":          {"log@" + a, "log:1", a, false},
		"a digest and no ID":                    {"log@" + a, "", "", false},
		"another digest":                        {"log@" + b, "log@" + a, "log@" + a, false},
		"another digest behind the same tag":    {"log:1@" + b, "log:1", "log@" + a, false},
		"a name that is too long to be a name":  {"log:2", "docker.io/library/log:2" + strings.Repeat("x", 2000), "", false},
		"a name that has to be taken literally": {strings.Repeat("x", 2000), strings.Repeat("x", 2000), "", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := updated()
			pod.Spec.Containers[1].Image = tc.image
			pod.Status.ContainerStatuses[1].Image, pod.Status.ContainerStatuses[1].ImageID = tc.statusImage, tc.imageID
			e := InPlaceRecord{Generation: 2, At: sent, Containers: map[string]Before{"log": {ID: "log-1"}}}
			if w := e.Observe(pod); w.IsCarriedOut(second) != tc.shows || !w.IsCarriedOut(second+40) {
				t.Errorf("carried out from %d on, want that it shows at once: %v", int64(w.Carried)-second, tc.shows)
			}
		})
	}
}

// The clocks of others may say anything.
func TestTimesBeyondAllBounds(t *testing.T) {
	for year, want := range map[int]uint32{1: second, 1969: second, 2106: 4291747200, 2107: math.MaxUint32, 9999: math.MaxUint32} {
		pod, e := updated(), InPlaceRecord{Generation: 2, At: sent, Containers: map[string]Before{"log": {ID: "log-1", Image: "log:1"}}}
		at := metav1.NewTime(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
		pod.Status.ContainerStatuses[1].State.Running.StartedAt = at
		if w := e.Observe(pod); w.Started != want || w.Carried != second {
			t.Errorf("a start in %d: %+v, want %d", year, w, want)
		}
		pod.Annotations = map[string]string{appsv1beta1.AnnotationInjectedList: "mesh"}
		pod.Status.Conditions[0].LastTransitionTime = at
		if r := FromPod(pod); r.Since != want && (r.Since != 0 || want != second) {
			t.Errorf("Ready since %d: %d", year, r.Since)
		}
		e.At = at.Time
		pod.Spec.Containers[1].Image = "log:3"
		if w := e.Observe(pod); int64(w.Carried) < int64(w.At) || w.Carried == 0 || w.Started < w.At {
			t.Errorf("a write in %d: %+v", year, w)
		}
	}
}

// What is recorded of a Pod that is written again.
func TestNewInPlaceRecord(t *testing.T) {
	logWrite := []Change{{Container: "log", Kind: Regular, From: "log:2", To: "log:3"}}
	proxyWrite := []Change{{Container: "proxy", Kind: Native, From: "proxy:1", To: "proxy:2"}}
	first := InPlaceRecord{Generation: 2, At: sent, StateBefore: WasNotReady, Containers: map[string]Before{"log": {ID: "log-1", Image: "log:1", Digest: "sha256:d"}}}
	ran := Before{ID: "log-2", Restarts: 1, Image: "log:2", Digest: "sha256:docker.io/library/log:2"}
	unknown := ran
	unknown.Image = ""
	proxy := Before{ID: "proxy-1", Image: "proxy:1", Digest: "sha256:proxy:1"}
	alias := func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Image = "alias" }
	another := func(p *corev1.Pod) { p.Annotations = map[string]string{appsv1beta1.AnnotationInPlaceUpdateState: "{}"} }
	notActed := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[1].ContainerID, p.Status.ContainerStatuses[1].RestartCount = "log-1", 0
	}
	unreported := func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }
	tests := map[string]struct {
		edit func(*corev1.Pod)
		w    Write
		want map[string]Before
	}{
		"the first write":                         {nil, Write{Changes: logWrite}, map[string]Before{"log": ran}},
		"the first write, by an alias":            {alias, Write{Changes: logWrite}, map[string]Before{"log": ran}},
		"a container that is not reported":        {unreported, Write{Changes: logWrite}, map[string]Before{"log": {}}},
		"an image that is certain after a write":  {another, Write{Changes: logWrite}, map[string]Before{"log": ran}},
		"an image that is not":                    {func(p *corev1.Pod) { another(p); alias(p) }, Write{Changes: logWrite}, map[string]Before{"log": unknown}},
		"a plain init container":                  {nil, Write{Changes: []Change{{Container: "setup", Kind: Plain}}}, map[string]Before{}},
		"another write before the kubelet acts":   {notActed, Write{Changes: logWrite, Previous: &first}, first.Containers},
		"another write after it acts":             {nil, Write{Changes: logWrite, Previous: &first}, map[string]Before{"log": ran}},
		"another write, of an image not certain":  {alias, Write{Changes: logWrite, Previous: &first}, map[string]Before{"log": unknown}},
		"a container that has not acted stays":    {notActed, Write{Changes: proxyWrite, Previous: &first}, map[string]Before{"log": first.Containers["log"], "proxy": proxy}},
		"one that has is forgotten":               {nil, Write{Changes: proxyWrite, Previous: &first}, map[string]Before{"proxy": proxy}},
		"the hash alone, after it is carried out": {nil, Write{Previous: &first}, map[string]Before{}},
		"the hash alone, before it acts":          {notActed, Write{Previous: &first}, first.Containers},
		"the hash alone, with an image in between": {func(p *corev1.Pod) { p.Spec.Containers[1].Image = "log:3" },
			Write{Previous: &first, Now: sent.Add(39 * time.Second)}, first.Containers},
		"the hash alone, before the generation shows": {func(p *corev1.Pod) { p.Status.ObservedGeneration = 1 }, Write{Previous: &first}, first.Containers},
		"the hash after a resize":                     {nil, Write{Resize: &Resize{At: sent}}, map[string]Before{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := updated()
			if tc.edit != nil {
				tc.edit(pod)
			}
			if tc.w.Now.IsZero() {
				tc.w.Now = sent.Add(time.Minute)
			}
			want := InPlaceRecord{Hash: "h2", Generation: 2, At: tc.w.Now, StateBefore: WasNotReadyByUpdate, Containers: tc.want}
			if len(tc.w.Changes) > 0 {
				want.Generation++
			}
			tc.w.Pod, tc.w.Hash, tc.w.StateBefore = pod, "h2", WasNotReadyByUpdate
			tc.w.Now = tc.w.Now.Add(999 * time.Millisecond).In(time.FixedZone("", 3600))
			if diff := cmp.Diff(want, NewInPlaceRecord(tc.w)); diff != "" {
				t.Errorf("entry (-want +got):\n%s", diff)
			}
		})
	}
}

// Running-pods-facts §2: the conditions of a resize, and when it is done.
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
		edit func(*corev1.Pod)
		want ResizeState
	}{
		"done":                                  {func(*corev1.Pod) {}, ResizeDone},
		"not written":                           {func(p *corev1.Pod) { p.Generation, p.Status.ObservedGeneration = 2, 2 }, ResizeOpen},
		"not observed":                          {func(p *corev1.Pod) { p.Status.ObservedGeneration = 2 }, ResizeMoving},
		"an old kubelet":                        {func(p *corev1.Pod) { p.Status.ObservedGeneration = 0 }, ResizeDone},
		"deferred":                              {both(old, condition(corev1.PodResizePending, corev1.PodReasonDeferred)), ResizePutOff},
		"infeasible":                            {both(old, condition(corev1.PodResizePending, corev1.PodReasonInfeasible)), ResizeExcluded},
		"that of another container is deferred": {condition(corev1.PodResizePending, corev1.PodReasonDeferred), ResizeDone},
		"in progress":                           {condition(corev1.PodResizeInProgress, ""), ResizeMoving},
		"failed":                                {condition(corev1.PodResizeInProgress, corev1.PodReasonError), ResizeBroken},
		"the old limit":                         {func(p *corev1.Pod) { status(p).Resources.Limits["memory"] = resource.MustParse("1Gi") }, ResizeMoving},
		"the old request":                       {old, ResizeMoving},
		"a rounded request": {func(p *corev1.Pod) {
			status(p).Resources.Requests["cpu"] = resource.MustParse("2001m")
			status(p).AllocatedResources = corev1.ResourceList{"cpu": resource.MustParse("2")}
		}, ResizeDone},
		"a node that reports none": {func(p *corev1.Pod) { status(p).Resources = nil }, ResizeMoving},
		"a container not reported": {func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, ResizeMoving},
		"a value that takes hours": {func(p *corev1.Pod) { status(p).Resources.Requests["cpu"] = resource.MustParse(huge) }, ResizeMoving},
		"other resources of its own": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["ephemeral-storage"] = resource.MustParse("1Gi")
		}, ResizeDone},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			has := corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("2")}, Limits: corev1.ResourceList{"memory": resource.MustParse("2Gi")}}
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Resources: *has.DeepCopy()}}}}
			pod.Generation, pod.Status.ObservedGeneration, pod.Status.Phase = 3, 3, corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "log", Resources: &has}}
			tc.edit(pod)
			z := Resize{Generation: 3, At: sent, Containers: []string{"log"}}
			got, message := z.Observe(pod)
			if got != tc.want || (message == "m") != (len(pod.Status.Conditions) > 1 && tc.want != ResizeDone) {
				t.Errorf("state %d, %q; want %d", got, message, tc.want)
			}
		})
	}
}

// Resizes that follow each other remember what the Pod may have, and how it was.
func TestNewResize(t *testing.T) {
	pod := updated()
	w := Write{Pod: pod, Now: sent}
	first := NewResize(w, "one", []string{"log"})
	want := Resize{Hash: "one", Generation: 3, At: sent, WasReady: true, Containers: []string{"log"}}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("the first resize (-want +got):\n%s", diff)
	}
	for name, tc := range map[string]struct {
		generation int64
		hash       string
		was        StateBefore
		want       Resize
	}{
		"before the first is made": {2, "two", WasReady, Resize{Hash: "two", Generation: 3, WasReady: true}},
		"after it":                 {3, "two", WasNotReadyByUpdate, Resize{Hash: "two", Before: "one", Generation: 4, WasReady: true}},
		"to the same revision":     {3, "one", WasNotReady, Resize{Hash: "one", Generation: 4}},
	} {
		pod.Generation = tc.generation
		w.Resize, w.StateBefore = &first, tc.was
		tc.want.At, tc.want.Containers = sent, []string{"log", "proxy"}
		if diff := cmp.Diff(tc.want, NewResize(w, tc.hash, []string{"proxy", "log"})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
