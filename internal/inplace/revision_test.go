package inplace_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// How a Pod with the revision of mesh version 1 counts.
func TestCount(t *testing.T) {
	const matched, updated, ready, uninjected = inplace.Matched, inplace.Updated, inplace.Ready, inplace.Uninjected
	dropLog := func(p *corev1.Pod) {
		p.Spec.Containers = slices.DeleteFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "log" })
	}
	annotate := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[key] = value }
	}
	// record says that the Pod was updated while its log container was this one.
	record := func(id string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations[appsv1beta1.AnnotationInPlace] = podstate.InPlaceRecords{}.With("mesh", podstate.InPlaceRecord{
				Generation: 1, At: createdAt, Containers: map[string]podstate.Before{"log": {ID: id, Image: "log:0"}, "proxy": {ID: "proxy-0"}},
			}).Format(p.UID)
			containerNamed(p, "log").Image = "mirror/log:1"
		}
	}
	younger := func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(createdAt.Add(time.Hour)) }
	tests := map[string]struct {
		edit func(*corev1.Pod)
		now  *fixtures.SidecarSetBuilder
		want inplace.Count
		why  string // it is uninjected
	}{
		"the current revision":            {want: matched | updated | ready},
		"other images":                    {now: meshSet("2"), want: matched | ready},
		"not ready":                       {edit: func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, want: matched | updated},
		"a container is not reported":     {edit: func(p *corev1.Pod) { p.Status.ContainerStatuses = p.Status.ContainerStatuses[:1] }, want: matched | updated},
		"OpenKruise's image":              {edit: annotate(appsv1beta1.AnnotationInPlaceUpdateState, `{"mesh":{"lastContainerStatuses":{"log":{"imageID":"log@sha256:log:1"}}}}`), want: matched | updated | ready},
		"written, and carried out":        {edit: record("log-0"), want: matched | updated | ready},
		"written, and not":                {edit: record("test://log:1#uid-1/0"), want: matched | updated},
		"being resized":                   {edit: annotate(appsv1beta1.AnnotationInPlace, `{"v":1,"uid":"uid-1","sets":{},"resizes":{"mesh":{"hash":"h","generation":2,"at":"2026-01-02T03:04:05Z","containers":["log"]}}}`), want: matched | ready},
		"a container was added":           {edit: younger, now: meshSet("1").Container("more", "more:1"), want: matched | ready},
		"a native sidecar was added":      {edit: younger, now: meshSet("2").Native("more", "more:1"), want: matched | ready},
		"another SidecarSet had its name": {edit: func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(createdAt.Add(-time.Hour)) }, now: meshSet("1").Container("more", "more:1"), want: uninjected, why: appsv1beta1.ReasonOlderThanSidecarSet},
		"a plain container was added":     {now: meshSet("1").InitContainer("more", "more:1"), want: matched | ready},
		"a container was removed":         {now: fixtures.SidecarSet("mesh").Container("log", "log:1"), want: matched | ready},
		"it lacks a sidecar":              {edit: dropLog, want: uninjected, why: appsv1beta1.ReasonOlderThanSidecarSet},
		"younger, it lacks a sidecar":     {edit: func(p *corev1.Pod) { dropLog(p); younger(p) }, want: uninjected, why: appsv1beta1.ReasonSidecarsMissing},
		"it lacks one and records none":   {edit: func(p *corev1.Pod) { delete(p.Annotations, appsv1beta1.AnnotationHashWithoutImage) }, now: meshSet("1").Container("more", "more:1"), want: uninjected, why: appsv1beta1.ReasonOlderThanSidecarSet},
		"not injected":                    {edit: func(p *corev1.Pod) { p.Annotations = nil }, want: uninjected, why: appsv1beta1.ReasonOlderThanSidecarSet},
		"younger, not injected":           {edit: func(p *corev1.Pod) { p.Annotations = nil; younger(p) }, want: uninjected, why: appsv1beta1.ReasonMissedAtCreation},
		"the list was removed":            {edit: func(p *corev1.Pod) { delete(p.Annotations, appsv1beta1.AnnotationInjectedList); younger(p) }, want: uninjected, why: appsv1beta1.ReasonRecordRemoved},
		"nothing to recognise it by":      {edit: func(p *corev1.Pod) { p.Annotations = nil }, now: fixtures.SidecarSet("mesh"), want: 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := running(t, meshSet("1"))
			if tc.edit != nil {
				tc.edit(pod)
			}
			if tc.now == nil {
				tc.now = meshSet("1")
			}
			object := tc.now.Map()
			object["metadata"].(map[string]any)["creationTimestamp"] = createdAt.Format(time.RFC3339)
			revision, r := inplace.RevisionOf(fixtures.Compiled(t, object)), podstate.FromPod(pod)
			if got := revision.Count(r, updatedAt.Unix()); got != tc.want {
				t.Errorf("counts as %04b, want %04b", got, tc.want)
			}
			if tc.want == uninjected && revision.WhyUninjected(r) != tc.why {
				t.Errorf("uninjected for %s, want %s", revision.WhyUninjected(r), tc.why)
			}
			v := revision.Judge(r, inplace.Node{})
			if current := v.Method == inplace.Current; tc.want&matched != 0 && current != (tc.want&updated != 0) {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

func TestRevisionOf(t *testing.T) {
	revision := func(set *fixtures.SidecarSetBuilder) *inplace.Revision {
		return inplace.RevisionOf(fixtures.Compiled(t, set.Map()))
	}
	one := revision(meshSet("1"))
	if !one.Equal(revision(meshSet("1")).With(inplace.Differences{})) || one.Equal(revision(meshSet("2"))) || one.Differences() != nil {
		t.Error("revisions are not compared by what Pods are compared with")
	}
	if one.Name() != podstate.MakeName("mesh") || one.Base() != 0 {
		t.Errorf("name %v, base %v", one.Name(), one.Base())
	}
	r := podstate.FromPod(running(t, meshSet("1")))
	if one.Differs(r) || revision(meshSet("2")).Differs(r) || !revision(meshSet("1").Env("A", "b")).Differs(r) {
		t.Error("what the Pod records is not compared by hash")
	}
	resizing := running(t, sizedSet("1", "100m"))
	resizing.Annotations[appsv1beta1.AnnotationInPlace] = podstate.InPlaceRecords{}.WithResize("mesh", podstate.Resize{
		Hash: fixtures.Compiled(t, sizedSet("1", "200m").Map()).HashWithoutImage, At: createdAt, Generation: 2, Containers: []string{"log"},
	}).Format(resizing.UID)
	if r := podstate.FromPod(resizing); !revision(sizedSet("1", "100m")).Differs(r) {
		t.Error("the revision to which a Pod is being resized is not compared")
	}
}

// The first sidecar that has failed comes before those that are being created.
func TestTroubleNamesTheSidecar(t *testing.T) {
	const creating, pull, crash = "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff"
	for name, tc := range map[string]struct {
		waiting      map[string]string // reasons by container
		why, sidecar string
	}{
		"none":                           {nil, "", ""},
		"being created":                  {map[string]string{"proxy": creating}, creating, "proxy"},
		"two are being created":          {map[string]string{"proxy": creating, "log": creating}, creating, "log"},
		"a failure before a creation":    {map[string]string{"proxy": pull, "log": creating}, pull, "proxy"},
		"a creation after a failure":     {map[string]string{"proxy": creating, "log": pull}, pull, "log"},
		"the first of two failures":      {map[string]string{"proxy": pull, "log": crash}, crash, "log"},
		"a plain init container":         {map[string]string{"setup": pull, "log": creating}, pull, "setup"},
		"a plain init container is done": {map[string]string{"setup": "Completed"}, "", ""},
		"the app":                        {map[string]string{"app": crash, "migrate": crash}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := running(t, meshSet("1"))
			for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
				for i := range statuses {
					s := &statuses[i]
					switch reason := tc.waiting[s.Name]; reason {
					case "":
					case "Completed":
						s.Ready, s.State = false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason}}
					default:
						s.Ready, s.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
					}
				}
			}
			why, sidecar := inplace.RevisionOf(fixtures.Compiled(t, meshSet("1").Map())).Trouble(podstate.FromPod(pod))
			if why.String() != tc.why || sidecar != tc.sidecar {
				t.Errorf("%s of %q, want %s of %q", why, sidecar, tc.why, tc.sidecar)
			}
		})
	}
}
