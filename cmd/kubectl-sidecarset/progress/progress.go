// Package progress says where the rollout of a SidecarSet is and whether a user has to act,
// from its stored state alone: it reads no Pods.
package progress

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/status"
)

// Summary is the state of one SidecarSet. Its form as JSON is stable.
type Summary struct {
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	// Observed: the rest is about this generation. If not, it is about an earlier one.
	Observed bool `json:"observed"`
	// NewPods says whether the next selected Pod gets the sidecars; Rollout what becomes of
	// running Pods; Degraded what a user has to act on, and is absent if there is nothing.
	NewPods  metav1.Condition  `json:"newPods"`
	Rollout  metav1.Condition  `json:"rollout"`
	Degraded *metav1.Condition `json:"degraded,omitempty"`

	// The counters are those of the SidecarSet's status. BlockedPods is a sum over Blocked.
	MatchedPods      int32 `json:"matchedPods"`
	UpdatedPods      int32 `json:"updatedPods"`
	UpdatedReadyPods int32 `json:"updatedReadyPods"`
	BlockedPods      int32 `json:"blockedPods"`
	UninjectedPods   int32 `json:"uninjectedPods"`

	LatestRevision string                               `json:"latestRevision,omitempty"`
	Revisions      []appsv1beta1.SidecarSetRevisionPods `json:"revisions,omitempty"`
	Blocked        []Group                              `json:"blocked,omitempty"`
	Uninjected     []Group                              `json:"uninjected,omitempty"`
	// NotRunning are the Pods one of whose sidecars does not run.
	NotRunning []Group `json:"notRunning,omitempty"`
	// Recreatable is how many of these Pods would have the revision if they were recreated.
	Recreatable int32 `json:"recreatablePods"`
	// MaxUnavailable is as the SidecarSet has it.
	MaxUnavailable string `json:"maxUnavailable"`
	// ToDo is the command that helps, and what it does; "" if there is none.
	ToDo string `json:"toDo,omitempty"`
}

// Group are Pods to which one reason applies.
type Group struct {
	appsv1beta1.SidecarSetPodGroup `json:",inline"`
	// Meaning explains the reason, and Remedy says what to do.
	Meaning string `json:"meaning"`
	Remedy  string `json:"remedy"`
}

// uninjected has the meaning of the reasons of status.uninjected, as docs/reference/status.md explains them.
var uninjected = map[string]string{
	appsv1beta1.ReasonOlderThanSidecarSet: "created before the SidecarSet",
	appsv1beta1.ReasonMissedAtCreation:    "created after the SidecarSet, and never injected",
	appsv1beta1.ReasonSidecarsMissing:     "created without all of the sidecars, although the Pod lists the SidecarSet",
	appsv1beta1.ReasonRecordRemoved:       "injected, and the SidecarSet has been removed from the Pod's list",
}

// Of returns the state of a SidecarSet.
func Of(set *appsv1beta1.SidecarSet) *Summary {
	st, strategy := &set.Status, &set.Spec.UpdateStrategy
	s := &Summary{
		Name: set.Name, Generation: set.Generation, Observed: st.ObservedGeneration == set.Generation,
		NewPods: newPods(set), Rollout: metav1.Condition{Reason: "Unknown", Message: "The operator has not written this yet. kubectl sidecarset doctor says whether it runs."},
		MatchedPods: st.MatchedPods, UpdatedPods: st.UpdatedPods, UpdatedReadyPods: st.UpdatedReadyPods, UninjectedPods: st.UninjectedPods,
		LatestRevision: st.LatestRevision, Revisions: st.Revisions, MaxUnavailable: "1",
	}
	if strategy.MaxUnavailable != nil {
		s.MaxUnavailable = strategy.MaxUnavailable.String()
	}
	if c := meta.FindStatusCondition(st.Conditions, appsv1beta1.ConditionProgressing); c != nil {
		s.Rollout = *c
	}
	if c := meta.FindStatusCondition(st.Conditions, appsv1beta1.ConditionDegraded); c != nil && c.Status == metav1.ConditionTrue {
		s.Degraded = c
	}
	for _, group := range st.BlockedPods {
		s.BlockedPods += group.Pods
		reason := inplace.Reason(group.Reason)
		meaning, remedy := explain.Blocked(reason)
		s.Blocked = append(s.Blocked, Group{group, meaning, remedy})
		if explain.NewPodHelps(reason) {
			s.Recreatable += group.Pods
		}
	}
	for _, group := range st.Uninjected {
		s.Uninjected = append(s.Uninjected, Group{group, uninjected[group.Reason], "recreate the Pod"})
		s.Recreatable += group.Pods
	}
	for _, group := range st.NotRunningPods {
		meaning, remedy := explain.NotRunning(group.Reason)
		group.Message = "container " + group.Message
		s.NotRunning = append(s.NotRunning, Group{group, meaning, remedy})
	}
	switch command := "kubectl sidecarset rollout "; {
	case s.Rollout.Reason == appsv1beta1.ReasonPaused && strategy.Paused:
		s.ToDo = command + "resume " + s.Name + " goes on updating Pods"
	case s.Rollout.Reason == appsv1beta1.ReasonStalled, s.Degraded != nil && s.Degraded.Reason == appsv1beta1.ReasonPodsNotReady:
		s.ToDo = command + "undo " + s.Name
		switch back := Worked(st, st.LatestRevision); {
		case back != nil && back.ReadyPods > 0:
			s.ToDo += fmt.Sprintf(" goes back to revision %s, which %d ready Pods have; the Pods that broke are repaired at once", back.Name, back.ReadyPods)
		case back != nil:
			s.ToDo += fmt.Sprintf(" goes back to the stable revision %s; no other revision has a ready Pod", back.Name)
		default:
			s.ToDo += " writes the newest other revision back; no other revision has a ready Pod, so look at rollout history first"
		}
	case s.Recreatable > 0:
		s.ToDo = command + "restart " + s.Name + fmt.Sprintf(" restarts the workloads of the %d Pods that need it", s.Recreatable)
	}
	return s
}

