package tally_test

import (
	"fmt"
	"strconv"
	"strings"
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

// rolling makes a SidecarSet "log" with that image, two of whose Pods may be away.
func rolling(t *testing.T, tl *tally.Tally, image string, change func(*appsv1beta1.SidecarSet)) {
	t.Helper()
	p := rollingUnrecorded(t, tl, image, change)
	tl.SetCurrent("log", tally.Current{Program: p, Revision: p.Revision()})
}

// rollingUnrecorded is rolling without a recorded content.
func rollingUnrecorded(t *testing.T, tl *tally.Tally, image string, change func(*appsv1beta1.SidecarSet)) *inject.Program {
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
	return p
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

// moved is a Pod after the write that gives it an image, before the kubelet reports anything.
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

// A ControllerRevision must have the content that a Pod records: no Pod is updated before its
// content is recorded.
func TestNoPodIsUpdatedBeforeTheContentIsRecorded(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v1", nil)
	set(tl, carrier(0, "v1"))
	known := func() (names []string) {
		tl.Unrecorded(func(name string) { names = append(names, name) })
		return names
	}
	if names := known(); len(names) != 0 {
		t.Errorf("%v are to be recorded, which are", names)
	}
	v2 := rollingUnrecorded(t, tl, "v2", nil)
	if due := tl.Due("log", 10); len(due.Updates)+len(due.Chores) != 0 {
		t.Fatalf("due are %+v", due)
	}
	if names := known(); len(names) != 1 || names[0] != "log" {
		t.Errorf("%v are to be recorded, want log", names)
	}
	rollingUnrecorded(t, tl, "v3", nil)
	tl.SetCurrent("log", tally.Current{Program: v2, Revision: v2.Revision()})
	if due := tl.Due("log", 10); len(due.Updates) != 0 {
		t.Fatalf("after the content before was recorded, due are %+v", due.Updates)
	}
	rolling(t, tl, "v3", nil)
	stirred := ""
	tl.DueChanged(func(name string) { stirred += name })
	if due := tl.Due("log", 10); len(due.Updates) != 1 || stirred != "log" {
		t.Errorf("when it is recorded, due are %+v, and %q is stirred", due.Updates, stirred)
	}
}

// Contents that differ in volumes alone have one hash and two ControllerRevisions, and
// Pods name theirs.
func TestNoPodIsUpdatedBeforeItsRevisionIsRecorded(t *testing.T) {
	tl := newTally()
	roll := func(volume string, generation int64) *inject.Program {
		s := fixtureSet("log", "side")
		s.Annotations, s.Generation = nil, generation
		s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(1))
		s.Spec.Containers[0].Image = "v2"
		s.Spec.Volumes = []corev1.Volume{{Name: volume}}
		p := compiled(t, s)
		p.Hash, p.HashWithoutImage = "hash-v2", "without"
		tl.SetSnapshot(match.Build([]*inject.Program{p}, map[string]labels.Set{"a": {}}))
		return p
	}
	a := roll("a", 1)
	tl.SetCurrent("log", tally.Current{Program: a, Revision: a.Revision()})
	tl.Unrecorded(func(string) {})
	set(tl, carrier(0, "v1"))
	b := roll("b", 2)
	if due := tl.Due("log", 10); len(due.Updates) != 0 {
		t.Fatalf("before the revision is recorded, due are %+v", due.Updates)
	}
	var unrecorded []string
	tl.Unrecorded(func(name string) { unrecorded = append(unrecorded, name) })
	if len(unrecorded) != 1 || unrecorded[0] != "log" {
		t.Errorf("%v are to be recorded, want log", unrecorded)
	}
	// It records the content under another name, because the one that b expects is taken.
	tl.SetCurrent("log", tally.Current{Program: b, Revision: "log-another"})
	if due := tl.Due("log", 10); len(due.Updates) != 0 {
		t.Fatalf("the revision that Pods would name is not recorded, and due are %+v", due.Updates)
	}
	tl.SetCurrent("log", tally.Current{Program: b, Revision: b.Revision()})
	if due := tl.Due("log", 10); len(due.Updates) != 1 {
		t.Errorf("when it is recorded, due are %+v, want one", due.Updates)
	}
}

// A SidecarSet that was deleted and created again between two snapshots inherits no state from
// the first one.
func TestARecreatedSidecarSetInheritsNoRollout(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v2", nil)
	set(tl, carrier(0, "v1"), carrier(1, "v1"), carrier(2, "v1"))
	before := tl.Due("log", 10).Updates
	again := func(s *appsv1beta1.SidecarSet) { s.UID = "again" }
	rollingUnrecorded(t, tl, "v2", again)
	if due := tl.Due("log", 10).Updates; len(due) != 0 {
		t.Fatalf("%+v are due before the content is recorded", due)
	}
	rolling(t, tl, "v2", again)
	after := tl.Due("log", 10).Updates
	if len(before) != 2 || len(after) != 2 {
		t.Fatalf("%d and %d are due, want 2 each time", len(before), len(after))
	}
	for _, take := range before { // answers to writes for the first one
		tl.WithQueue("log", func(q *rollout.Queue) { q.Written(take, 1, false) })
	}
	if r := tl.State("log").Rollout; r.Used != 2 || r.Taken != 2 {
		t.Errorf("the report is %+v, want 2 Pods that are taken", r)
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
		tl.WithQueue("log", func(q *rollout.Queue) { q.Written(take, 2, true) })
	}
	if early := tl.Due("log", 10); len(early.Updates) != 0 {
		t.Fatalf("%d are due before the watch has delivered the writes", len(early.Updates))
	}
	var dueChanged []string
	tl.DueChanged(func(string) {})
	for _, p := range written {
		set(tl, p) // still ready
	}
	if flying := tl.Due("log", 10); len(flying.Updates) != 0 || tl.State("log").Rollout.Used != 2 {
		t.Fatalf("%d are due while 2 are in flight, %d places are used", len(flying.Updates), tl.State("log").Rollout.Used)
	}
	first := written[due.Updates[0].UID]
	back := carrier(0, "v2")
	first.Status, first.ResourceVersion = back.Status, "3"
	set(tl, first)
	tl.DueChanged(func(name string) { dueChanged = append(dueChanged, name) })
	if next := tl.Due("log", 10); len(next.Updates) != 1 || len(dueChanged) != 1 {
		t.Errorf("%d are due after one is back, want 1; dueChanged is %q", len(next.Updates), dueChanged)
	}
	tl.Delete(podstate.FromPod(written[due.Updates[1].UID]))
	if next := tl.Due("log", 10); len(next.Updates) != 1 {
		t.Errorf("%d are due after one in flight is gone, want 1", len(next.Updates))
	}
}

// A Pod whose new image has the digest of the old one is back after a while, without
// an event.
func TestAnUpdateEndsAfterAWhileWithoutAnEvent(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v2", nil)
	p := moved(carrier(0, "v1"), "v2", time.Unix(2000, 0))
	status := &p.Status.ContainerStatuses[0]
	status.ContainerID, status.State.Running.StartedAt = "c://again", metav1.NewTime(time.Unix(2001, 0))
	set(tl, p)
	if used := tl.State("log").Rollout.Used; used != 1 {
		t.Fatalf("%d places are used, want 1", used)
	}
	tl.Settle(time.Unix(2010, 0))
	if r := tl.State("log").Rollout; r.Used != 1 || r.Settling != 1 {
		t.Errorf("%d places are used after some seconds, and %d Pods settle, want 1 of each", r.Used, r.Settling)
	}
	tl.Settle(time.Unix(2100, 0))
	if r := tl.State("log").Rollout; r.Used != 0 || r.Settling != 0 {
		t.Errorf("%d places are used in the end, and %d Pods settle, want none", r.Used, r.Settling)
	}
}

func TestPodsThatLeaveARolloutAreForgotten(t *testing.T) {
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
			if used := tl.State("log").Rollout.Used; used != 1 {
				t.Fatalf("%d places are used, want 1", used)
			}
			change(tl, p)
			report := tl.State("log").Rollout
			if report.Used != 0 || report.Outdated != 0 {
				t.Errorf("%+v is left", report)
			}
		})
	}
}

