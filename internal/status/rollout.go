package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/text"
)

// A rollout is stalled if nothing has moved for stalledAfter, which is the default of Deployments,
// and the grace period and min-ready-seconds of its Pods. A leader that writes no Pods waits
// pausedAfter instead.
const (
	stalledAfter = 10 * time.Minute
	pausedAfter  = time.Minute
)

// off says what keeps the operator from updating any available Pod, as the user wants it; "" if
// nothing does.
func off(p *rollout.Plan) string {
	switch {
	case p.Rule == rollout.NotUpdate:
		return "updateStrategy.type is NotUpdate"
	case p.Rule == rollout.Paused:
		return "updateStrategy.paused is true"
	case p.Budget == 0 && p.Total > 0 && p.Rule != rollout.Invalid:
		return "updateStrategy.maxUnavailable is 0, so only Pods that are not Ready are updated"
	}
	return ""
}

// movable is the number of Pods that can be updated, now or later.
func movable(p *rollout.Plan) int { return max(0, p.Outdated-p.BackingOff-p.Kept) }

// underWay is the number of Pods that use the budget and have not disappeared.
func underWay(p *rollout.Plan) int { return p.BudgetUsed - p.Status.Disappeared }

// counted returns a number of things: 1 Pod, 2 Pods. The words are in the singular.
func counted[N int | int32](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// verb returns is or are.
func verb[N int | int32](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// updated says how many of the matched Pods are updated.
func updated(n Counters) string {
	of, subject := counted(n.Matched, "matched Pod"), n.Updated
	if n.Matched == 1 {
		subject = 1
	}
	return fmt.Sprintf("%d of %s %s updated.", n.Updated, of, verb(subject))
}

// allUpdated says that all matched Pods are updated.
func allUpdated(n Counters) string {
	if n.Matched == 1 {
		return "The only matched Pod is updated."
	}
	return fmt.Sprintf("All %d matched Pods are updated.", n.Matched)
}

// stallsAt is when the rollout is stalled if nothing moves until then; zero if it cannot be.
func (o Observation) stallsAt() time.Time {
	p := o.Plan
	if p == nil || p.Rule == rollout.Invalid || p.Rule == rollout.NotUpdate {
		return time.Time{}
	}
	waits := off(p) == "" && movable(p) > 0
	if underWay(p) == 0 && !waits {
		return time.Time{}
	}
	if !waits && p.Failing > 0 {
		return time.Unix(1, 0) // no other Pod waits, so there is nothing to wait for
	}
	at, slack := o.Since, time.Duration(p.Grace+p.MinReady)*time.Second
	if moved := time.Unix(p.Moved, 0); p.Moved != 0 && moved.After(at) {
		at = moved
	}
	if off(p) != "" {
		return at.Add(pausedAfter + slack)
	}
	return at.Add(stalledAfter + slack)
}

// LooksAgainIn returns the time after which the status changes although nothing happens; false if it
// does not.
func (o Observation) LooksAgainIn() (in time.Duration, ok bool) {
	note := func(at time.Time) {
		if d := at.Sub(o.Now); !at.IsZero() && d > 0 && (!ok || d < in) {
			in, ok = d, true
		}
	}
	if note(o.stallsAt()); o.Plan != nil && o.Plan.Next != 0 {
		note(time.Unix(o.Plan.Next, 0))
	}
	return in, ok
}

func (o Observation) stalled() bool {
	at := o.stallsAt()
	return !at.IsZero() && !o.Now.Before(at)
}

// verdict has the reasons and messages of the two conditions about running Pods.
type verdict struct {
	progressing, says string
	degraded, because string // "" if it is False
}

func both(reason, message string) verdict { return verdict{reason, message, reason, message} }

func (v verdict) conditions() (progressing, degraded metav1.Condition) {
	progressing = metav1.Condition{Type: appsv1beta1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: v.progressing, Message: text.Cut(v.says, maxBrief)}
	if v.progressing == appsv1beta1.ReasonRollingOut {
		progressing.Status = metav1.ConditionTrue
	}
	degraded = metav1.Condition{Type: appsv1beta1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: v.degraded, Message: text.Cut(v.because, maxBrief)}
	if v.degraded == "" {
		degraded.Status, degraded.Reason, degraded.Message = metav1.ConditionFalse, appsv1beta1.ReasonAsExpected, "No action is needed."
	}
	return progressing, degraded
}

// maxBrief bounds the messages of the conditions about running Pods, in bytes.
const maxBrief = 720

// judge returns what the conditions about running Pods say.
func judge(o Observation) verdict {
	p := o.Plan
	if o.Problem != nil {
		return both(appsv1beta1.ReasonInvalid, "No running Pod is updated until the SidecarSet is corrected: see the condition Accepted.")
	}
	stalled := o.stalled() && why(p) != "" // nothing is said without a cause
	v := phase(o, stalled)
	blocked := groupsOf(&p.Blocked)
	switch {
	case o.Unrecorded != nil:
		v.degraded, v.because = appsv1beta1.ReasonRevisionNotRecorded, unrecordedMessage(o)
	case v.degraded != "": // the strategy cannot be read
	case stalled && off(p) == "" && movable(p) > 0: // other Pods wait
		v.degraded, v.because = appsv1beta1.ReasonStalled, why(p)
	case stalled:
		v.degraded, v.because = appsv1beta1.ReasonPodsNotReady, why(p)
	case p.NotRunningCurrent > 0 && p.NotRunningCurrent >= (p.Current+19)/20:
		v.degraded, v.because = appsv1beta1.ReasonSidecarsNotRunning, notRunning(o)
	case slices.ContainsFunc(blocked, needsUser) && wanted(o):
		v.degraded = appsv1beta1.ReasonBlocked
		v.because = fmt.Sprintf("%s cannot be updated: %s. status.blockedPods names the first ones.", counted(sum(blocked), "Pod"), namesOf(blocked))
	}
	return v
}

// phase returns what Progressing says.
func phase(o Observation, stalled bool) (v verdict) {
	p, n := o.Plan, o.Counters
	blocked, toGo := groupsOf(&p.Blocked), n.Matched-n.Updated
	switch {
	case p.Rule == rollout.Invalid:
		return both(appsv1beta1.ReasonInvalid, fmt.Sprintf("No running Pod is updated: %v", p.Problem))
	case p.Rule == rollout.NotUpdate:
		v.progressing, v.says = appsv1beta1.ReasonNotUpdate, off(p)+": running Pods keep the sidecars that they have."
	case toGo+n.Uninjected == 0 && underWay(p) == 0:
		v.progressing, v.says = appsv1beta1.ReasonComplete, allUpdated(n)
	case off(p) != "" && int(toGo)+underWay(p) > 0:
		v.progressing, v.says = appsv1beta1.ReasonPaused, off(p)+": "+left(o)
	case stalled:
		v.progressing, v.says = appsv1beta1.ReasonStalled, left(o)+" "+why(p)
	case underWay(p)+p.Unavailable-p.Status.Disappeared+movable(p) > 0:
		v.progressing, v.says = appsv1beta1.ReasonRollingOut, strings.TrimSpace(left(o)+" "+why(p))
	case len(blocked) > 0 && wanted(o):
		v.progressing = appsv1beta1.ReasonBlocked
		v.says = fmt.Sprintf("%s %s cannot be updated: %s.", updated(n), counted(sum(blocked), "Pod"), namesOf(blocked))
	case toGo > 0:
		v.progressing = appsv1beta1.ReasonPartitionReached
		v.says = updated(n) + " updateStrategy.partition or updateStrategy.selector excludes the others."
	default:
		v.progressing = appsv1beta1.ReasonBlocked
		was := "were"
		if n.Uninjected == 1 {
			was = "was"
		}
		v.says = fmt.Sprintf("%s %s %s not injected: only new Pods can have the sidecars. status.uninjected has the reasons.", allUpdated(n), counted(n.Uninjected, "selected Pod"), was)
	}
	return v
}

// deleting says that the SidecarSet is being deleted.
func deleting(finalizers []string) metav1.Condition {
	message := fmt.Sprintf("The SidecarSet is being deleted, and waits for its finalizers: %s. Running Pods are not updated.", strings.Join(finalizers, ", "))
	return metav1.Condition{Type: appsv1beta1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: appsv1beta1.ReasonDeleting, Message: text.Cut(message, maxBrief)}
}

// wanted reports whether partition and selector let go more Pods than those that are updated, so
// that blocked Pods are missed.
func wanted(o Observation) bool {
	toGo := int(o.Counters.Matched - o.Counters.Updated)
	return toGo == 0 || toGo > o.Plan.Kept+o.Plan.Unselected
}

func left(o Observation) string {
	said := updated(o.Counters)
	if n := movable(o.Plan); n > 0 {
		said += fmt.Sprintf(" %d %s still to be updated.", n, verb(n))
	}
	return said
}

// why says by which rule Pods wait, and for which Pod; "" if they wait for nothing. It has no duration,
// so that it does not change with time.
func why(p *rollout.Plan) string {
	who := ""
	if p.Who != nil {
		who = fmt.Sprintf("%s (%s)", text.Middle(p.Who.Summary.FullName(), maxExample), p.WhoIs)
	}
	waits := " The rollout waits for " + who + "."
	switch {
	case (p.Rule == rollout.Budget || p.Rule == rollout.SlowStart) && who == "":
		return gone(p)
	case p.Rule == rollout.Storing:
		return "The next Pods wait until the status is stored."
	case who == "":
	case p.WhoIs == appsv1beta1.ReasonUpdating:
		return "The next Pod is " + who + "."
	case p.Rule == rollout.Budget && p.BudgetUsed < p.Budget: // the Pod is about to be written
		return "Budget: the rollout waits for " + who + "."
	case p.Rule == rollout.Budget:
		return fmt.Sprintf("Budget: maxUnavailable is %d, and %s.", p.Budget, uses(p.BudgetUsed)) + waits
	case p.Rule == rollout.SlowStart:
		return fmt.Sprintf("SlowStart: %s %s not available, and %d %s.", counted(p.Unavailable, "updated Pod"), verb(p.Unavailable), p.Available, verb(p.Available)) + waits
	case p.Rule == rollout.Repairs:
		return fmt.Sprintf("Repairs: of the updated Pods, %d %s not Ready, and %d %s. The other Pods that are not Ready wait for %s.",
			p.UpdatedNotReady, verb(p.UpdatedNotReady), p.UpdatedReady, verb(p.UpdatedReady), who)
	case p.Rule == rollout.WorkloadShare:
		return fmt.Sprintf("WorkloadShare: the workloads of the next Pods have their share of maxUnavailable, which is %d.", p.Budget) + waits
	case p.Rule == rollout.MinReadySeconds:
		return fmt.Sprintf("MinReadySeconds: the next Pods have just become Ready, and min-ready-seconds is %d.", p.MinReady) + waits
	case p.Rule == rollout.NewPods:
		return "NewPods: the next Pods are new, and have the revision that new Pods get." + waits
	case underWay(p) > 0:
		return fmt.Sprintf("%s %s not back from the update. The first is %s.", counted(underWay(p), "Pod"), verb(underWay(p)), who)
	}
	return gone(p)
}

// uses says how many Pods use the budget.
func uses(n int) string {
	if n == 1 {
		return "1 Pod uses it"
	}
	return fmt.Sprintf("%d Pods use it", n)
}

// gone says until when Pods that disappeared use the budget, if Pods wait for that; else "".
func gone(p *rollout.Plan) string {
	use := "use"
	if p.Status.Disappeared == 1 {
		use = "uses"
	}
	switch {
	case p.Status.Disappeared == 0 || movable(p) == 0:
		return ""
	case p.Rule == rollout.Budget, p.Rule == rollout.SlowStart:
		return fmt.Sprintf("%s: %s that disappeared %s maxUnavailable until %s.", ruleNames[p.Rule], counted(p.Status.Disappeared, "Pod"), use,
			time.Unix(p.Status.DisappearedUntil, 0).UTC().Format("15:04 UTC"))
	}
	return ""
}

var ruleNames = map[rollout.Rule]string{rollout.Budget: "Budget", rollout.SlowStart: "SlowStart"}

// notRunning says which sidecars do not run.
func notRunning(o Observation) string {
	all := groupsOf(&o.Plan.NotRunning)
	said := fmt.Sprintf("The sidecars of %s do not run:", counted(sum(all), "Pod"))
	for _, g := range all[:min(maxNames, len(all))] {
		said += fmt.Sprintf(" %d %s (container %s, first Pod %s);", g.Pods, text.Cut(g.Reason, maxReason), text.Middle(g.Message, maxExample), text.Middle(g.First[0], maxExample))
	}
	return strings.TrimSuffix(said, ";") + "."
}

func unrecordedMessage(o Observation) string {
	return fmt.Sprintf("No ControllerRevision records generation %d yet, so running Pods are not updated to it: %v", o.Generation, o.Unrecorded)
}

// needsUser reports whether Pods stay blocked until a user does something.
func needsUser(group appsv1beta1.SidecarSetPodGroup) bool {
	switch inplace.Reason(group.Reason) {
	case inplace.RunToCompletion, // the Pod ends
		inplace.NodeNotReady,   // the node comes back, or the Pod goes
		inplace.WriteFailed,    // is tried again
		inplace.ResizeDeferred, // the kubelet tries again
		inplace.MirrorPod:      // the kubelet updates it with its static Pod
		return false
	}
	return true
}

// The reasons come from the kubelet, and the names from the Pods.
const maxReason, maxExample = 40, 100

// groupsOf returns the groups, the largest first.
func groupsOf(g *rollout.Groups) []appsv1beta1.SidecarSetPodGroup { return groups(g.List()) }

func namesOf(groups []appsv1beta1.SidecarSetPodGroup) string {
	said := make([]string, len(groups))
	for i, group := range groups {
		said[i] = fmt.Sprintf("%d %s", group.Pods, group.Reason)
	}
	return strings.Join(said, ", ")
}

func sum(groups []appsv1beta1.SidecarSetPodGroup) (pods int32) {
	for i := range groups {
		pods += groups[i].Pods
	}
	return pods
}