// Worked returns the revision, other than the current one, to go back to: the stable one if it has a ready Pod,
// else the one that most ready Pods have. If none has a ready Pod, it is the stable one, or nil if that is current.
func Worked(st *appsv1beta1.SidecarSetStatus, current string) (best *appsv1beta1.SidecarSetRevisionPods) {
	for i := range st.Revisions {
		switch r := &st.Revisions[i]; {
		case r.Name == "" || r.Name == current || r.ReadyPods == 0:
		case r.Name == st.StableRevision:
			return r
		case best == nil || r.ReadyPods > best.ReadyPods:
			best = r
		}
	}
	if stable := st.StableRevision; best == nil && stable != "" && stable != current {
		best = &appsv1beta1.SidecarSetRevisionPods{Name: stable}
	}
	return best
}

func newPods(set *appsv1beta1.SidecarSet) metav1.Condition {
	c := cmp.Or(meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady), &metav1.Condition{})
	switch {
	case set.Spec.InjectionStrategy.Paused:
		return metav1.Condition{Reason: appsv1beta1.ReasonPaused, Message: status.InjectionPausedMessage}
	case c.Reason == "" || c.ObservedGeneration != set.Generation:
		return metav1.Condition{Reason: "Unknown", Message: "The operator has not said yet whether new Pods get the sidecars."}
	}
	said := *c
	if ref, pinned := revision.ReferenceOf(set.Spec.InjectionStrategy.Revision); pinned {
		said.Message += fmt.Sprintf(" injectionStrategy.revision names %s for them.", ref)
	}
	return said
}

// Outcome says how a rollout ends. It is done when all Pods that the user wants to be updated
// are; the error says why it does not continue before a user acts, and what to do. Without either, the
// rollout continues, or a cause that ends by itself holds it up.
func (s *Summary) Outcome() (done bool, message string, err error) {
	if s.Degraded != nil && s.Degraded.Reason == appsv1beta1.ReasonRevisionNotRecorded {
		return false, "", errors.New(s.Degraded.Message)
	}
	if !s.Observed {
		return false, fmt.Sprintf("The leader has not observed generation %d yet.", s.Generation), nil
	}
	if s.Degraded != nil && s.Degraded.Reason == appsv1beta1.ReasonSidecarsNotRunning {
		return false, "", errors.New(s.Degraded.Reason + ": " + s.Degraded.Message + lines(s.NotRunning))
	}
	switch s.Rollout.Reason {
	case appsv1beta1.ReasonComplete, appsv1beta1.ReasonPartitionReached:
		return true, s.Rollout.Message, nil
	case appsv1beta1.ReasonBlocked:
		if s.Degraded == nil && s.BlockedPods > 0 { // the causes end by themselves
			return false, s.Rollout.Message, nil
		}
	case appsv1beta1.ReasonPaused, appsv1beta1.ReasonStalled, appsv1beta1.ReasonNotUpdate, appsv1beta1.ReasonInvalid:
	default:
		return false, s.Rollout.Message, nil
	}
	return false, "", errors.New(s.Problem())
}

// Problem says what keeps Pods from the revision, and what to do, in several lines.
func (s *Summary) Problem() string {
	text := s.Rollout.Reason + ": " + s.Rollout.Message + lines(slices.Concat(s.NotRunning, s.Blocked, s.Uninjected))
	return strings.TrimSuffix(text+"\n"+s.ToDo, "\n")
}

// lines names Pods, each group in a line of its own.
func lines(groups []Group) (text string) {
	for _, group := range groups {
		text += fmt.Sprintf("\n%d %s: %s", group.Pods, group.Reason, group.Text())
	}
	return text
}

// Text names the first Pods of the group, and says what is the matter and what to do.
func (g *Group) Text() string {
	names := strings.Join(g.First, ", ")
	if more := int(g.Pods) - len(g.First); more > 0 && names != "" {
		names += fmt.Sprintf(" and %d more", more)
	}
	parts := []string{names, g.Meaning, g.Message, g.Remedy}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "; ")
}