func TestNoPodIsDueUnlessTheStrategyAllowsIt(t *testing.T) {
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

// The record of a Pod grows with its first update. That must not make it too large to be
// tracked: it would leave the budget, and the next Pod would be disturbed.
func TestLargePodsStayInTheBudget(t *testing.T) {
	list, sidecars := "log", []corev1.Container(nil)
	for i := range 9 {
		list += fmt.Sprint(",other-", i)
	}
	for i := range 14 {
		sidecars = append(sidecars, corev1.Container{Name: fmt.Sprint("c-", i), Image: "v1"})
	}
	enlarge := func(p *corev1.Pod, label int) *corev1.Pod {
		p.Annotations[appsv1beta1.AnnotationInjectedList] = list
		if p.Annotations[appsv1beta1.AnnotationInPlace] != "" {
			p.Annotations[appsv1beta1.AnnotationInPlaceUpdateState] = `{"log":{"lastContainerStatuses":{"side":{"imageID":"r@sha256:v1"}}}}`
		}
		p.Spec.Containers = append(p.Spec.Containers[:1], sidecars...)
		p.Labels["padding"] = strings.Repeat("x", label)
		return p
	}
	for label := 900; label < 2200; label += 100 {
		tl := newTally()
		rolling(t, tl, "v1", nil)
		pods := map[types.UID]*corev1.Pod{}
		for i := range 5 {
			p := enlarge(carrier(i, "v1"), label)
			pods[p.UID] = p
			set(tl, p)
		}
		rolling(t, tl, "v2", func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(1)) })
		disturbed := 0
		for round := range 5 {
			for _, take := range tl.Due("log", 10).Updates {
				disturbed++
				p := enlarge(moved(pods[take.UID], "v2", time.Unix(2000, 0)), label)
				p.ResourceVersion = strconv.Itoa(2 + round)
				tl.WithQueue("log", func(q *rollout.Queue) { q.Written(take, uint64(2+round), true) })
				set(tl, p) // its kubelet has reported nothing yet
			}
		}
		if disturbed > 1 {
			t.Errorf("with a label of %d bytes, %d Pods are disturbed, maxUnavailable is 1", label, disturbed)
		}
	}
}

