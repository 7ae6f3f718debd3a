package tally_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// rolling has a SidecarSet "log" with that image, two of whose Pods may be away.
func rolling(t *testing.T, tl *tally.Tally, image string, change func(*appsv1beta1.SidecarSet)) {
	t.Helper()
	set := fixtureSet("log", "side")
	set.Annotations = nil
	set.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(2))
	set.Spec.Containers[0].Image = image
	if change != nil {
		change(set)
	}
	p := program(t, set)
	p.Hash, p.HashWithoutImage = "hash-"+image, "without"
	tl.SetSnapshot(match.Build([]*inject.Program{p}, map[string]labels.Set{"a": {}}))
}

// carrier is the i-th Pod of "log", ready, with the content of that image.
func carrier(i int, image string) *corev1.Pod {
	hash := func(h string) string {
		return podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "log", Hash: h}).String()
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: fmt.Sprint("p-", i), UID: types.UID(fmt.Sprint("u-", i)), ResourceVersion: "1", Generation: 1, Labels: map[string]string{"app": "web"},
		Annotations: map[string]string{
			appsv1beta1.AnnotationInjectedList: "log", appsv1beta1.AnnotationHash: hash("hash-" + image), appsv1beta1.AnnotationHashWithoutImage: hash("without"),
		},
	}}
	p.Spec.Containers = []corev1.Container{{Name: "side", Image: image}}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "side", Image: image, ImageID: "r@sha256:" + image, ContainerID: "c://" + image, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Unix(1000, 0))}},
		}},
	}
	return p
}

// moved is a Pod after the write that gives it an image, of which the kubelet says
// nothing yet.
func moved(p *corev1.Pod, image string, at time.Time) *corev1.Pod {
	mark := inplace.NewMark(inplace.Write{
		Pod: p, Now: at, Changes: []inplace.Change{{Container: "side", Kind: inplace.Regular, From: p.Spec.Containers[0].Image, To: image}},
	})
	next := carrier(0, image)
	next.Name, next.UID, next.Generation, next.Status = p.Name, p.UID, p.Generation+1, *p.Status.DeepCopy()
	next.Annotations[appsv1beta1.AnnotationInPlace] = inplace.Marks{}.With("log", mark).Format(p.UID)
	version, _ := podstate.ParseVersion(p.ResourceVersion)
	next.ResourceVersion = strconv.FormatUint(version+1, 10)
	return next
}

func set(tl *tally.Tally, pods ...*corev1.Pod) {
	for _, p := range pods {
		tl.Set(podstate.FromPod(p))
		version, _ := podstate.ParseVersion(p.ResourceVersion)
		tl.Watched(version)
	}
}

func TestOutdatedPodsAreDueWithinTheBudget(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v1", nil)
	pods := make([]*corev1.Pod, 5)
	for i := range pods {
		pods[i] = carrier(i, "v1")
	}
	set(tl, pods...)
	if due := tl.Due("log", 10); len(due.Updates) != 0 {
		t.Fatalf("%d Pods are due that are current", len(due.Updates))
	}
	rolling(t, tl, "v2", nil)
	due := tl.Due("log", 10)
	if len(due.Updates) != 2 || due.Program.Hash != "hash-v2" {
		t.Fatalf("due are %d Pods for %s, want 2", len(due.Updates), due.Program.Hash)
	}
	if again := tl.Due("log", 10); len(again.Updates) != 0 {
		t.Fatalf("%d more are due than the budget has", len(again.Updates))
	}
	written := make(map[types.UID]*corev1.Pod)
	for _, take := range due.Updates {
		for _, p := range pods {
			if p.UID == take.UID {
				written[p.UID] = moved(p, "v2", time.Unix(2000, 0))
			}
		}
		tl.Tend("log", func(q *rollout.Queue) { q.Written(take, 2, true) })
	}
	if early := tl.Due("log", 10); len(early.Updates) != 0 {
		t.Fatalf("%d are due before the watch has delivered the writes", len(early.Updates))
	}
	var stirred []string
	tl.Stirred(func(string) {})
	for _, p := range written {
		set(tl, p) // still ready
	}
	if flying := tl.Due("log", 10); len(flying.Updates) != 0 || tl.Rollout("log").Used != 2 {
		t.Fatalf("%d are due while 2 are in flight, %d places are used", len(flying.Updates), tl.Rollout("log").Used)
	}
	first := written[due.Updates[0].UID]
	back := carrier(0, "v2")
	first.Status, first.ResourceVersion = back.Status, "3"
	set(tl, first)
	tl.Stirred(func(name string) { stirred = append(stirred, name) })
	if next := tl.Due("log", 10); len(next.Updates) != 1 || len(stirred) != 1 {
		t.Errorf("%d are due after one is back, want 1; stirred is %q", len(next.Updates), stirred)
	}
	tl.Delete(podstate.FromPod(written[due.Updates[1].UID]))
	if next := tl.Due("log", 10); len(next.Updates) != 1 {
		t.Errorf("%d are due after one in flight is gone, want 1", len(next.Updates))
	}
}

