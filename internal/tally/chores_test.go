package tally_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// A Pod that was updated gets its condition when it is back, and when no Pod waits for
// its update.
func TestTheConditionWaitsForUpdates(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v2", nil)
	first, second := carrier(0, "v1"), carrier(1, "v1")
	set(tl, first, second, carrier(2, "v2"))
	chores := func(when string, updates int, want ...string) {
		t.Helper()
		due := tl.Due("log", 1)
		if len(due.Updates) != updates || len(due.Chores) != len(want) {
			t.Fatalf("%s: %d updates and %d chores are due, want %d and %d", when, len(due.Updates), len(due.Chores), updates, len(want))
		}
		for i, chore := range due.Chores {
			if chore.Pod.Name != want[i] || !chore.FirstWord {
				t.Errorf("%s: a chore is %s, first word: %t", when, chore.Pod.Name, chore.FirstWord)
			}
		}
	}
	back := func(p *corev1.Pod, version string) {
		p.Status, p.ResourceVersion = carrier(0, "v2").Status, version
		set(tl, p)
	}
	first = moved(first, "v2", time.Unix(2000, 0))
	set(tl, first)
	chores("in flight, and one is outdated", 1)
	chores("in flight", 0)
	back(first, "3")
	chores("back", 0, first.Name)
	chores("given out", 0)
	tl.CheckChore("log", podstate.MakeNamespace("a"), first.Name)
	chores("looked at again", 0, first.Name)
	first.Status.Conditions = append(first.Status.Conditions, corev1.PodCondition{Type: appsv1beta1.PodConditionUpgradable, Message: `{"log":true}`})
	first.ResourceVersion = "4"
	set(tl, first)
	tl.CheckChore("log", podstate.MakeNamespace("a"), first.Name)
	chores("said", 0)

	second = moved(second, "v2", time.Unix(2000, 0))
	second.ResourceVersion = "5"
	set(tl, second)
	back(second, "6")
	third := carrier(3, "v1")
	third.ResourceVersion = "7"
	set(tl, third)
	chores("back, and one is outdated", 1)
	chores("none waits", 0, second.Name)
}

// The Pod has an event when the new container of a hot upgrade runs. The old container is
// given up then, whether or not the Pod was looked at before.
func TestAHotUpgradeIsLookedAtWithEachEvent(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v2", func(s *appsv1beta1.SidecarSet) {
		s.Spec.Containers[0].UpgradeStrategy = appsv1beta1.SidecarContainerUpgradeStrategy{UpgradeType: appsv1beta1.SidecarContainerHotUpgrade, HotUpgradeEmptyImage: "empty"}
	})
	p := carrier(0, "v2")
	p.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer] = `{"side":"side-2"}`
	p.Annotations[appsv1beta1.AnnotationVersionAltPrefix+"side-2"] = "8"
	p.Spec.Containers = []corev1.Container{{Name: "side-1", Image: "v1"}, {Name: "side-2", Image: "v2"}}
	p.Status.ContainerStatuses = nil // the Pod was never ready
	p.Status.Conditions = nil
	event := func(version string) {
		p.ResourceVersion = version
		tl.Set(podstate.FromPod(p))
	}
	chores := func(when string, want int) {
		t.Helper()
		dueChanged := false
		tl.DueChanged(func(string) { dueChanged = true })
		if due := tl.Due("log", 8); len(due.Chores) != want || want > 0 && !dueChanged {
			t.Errorf("%s: %d chores are due, and a look was asked for: %t; want %d", when, len(due.Chores), dueChanged, want)
		}
	}
	event("2")
	chores("updated", 1)
	chores("given out", 0)
	event("3")
	chores("an event", 1)
	event("4")
	chores("another event", 1)
	p.Spec.Containers[0].Image = "empty"
	event("5")
	chores("ended", 0)
}