// stirred are the SidecarSets of which more Pods may be due than at the last call.
func stirred(tl *tally.Tally) (names []string) {
	tl.DueChanged(func(name string) { names = append(names, name) })
	return names
}

// A Pod that comes or goes can make other Pods due, which have no event themselves.
func TestPodsAreDueWhenOthersComeOrGo(t *testing.T) {
	type update = appsv1beta1.SidecarSetUpdateStrategy
	tests := map[string]struct {
		update     update
		batch      string
		current    int // Pods with the new content, numbered from 0
		outdated   int // Pods with the old one, numbered from 100
		first, due int // before and after the change
		change     func(tl *tally.Tally)
	}{
		"partition, when current Pods go": {
			update: update{Partition: new(intstr.FromString("50%")), MaxUnavailable: new(intstr.FromInt32(9))}, current: 5, outdated: 5, due: 2,
			change: func(tl *tally.Tally) {
				for i := range 4 {
					tl.Delete(podstate.FromPod(carrier(i, "v2")))
				}
			},
		},
		"maxUnavailable, when Pods come": {
			update: update{MaxUnavailable: new(intstr.FromString("25%"))}, outdated: 4, first: 1, due: 1,
			change: func(tl *tally.Tally) { set(tl, carrier(1, "v2")) },
		},
		"the first batch, when a new Pod is ready": {
			update: update{MaxUnavailable: new(intstr.FromInt32(9))}, batch: "1", outdated: 3, first: 1, due: 2,
			change: func(tl *tally.Tally) { set(tl, carrier(1, "v2")) },
		},
		"the first batch, when a Pod of it goes": {
			update: update{MaxUnavailable: new(intstr.FromInt32(9))}, batch: "2", current: 1, outdated: 3, first: 1, due: 1,
			change: func(tl *tally.Tally) { tl.Delete(podstate.FromPod(carrier(0, "v2"))) },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tl := newTally()
			rolling(t, tl, "v2", func(s *appsv1beta1.SidecarSet) {
				s.Spec.UpdateStrategy = tc.update
				if tc.batch != "" {
					s.Annotations = map[string]string{appsv1beta1.AnnotationFirstBatch: tc.batch}
				}
			})
			for i := range tc.current {
				set(tl, carrier(i, "v2"))
			}
			for i := range tc.outdated {
				set(tl, carrier(100+i, "v1"))
			}
			if n := len(tl.Due("log", 10).Updates); n != tc.first {
				t.Fatalf("%d Pods are due, want %d", n, tc.first)
			}
			stirred(tl)
			tc.change(tl)
			if names := stirred(tl); len(names) != 1 {
				t.Errorf("stirred are %q, want the SidecarSet", names)
			}
			if n := len(tl.Due("log", 10).Updates); n != tc.due {
				t.Errorf("%d Pods are due then, want %d", n, tc.due)
			}
		})
	}
	t.Run("but nothing is stirred while none waits", func(t *testing.T) {
		tl := newTally()
		rolling(t, tl, "v2", nil)
		set(tl, carrier(0, "v2"))
		stirred(tl)
		set(tl, carrier(1, "v2"), carrier(2, "v2"))
		tl.Delete(podstate.FromPod(carrier(1, "v2")))
		if names := stirred(tl); len(names) != 0 {
			t.Errorf("stirred are %q, want none", names)
		}
	})
}

