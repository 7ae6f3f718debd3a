package inplace_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/inplace"
)

var sentAt = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// updated is a Pod that is back since 20 seconds after the write: its log sidecar
// runs as log-2, from another image.
func updated() *corev1.Pod {
	status := func(name, id, digest string, started time.Time) corev1.ContainerStatus {
		yes := true
		return corev1.ContainerStatus{
			Name: name, ContainerID: id, ImageID: "docker.io/library/" + name + "@sha256:" + digest, Ready: true, Started: &yes,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}},
		}
	}
	native := corev1.ContainerRestartPolicyAlways
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Generation: 2},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "proxy", Image: "proxy:1", RestartPolicy: &native}},
			Containers:     []corev1.Container{{Name: "app", Image: "app:1"}, {Name: "log", Image: "log:2"}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, ObservedGeneration: 2,
			Conditions:            []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(sentAt.Add(-time.Hour))}},
			InitContainerStatuses: []corev1.ContainerStatus{status("proxy", "proxy-1", "p", sentAt.Add(-time.Hour))},
			ContainerStatuses: []corev1.ContainerStatus{
				status("app", "app-1", "a", sentAt.Add(-time.Hour)), status("log", "log-2", "new", sentAt.Add(20*time.Second)),
			},
		},
	}
}

// Each rule of docs/design/0009, by itself.
func TestObserve(t *testing.T) {
	log := inplace.Before{ID: "log-1", Image: "log:1", Digest: "sha256:old"}
	logWas := func(change func(*inplace.Before)) func(*inplace.Mark) {
		return func(m *inplace.Mark) {
			before := log
			change(&before)
			m.Containers["log"] = before
		}
	}
	notReady := func(p *corev1.Pod, after time.Duration) {
		c := &p.Status.Conditions[0]
		c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(sentAt.Add(after))
	}
	// 30 s of grace by default, 10 s, and one for times cut to the second.
	settles := func(after time.Duration) time.Time { return sentAt.Add(after + 41*time.Second) }
	tests := map[string]struct {
		edit    func(*corev1.Pod)
		mark    func(*inplace.Mark)
		want    inplace.State
		settles time.Time
		then    inplace.State
	}{
		"all is as it has to be":      {want: inplace.Back},
		"no container had to change":  {mark: func(m *inplace.Mark) { m.Containers = nil }, want: inplace.Back},
		"the kubelet does not know":   {edit: func(p *corev1.Pod) { p.Status.ObservedGeneration = 1 }, want: inplace.Moving},
		"a kubelet that does not say": {edit: func(p *corev1.Pod) { p.Status.ObservedGeneration = 0 }, want: inplace.Back},
		"the container from before":   {edit: func(p *corev1.Pod) { p.Status.ContainerStatuses[1].ContainerID = "log-1" }, want: inplace.Moving},
		"no status":                   {edit: func(p *corev1.Pod) { p.Status.ContainerStatuses = p.Status.ContainerStatuses[:1] }, want: inplace.Moving},
		"a container that waits": {edit: func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
		}, want: inplace.Moving},
		"a container that ended": {edit: func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		}, want: inplace.Moving},
		"not ready yet":                  {edit: func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Ready = false }, want: inplace.Moving},
		"not started yet":                {edit: func(p *corev1.Pod) { *p.Status.ContainerStatuses[1].Started = false }, want: inplace.Moving},
		"a container that the Pod lacks": {mark: func(m *inplace.Mark) { m.Containers["gone"] = inplace.Before{ID: "x"} }, want: inplace.Back},
		"a native sidecar from before": {mark: func(m *inplace.Mark) {
			m.Containers["proxy"] = inplace.Before{ID: "proxy-1", Image: "proxy:0"}
		}, want: inplace.Moving},
		"a native sidecar that was replaced": {mark: func(m *inplace.Mark) {
			m.Containers["proxy"] = inplace.Before{ID: "proxy-0", Digest: "sha256:o"}
		}, want: inplace.Back},
		"the digest from before":           {mark: logWas(func(b *inplace.Before) { b.Digest = "sha256:new" }), want: inplace.Settling, settles: settles(20 * time.Second), then: inplace.Back},
		"no digest from before":            {mark: logWas(func(b *inplace.Before) { b.Digest = "" }), want: inplace.Settling, settles: settles(20 * time.Second), then: inplace.Back},
		"no image ID":                      {edit: func(p *corev1.Pod) { p.Status.ContainerStatuses[1].ImageID = "" }, want: inplace.Settling, settles: settles(20 * time.Second), then: inplace.Back},
		"the ID of an image, not a digest": {edit: func(p *corev1.Pod) { p.Status.ContainerStatuses[1].ImageID = "sha256:old" }, want: inplace.Settling, settles: settles(20 * time.Second), then: inplace.Back},
		"the ID of another image":          {edit: func(p *corev1.Pod) { p.Status.ContainerStatuses[1].ImageID = "docker://sha256:new" }, want: inplace.Back},
		"a container started before the write": {
			edit: func(p *corev1.Pod) {
				p.Status.ContainerStatuses[1].State.Running.StartedAt = metav1.NewTime(sentAt.Add(-time.Second))
				p.Status.ContainerStatuses[1].ImageID = "log@sha256:old"
			}, want: inplace.Settling, settles: settles(0), then: inplace.Back,
		},
		"the Pod is not ready since before the start": {edit: func(p *corev1.Pod) { notReady(p, 10*time.Second) }, want: inplace.Moving},
		"the Pod is not ready since the start":        {edit: func(p *corev1.Pod) { notReady(p, 25*time.Second) }, want: inplace.Moving},
		"the Pod broke later":                         {edit: func(p *corev1.Pod) { notReady(p, 26*time.Second) }, want: inplace.Broken},
		"the sidecar broke later":                     {edit: func(p *corev1.Pod) { notReady(p, time.Minute); p.Status.ContainerStatuses[1].Ready = false }, want: inplace.Broken},
		"the sidecar is in a crash loop later": {edit: func(p *corev1.Pod) {
			notReady(p, time.Minute)
			p.Status.ContainerStatuses[1].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		}, want: inplace.Moving},
		"the Pod broke, with the digest from before": {
			edit: func(p *corev1.Pod) { notReady(p, time.Minute) }, mark: logWas(func(b *inplace.Before) { b.Digest = "sha256:new" }),
			want: inplace.Settling, settles: settles(20 * time.Second), then: inplace.Broken,
		},
		"without the condition": {edit: func(p *corev1.Pod) { p.Status.Conditions = nil }, want: inplace.Moving},
		"the Pod is pending":    {edit: func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, want: inplace.Moving},
		"changed back before it ran": {edit: func(p *corev1.Pod) {
			p.Spec.Containers[1].Image, p.Status.ContainerStatuses[1].ContainerID = "log:1", "log-1"
		}, want: inplace.Back},
		"a webhook took the image back out of the write": {
			edit: func(p *corev1.Pod) {
				p.Generation, p.Status.ObservedGeneration = 1, 1
				p.Spec.Containers[1].Image, p.Status.ContainerStatuses[1].ContainerID = "log:1", "log-1"
			}, want: inplace.Back,
		},
		"changed back by another, and the kubelet does not know": {
			edit: func(p *corev1.Pod) {
				p.Generation, p.Spec.Containers[1].Image, p.Status.ContainerStatuses[1].ContainerID = 3, "log:1", "log-1"
			}, want: inplace.Moving,
		},
		"changed back, a kubelet that does not say": {
			edit: func(p *corev1.Pod) {
				p.Status.ObservedGeneration, p.Spec.Containers[1].Image, p.Status.ContainerStatuses[1].ContainerID = 0, "log:1", "log-1"
			}, want: inplace.Settling, settles: settles(20 * time.Second), then: inplace.Back,
		},
		"perhaps changed back": {
			edit: func(p *corev1.Pod) { p.Status.ContainerStatuses[1].ContainerID = "log-1" },
			mark: logWas(func(b *inplace.Before) { b.Image, b.Since = "", []string{"log:1", "log:2"} }),
			want: inplace.Settling, settles: settles(20 * time.Second), then: inplace.Back,
		},
		"certainly not changed back": {
			edit: func(p *corev1.Pod) { p.Status.ContainerStatuses[1].ContainerID = "log-1" },
			mark: logWas(func(b *inplace.Before) { b.Image, b.Since = "", []string{"log:0", "log:1"} }),
			want: inplace.Moving,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := updated()
			mark := inplace.Mark{Generation: 2, At: sentAt, WasReady: true, Containers: map[string]inplace.Before{"log": log}}
			if tc.edit != nil {
				tc.edit(pod)
			}
			if tc.mark != nil {
				tc.mark(&mark)
			}
			p := inplace.Observe(pod, mark)
			if p.State() != tc.want || !p.WasReady {
				t.Errorf("progress %+v, want state %d", p, tc.want)
			}
			at, settling := p.SettlesAt()
			if settling != (tc.want == inplace.Settling) {
				t.Fatalf("SettlesAt = %v, %v", at, settling)
			}
			if inFlight := tc.want == inplace.Moving || settling; p.InFlight() != inFlight || p.Over() == inFlight {
				t.Errorf("in flight %v, over %v", p.InFlight(), p.Over())
			}
			if !settling {
				if p.Settled(sentAt.Add(time.Hour)) != p {
					t.Errorf("changes with time to %+v", p.Settled(sentAt.Add(time.Hour)))
				}
				return
			}
			if !at.Equal(tc.settles) || p.Settled(at.Add(-time.Second)).State() != inplace.Settling || p.Settled(at).State() != tc.then || p.Settled(at).InFlight() {
				t.Errorf("settles at %v to %v, want %v and %v", at, p.Settled(at).State(), tc.settles, tc.then)
			}
		})
	}
}

func TestObserveWaitsForEachGracePeriod(t *testing.T) {
	pod, grace := updated(), int64(100)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	mark := inplace.Mark{Generation: 2, At: sentAt, Containers: map[string]inplace.Before{"log": {}, "proxy": {}}}
	p := inplace.Observe(pod, mark)
	if at, ok := p.SettlesAt(); !ok || !at.Equal(sentAt.Add((20+2*100+10+1)*time.Second)) {
		t.Errorf("settles at %v, %v", at, ok)
	}
	if p.InFlight() {
		t.Error("a Pod that was not available before takes a place of the budget")
	}
	grace = 1 << 62
	if at, ok := inplace.Observe(pod, mark).SettlesAt(); !ok || at.Before(sentAt) {
		t.Errorf("with a grace period without end it settles at %v, %v", at, ok)
	}
}