// A Pod whose new image has the digest of the old one is back after a while, without
// an event.
func TestTimeEndsAnUpdateThatNoEventEnds(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v2", nil)
	p := moved(carrier(0, "v1"), "v2", time.Unix(2000, 0))
	status := &p.Status.ContainerStatuses[0]
	status.ContainerID, status.State.Running.StartedAt = "c://again", metav1.NewTime(time.Unix(2001, 0))
	set(tl, p)
	if used := tl.Rollout("log").Used; used != 1 {
		t.Fatalf("%d places are used, want 1", used)
	}
	tl.Settle(time.Unix(2010, 0))
	if used := tl.Rollout("log").Used; used != 1 {
		t.Errorf("%d places are used after some seconds, want 1", used)
	}
	tl.Settle(time.Unix(2100, 0))
	if used := tl.Rollout("log").Used; used != 0 {
		t.Errorf("%d places are used in the end, want none", used)
	}
}

func TestWhatLeavesTheRolloutIsForgotten(t *testing.T) {
	leave := map[string]func(tl *tally.Tally, p *corev1.Pod){
		"it has other labels": func(tl *tally.Tally, p *corev1.Pod) { p.Labels = map[string]string{"app": "other"}; set(tl, p) },
		"it is finished":      func(tl *tally.Tally, p *corev1.Pod) { p.Status.Phase = corev1.PodFailed; set(tl, p) },
		"it is being deleted": func(tl *tally.Tally, p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			set(tl, p)
		},
		"it is gone": func(tl *tally.Tally, p *corev1.Pod) { tl.Delete(podstate.FromPod(p)) },
		"another has its name": func(tl *tally.Tally, p *corev1.Pod) {
			other := carrier(0, "v2")
			other.UID = "other"
			set(tl, other)
		},
		"it is not injected any more": func(tl *tally.Tally, p *corev1.Pod) { p.Annotations = nil; set(tl, p) },
		"the list of Pods lacks it":   func(tl *tally.Tally, p *corev1.Pod) { tl.Replace(nil) },
		"the SidecarSet is gone":      func(tl *tally.Tally, p *corev1.Pod) { tl.SetSnapshot(match.Build(nil, nil)) },
	}
	for name, change := range leave {
		t.Run(name, func(t *testing.T) {
			tl := newTally()
			rolling(t, tl, "v2", nil)
			p := moved(carrier(0, "v1"), "v2", time.Unix(2000, 0))
			set(tl, p)
			if used := tl.Rollout("log").Used; used != 1 {
				t.Fatalf("%d places are used, want 1", used)
			}
			change(tl, p)
			report := tl.Rollout("log")
			if report.Used != 0 || report.Outdated != 0 {
				t.Errorf("%+v is left", report)
			}
		})
	}
}

func TestNothingIsDueWithoutAStrategyThatSaysSo(t *testing.T) {
	strategies := map[string]func(*appsv1beta1.SidecarSet){
		"NotUpdate": func(s *appsv1beta1.SidecarSet) {
			s.Spec.UpdateStrategy.Type = appsv1beta1.NotUpdateSidecarSetStrategyType
		},
		"paused":             func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.Paused = true },
		"a strategy unknown": func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.Type = "Later" },
		"partition":          func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.Partition = new(intstr.FromString("100%")) },
	}
	for name, change := range strategies {
		t.Run(name, func(t *testing.T) {
			tl := newTally()
			rolling(t, tl, "v2", change)
			set(tl, carrier(0, "v1"), carrier(1, "v1"))
			if due := tl.Due("log", 10); len(due.Updates) != 0 {
				t.Errorf("%d Pods are due", len(due.Updates))
			}
			rolling(t, tl, "v2", nil)
			if due := tl.Due("log", 10); len(due.Updates) != 2 {
				t.Errorf("%d Pods are due once the strategy allows it, want 2", len(due.Updates))
			}
		})
	}
}