// The caller has room for a number of writes.
func TestUpdatesAndChoresAreNoMoreThanAsked(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v2", func(s *appsv1beta1.SidecarSet) {
		s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(9))
		s.Spec.Containers[0].UpgradeStrategy = appsv1beta1.SidecarContainerUpgradeStrategy{
			UpgradeType: appsv1beta1.SidecarContainerHotUpgrade, HotUpgradeEmptyImage: "empty",
		}
	})
	for i := range 4 { // of which two end their hot upgrade
		p := carrier(i, []string{"v1", "v2"}[i%2])
		p.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer] = `{"side":"side-2"}`
		if i%2 == 1 {
			p.Annotations[appsv1beta1.AnnotationVersionAltPrefix+"side-2"] = "8"
		}
		p.Spec.Containers[0].Name, p.Status.ContainerStatuses[0].Name = "side-1", "side-1"
		p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
		p.Spec.Containers[1].Name = "side-2"
		status := p.Status.ContainerStatuses[0]
		status.Name = "side-2"
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, status)
		set(tl, p)
	}
	for _, want := range [][2]int{{2, 1}, {0, 1}, {0, 0}} {
		if due := tl.Due("log", 3); len(due.Updates) != want[0] || len(due.Chores) != want[1] {
			t.Errorf("%d updates and %d chores are due, want %v", len(due.Updates), len(due.Chores), want)
		}
	}
}

// Another writer that does not know the first value may overwrite it. The event that shows
// this is the only one.
func TestAConditionThatIsOverwrittenIsWrittenAgain(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v2", nil)
	p := moved(carrier(0, "v1"), "v2", time.Unix(2000, 0))
	p.Status = carrier(0, "v2").Status
	say := func(message string) {
		p.Status.Conditions = append(p.Status.Conditions[:1:1], corev1.PodCondition{Type: appsv1beta1.PodConditionUpgradable, Message: message})
		set(tl, p)
	}
	say(`{"log":true}`)
	tl.Due("log", 8)
	stirred(tl)
	say(`{"other":true}`)
	if names := stirred(tl); len(names) != 1 {
		t.Errorf("stirred are %q, want the SidecarSet", names)
	}
	if due := tl.Due("log", 8); len(due.Chores) != 1 {
		t.Errorf("%d chores are due, want 1", len(due.Chores))
	}
}

// With NotUpdate, a hot upgrade is not ended. With RollingUpdate it is ended, also while the
// update is paused.
func TestHotUpgradesEndUnlessNotUpdateIsSet(t *testing.T) {
	tl := newTally()
	roll := func(kind appsv1beta1.SidecarSetUpdateStrategyType, paused bool) {
		rolling(t, tl, "v2", func(s *appsv1beta1.SidecarSet) {
			s.Spec.UpdateStrategy.Type, s.Spec.UpdateStrategy.Paused = kind, paused
			s.Spec.Containers[0].UpgradeStrategy = appsv1beta1.SidecarContainerUpgradeStrategy{UpgradeType: appsv1beta1.SidecarContainerHotUpgrade, HotUpgradeEmptyImage: "empty"}
		})
	}
	p := carrier(0, "v2")
	p.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer] = `{"side":"side-2"}`
	p.Annotations[appsv1beta1.AnnotationVersionAltPrefix+"side-2"] = "8"
	p.Spec.Containers = []corev1.Container{{Name: "side-1", Image: "v1"}, {Name: "side-2", Image: "v2"}}
	roll(appsv1beta1.RollingUpdateSidecarSetStrategyType, true)
	roll(appsv1beta1.NotUpdateSidecarSetStrategyType, true)
	set(tl, p)
	if due := tl.Due("log", 8); len(due.Chores) != 0 {
		t.Errorf("%d chores are due with NotUpdate, want none", len(due.Chores))
	}
	roll(appsv1beta1.RollingUpdateSidecarSetStrategyType, true)
	if due := tl.Due("log", 8); len(due.Chores) != 1 {
		t.Errorf("%d chores are due while the update is paused, want 1", len(due.Chores))
	}
	roll(appsv1beta1.NotUpdateSidecarSetStrategyType, true)
	if due := tl.Due("log", 8); len(due.Chores) != 0 {
		t.Errorf("%d chores are due with NotUpdate again, want none", len(due.Chores))
	}
}
