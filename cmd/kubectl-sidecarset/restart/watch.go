package restart

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/podstate"
)

// failsAfter is how long a new Pod may show a reason of failure.
const failsAfter = time.Minute

// watch remembers what new Pods have shown. Times are of the clock of this program: those of nodes
// may differ.
type watch struct {
	minReady time.Duration
	has      func(*corev1.Pod) bool // the current revision
	pods     map[types.UID]*shown
}

// shown is what one Pod has shown.
type shown struct {
	ready   time.Time   // when it was first seen Ready; zero if it was not yet
	since   metav1.Time // its own time of that
	failing time.Time   // when it first showed a reason of failure
	enough  bool        // it was Ready for long enough
}

// state is how a new Pod does.
type state int

const (
	waiting   state = iota
	available       // it was Ready for long enough
	failed
)

// look notes how a new Pod does, and says what it waits for or why it failed.
func (w *watch) look(pod *corev1.Pod, now time.Time) (state, string) {
	if w.pods == nil {
		w.pods = map[types.UID]*shown{}
	}
	s := w.pods[pod.UID]
	if s == nil {
		s = &shown{}
		w.pods[pod.UID] = s
	}
	if s.enough {
		return available, ""
	}
	if !w.has(pod) {
		return failed, "does not have the current revision; kubectl sidecarset explain " + pod.Name + " -n " + pod.Namespace + " says why"
	}
	trouble, fails := troubleOf(pod)
	condition := podstate.Condition(pod, corev1.PodReady)
	isReady := podstate.IsPodReady(pod)
	switch {
	case !s.ready.IsZero() && (!isReady || !condition.LastTransitionTime.Equal(&s.since)):
		return failed, "was Ready and is not any more" + inBrackets(trouble)
	case isReady && s.ready.IsZero():
		s.ready, s.since = now, condition.LastTransitionTime
	}
	if isReady {
		if now.Sub(s.ready) < w.minReady {
			return waiting, fmt.Sprintf("is Ready, and has to stay so for %s", w.minReady)
		}
		s.enough = true
		return available, ""
	}
	if fails && s.failing.IsZero() {
		s.failing = now
	}
	if fails && now.Sub(s.failing) >= failsAfter {
		return failed, "does not become Ready" + inBrackets(trouble)
	}
	return waiting, "is not Ready yet" + inBrackets(trouble)
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// troubleOf says why a Pod is not Ready, as far as it shows that. fails: that is a failure, and not
// only a wait.
func troubleOf(pod *corev1.Pod) (text string, fails bool) {
	if pod.Status.Phase == corev1.PodFailed {
		return cmp.Or(pod.Status.Reason+" "+pod.Status.Message, "Failed"), true
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if wait := s.State.Waiting; wait != nil && wait.Reason != "" && wait.Reason != "ContainerCreating" && wait.Reason != "PodInitializing" {
			return "container " + s.Name + ": " + joined(wait.Reason, wait.Message), true
		}
		if end := s.State.Terminated; end != nil && end.ExitCode != 0 {
			return fmt.Sprintf("container %s ended with code %d: %s", s.Name, end.ExitCode, joined(end.Reason, end.Message)), true
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.State.Running != nil && !s.Ready {
			return "container " + s.Name + " is not ready", false
		}
	}
	if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return joined(c.Reason, c.Message), false
	}
	return "", false
}

func joined(reason, message string) string {
	if message == "" {
		return reason
	}
	return reason + ": " + message
}