// Two SidecarSets on the same Pods have separate budgets. A Pod that one of them has made
// unavailable is free for the other, as in OpenKruise.
func TestSidecarSetsThatShareAPodDoNotWaitForEachOther(t *testing.T) {
	names := []string{"log", "mesh"}
	roll := func(tl *tally.Tally, image string) {
		var programs []*inject.Program
		for _, name := range names {
			s := fixtureSet(name, name)
			s.Annotations = nil
			s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(1))
			s.Spec.Containers[0].Image = image
			p := program(t, s)
			p.Hash, p.HashWithoutImage = "hash-"+image, "without"
			programs = append(programs, p)
		}
		tl.SetSnapshot(match.Build(programs, map[string]labels.Set{"a": {}}))
		for i, name := range names {
			tl.SetCurrent(name, tally.Current{Program: programs[i], Revision: programs[i].Revision()})
		}
	}
	tl := newTally()
	roll(tl, "v1")
	pods := map[types.UID]*corev1.Pod{}
	for i := range 2 {
		p := carrier(i, "v1")
		p.Annotations[appsv1beta1.AnnotationInjectedList] = "log,mesh"
		for key, hash := range map[string]string{appsv1beta1.AnnotationHash: "hash-v1", appsv1beta1.AnnotationHashWithoutImage: "without"} {
			p.Annotations[key] = podstate.Hashes{}.With(podstate.HashRecord{SidecarSetName: "log", Hash: hash}, podstate.HashRecord{SidecarSetName: "mesh", Hash: hash}).String()
		}
		status := p.Status.ContainerStatuses[0]
		p.Spec.Containers, p.Status.ContainerStatuses = nil, nil
		for _, name := range names {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "v1"})
			status.Name = name
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, status)
		}
		pods[p.UID] = p
		set(tl, p)
	}
	roll(tl, "v2")
	log, mesh := tl.Due("log", 8).Updates, tl.Due("mesh", 8).Updates
	if len(log) != 1 || len(mesh) != 1 || !log[0].Charged || !mesh[0].Charged {
		t.Fatalf("due are %+v and %+v, want one Pod of each, for a place of its own budget", log, mesh)
	}
	for _, p := range pods { // for a reason that "mesh" does not know
		p.ResourceVersion = "2"
		p.Status.Conditions[0].Status = corev1.ConditionFalse
		set(tl, p)
	}
	if more := tl.Due("mesh", 8).Updates; len(more) != 1 || more[0].Charged {
		t.Errorf("due are %+v, want the other Pod, free", more)
	}
}
