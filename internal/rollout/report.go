package rollout

import (
	"cmp"
	"maps"
	"slices"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Limit is why no further Pod is taken now.
type Limit string

// The limits. If several apply, the first of this list is reported.
const (
	// Unlimited: a Pod can be taken now, or none waits.
	Unlimited Limit = ""
	// Invalid: the update strategy or an annotation cannot be read, so no Pod is taken.
	// Report.Problem has the error.
	Invalid Limit = "InvalidStrategy"
	// NotUpdate: updateStrategy.type is NotUpdate.
	NotUpdate Limit = "NotUpdate"
	// Paused: updateStrategy.paused is true.
	Paused Limit = "Paused"
	// Partition: partition excludes all Pods that wait.
	Partition Limit = "Partition"
	// Budget: as many Pods count against the budget as maxUnavailable allows.
	Budget Limit = "MaxUnavailable"
	// Proof: as many updated Pods are not proven as there are proven ones.
	Proof Limit = "MinReadySeconds"
	// Share: each Pod that waits has a controller with its share of the budget down.
	Share Limit = "Share"
	// Refusals: the API server refused the last Pods, so one Pod at a time is tried.
	Refusals Limit = "Refused"
)

// maxNames is the number of Pods that a group names.
const maxNames = 3

// Report is the state of a rollout at one time. Groups are sorted by reason. A group names its
// first Pods by namespace and name.
type Report struct {
	// Outdated is the number of Pods that do not carry the current content: those that
	// wait, are being written, are not selected, or are blocked.
	Outdated int
	// Waiting Pods can be taken, now or later; partition keeps Kept of them.
	Waiting, Kept int
	// Partition is the number of matched Pods that partition excludes. It includes Pods
	// that do not wait, so it can be greater than Kept.
	Partition int
	// Unselected is the number of outdated Pods that updateStrategy.selector excludes.
	Unselected int
	// Taken Pods are being written, were written and the watch has not delivered it, or wait
	// for the kubelet to act on an earlier change by another operator.
	Taken int
	// Used is how many places of the budget are taken, and Allowed how many there
	// are. Used can be above Allowed: maxUnavailable may have been lowered.
	Used, Allowed int
	// Counting are the Pods that take these places, by what they wait for: the kubelet's reason,
	// or one of the Waits* reasons of package apis. Deleted and evicted Pods whose places are
	// kept are in the group ReasonReplacementNotReady, with the names that they had.
	Counting []appsv1beta1.SidecarSetPodGroup
	// Failed is how many of the Counting cannot be expected to come back by waiting: a container
	// does not start, or the Pod was back and has turned not Ready.
	Failed int
	// Proven are the updated Pods that were Ready for min-ready-seconds since, and Unproven those
	// that were not yet.
	Proven, Unproven int
	// FirstUnproven names the first Unproven Pods.
	FirstUnproven []string
	// NotReadyBefore is how many matched Pods were not Ready when the rollout of this content
	// began. NotReadyKnown is false before that is counted.
	NotReadyBefore int
	NotReadyKnown  bool
	// Replaced are the evicted Pods whose replacements are not Ready yet.
	Replaced int
	// EvictionsWait says why no Pod is evicted now, although some are to be: "" if there is
	// no such cause. It ends by itself.
	EvictionsWait string
	// Blocked are Pods that cannot be updated, or were refused, by reason. The message is that
	// of one of them.
	Blocked []appsv1beta1.SidecarSetPodGroup
	// Limit is why no further Pod is taken now.
	Limit Limit
	// Problem is the error in the strategy, if the Limit is Invalid.
	Problem error
	// Moved is when the rollout last made progress: it began, was paused or resumed, or a Pod that
	// it wrote came back. Slack is how much longer than other rollouts it may take between two
	// such times: the longest grace period of a Pod that counts, and min-ready-seconds.
	Moved time.Time
	// Failing: every Pod that counts has failed, since FailingSince.
	Failing      bool
	FailingSince time.Time
	// Begun: nothing has moved since this leader began; Moved is then when it began.
	Begun bool
	Slack time.Duration
}

// report returns what a user is told.
func (p *pass) report() Report {
	r := p.r
	report := Report{
		Outdated: p.outdated, Waiting: p.waiting() + len(p.repair), Partition: r.strategy.Kept(p.matched),
		Unselected: p.unselected, Taken: p.inHand + p.waits,
		Used: p.used, Allowed: p.allowed(), Failed: p.failed, Proven: p.proven, Unproven: p.unproven,
		NotReadyBefore: max(0, r.before), NotReadyKnown: r.before >= 0, Replaced: p.replaced,
		Counting: p.counting.List(), Blocked: p.blocked.List(),
		Limit: p.limit(), Problem: r.strategy.problem,
		Moved: time.Unix(r.moved, 0), Begun: r.begun, Failing: r.failing != 0, FailingSince: time.Unix(r.failing, 0), Slack: time.Duration(int64(p.slack)+r.strategy.minReady) * time.Second,
	}
	report.Kept = min(report.Partition, p.waiting())
	if g := p.untried[""]; g != nil {
		report.FirstUnproven = g.First
	}
	if len(p.evict) > 0 {
		report.EvictionsWait = r.why
	}
	return report
}

// limit returns why no further Pod is taken now.
func (p *pass) limit() Limit {
	r := p.r
	available := len(p.available) > 0
	switch stops := r.strategy.stops(); {
	case stops != Unlimited:
		return stops
	case p.waiting()+len(p.repair) == 0:
		return Unlimited
	case r.window == 0 && r.free(p.inHand, p.now) <= 0:
		return Refusals
	case len(p.repair) > 0:
		return Unlimited
	case p.updatable() == 0:
		return Partition
	case available && p.hasRoom() && p.isProven() && !slices.ContainsFunc(p.available, func(e *entry) bool { return e.spare(p) }):
		return Share
	case available && p.hasRoom() && !p.isProven():
		return Proof
	case available && !p.hasRoom(), !available && len(p.unavailable) > 0 && !p.trial(), len(p.evict) > 0 && !p.hasRoom():
		return Budget
	}
	return Unlimited
}

// Groups are Pods by reason. The zero value has none.
type Groups map[string]*appsv1beta1.SidecarSetPodGroup

func (g *Groups) add(reason, message string, e *entry) { g.Add(reason, message, e.fullName()) }

// Add adds one Pod, named by namespace/name. A group keeps its first message.
func (g *Groups) Add(reason, message, pod string) {
	if *g == nil {
		*g = Groups{}
	}
	group := (*g)[reason]
	if group == nil {
		group = &appsv1beta1.SidecarSetPodGroup{Reason: reason}
		(*g)[reason] = group
	}
	group.Pods++
	group.Message = cmp.Or(group.Message, message)
	if at, _ := slices.BinarySearch(group.First, pod); at < maxNames {
		group.First = slices.Insert(group.First, at, pod)
		group.First = group.First[:min(len(group.First), maxNames)]
	}
}

// List returns the groups, sorted by reason; nil if there are none.
func (g Groups) List() (list []appsv1beta1.SidecarSetPodGroup) {
	for _, reason := range slices.Sorted(maps.Keys(g)) {
		list = append(list, *g[reason])
	}
	return list
}
