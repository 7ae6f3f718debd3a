package rollout

import (
	"cmp"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Rule is why Pods that are to be updated wait.
type Rule uint8

// The rules. docs/rollouts.md explains them.
const (
	// NoRule: no Pod waits, except for its own write or its own backoff.
	NoRule Rule = iota
	// Budget: as many Pods are down because of the rollout as maxUnavailable allows.
	Budget
	// SlowStart: as many updated Pods are not available as are available.
	SlowStart
	// Repairs: as many updated Pods are not Ready as are Ready, or a tenth of all.
	Repairs
	// WorkloadShare: the workloads of the Pods have their share of the budget updating.
	WorkloadShare
	// MinReadySeconds: the Pods are not available yet.
	MinReadySeconds
	// NewPods: the Pods are new, have what new Pods get, and are not Ready yet.
	NewPods
	// Partition: partition keeps the other Pods.
	Partition
	// Storing: the status is stored first.
	Storing
	// Paused: updateStrategy.paused is true.
	Paused
	// NotUpdate: updateStrategy.type is NotUpdate.
	NotUpdate
	// Invalid: the update strategy or an annotation cannot be read; Plan.Problem says why.
	Invalid
)

// Plan is the answer of Decide.
type Plan struct {
	// Write are the Pods to update now, in this order, and Reset those whose hot upgrade is to be
	// ended.
	Write, Reset []*Pod
	// Rule is why the others wait, and Who the Pod that this rule waits for; nil if it waits for
	// none, or for Pods that disappeared. Without a rule, it is a Pod that uses the budget. If nothing
	// else holds the rule, it is the Pod that is to be written now. WhoIs is what the Pod does, in one
	// word: the kubelet's reason, or one of package apis.
	Rule  Rule
	Who   *Pod
	WhoIs string
	// Problem is what cannot be read of the strategy.
	Problem error
	// Next is when to decide again if nothing happens, in seconds; 0: never.
	Next int64
	// Status is to be stored.
	Status Status
	Numbers
	// Blocked are the Pods that cannot be updated in place, or back off, by reason.
	Blocked Groups
	// Evidence is about the current revision, if Input.Unstable.
	Evidence Evidence
	// NotRunning are the Pods whose sidecars do not run, by the kubelet's reason. NotRunningCurrent
	// is how many of them have the current revision.
	NotRunning        Groups
	NotRunningCurrent int
}

// Numbers are those of the rules. Pods on dead nodes are in none, unless they are lost: their nodes died
// after the update, less than ten minutes ago. Such Pods are in Updating and Unavailable. Pods without a
// node are in Total, Current and Outdated only.
type Numbers struct {
	Total    int // matched Pods
	Current  int // Pods with the current revision
	Outdated int // Pods that can be updated in place, and are selected
	Budget   int // maxUnavailable
	Kept     int // by partition, apart from Pods on dead nodes
	// BudgetUsed is Updating, FailedAfterUpdate beyond NotReadyBefore, and Disappeared.
	BudgetUsed, Updating, FailedAfterUpdate int
	// Unavailable are updated Pods that are updating, not yet available, failed or gone, and Available
	// those that are available. Pods that were not Ready before are in neither.
	Unavailable, Available int
	// UpdatedNotReady and UpdatedReady are the Pods that count for repairs.
	UpdatedNotReady, UpdatedReady int
	// Unselected are Pods that updateStrategy.selector excludes, and BackingOff those that are outdated
	// and whose last write was refused or undone.
	Unselected, BackingOff int
	// Failing are Pods that use the budget, have not been Ready for a minute, and do not come back by
	// waiting, as far as the kubelet says.
	Failing int
	// Moved is when the last Pod was written or came back, in seconds; 0: none was.
	Moved int64
	// Grace is the longest termination grace period of a Pod that uses the budget, and MinReady is
	// min-ready-seconds.
	Grace, MinReady int64
}

// minute is how long the kubelet's reason has to last before it counts, in seconds.
const minute = 60

// UndoneMessage explains the reason WriteReverted to users.
const UndoneMessage = "another program has taken the update back"

// Input is what Decide has to know apart from the Pods.
type Input struct {
	Strategy *Strategy
	Status   Status
	// Stored: the API server has the Status, as IsStoredIn tells.
	Stored bool
	// NewPodsGetEarlier: injectionStrategy.revision or sidecarset.io/new-pods gives another revision than the
	// current one to all new Pods.
	NewPodsGetEarlier bool
	// Unstable: the current revision is not the stable one, so that Evidence is wanted.
	Unstable bool
	// Now is in seconds since 1970.
	Now int64
}

// Decide returns what to do now. The Pods are the matched ones, in any order.
func Decide(in Input, pods []*Pod) Plan {
	d := decision{Input: in, strategy: in.Strategy, now: in.Now, pods: pods}
	d.Plan.Status = in.Status.at(d.now)
	d.wake(d.Plan.Status.DisappearedUntil)
	for _, p := range pods {
		d.count(p)
	}
	d.finish()
	return d.Plan
}

// decision is one run of Decide.
type decision struct {
	Input
	strategy *Strategy
	now      int64
	Plan
	pods          []*Pod
	workloads     map[podstate.Name]*workload // made when an available Pod may be written
	updating      []look
	notReady      int // and not by the operator
	failedFailing int // of those that failed after the update
	// dead are Pods on dead nodes, and deadOutdated those that partition keeps.
	dead, deadOutdated int
	// The Pods that may be written: not Ready because of an update, not Ready for other reasons,
	// available, and without a node.
	byUpdate, notReadyPods, available, unassigned []*Pod
	// The first Pods that are about to be written, of each kind.
	repair, tried *Pod
	traits        []*Traits
	who           [kinds]look
	// The counters with the Pods that are about to be written, and room is how many more may be
	// for the partition.
	budgetUsed, unavailable, updatedNotReady, room int
	evidence
}

// workload is the Pods of one controller. A Pod without a controller is a workload of its own.
type workload struct {
	pods, updating int
	who            look
}

// The kinds of Pods that rules wait for.
const (
	usesBudget      = iota
	notReadyYet     // is on the slow start, and not Ready
	notAvailableYet // is on the slow start, and Ready
	failed          // failed after the update
	updatedNotReady // is not Ready since it was updated
	becameReady     // is outdated, and has just become Ready
	isNew           // is outdated, new, and not Ready yet
	kinds
)

// name keeps the Pod to name: of those that count, the one with the oldest write.
func name(to *look, l look) {
	if to.Pod == nil || cmp.Or(compareBool(l.counts(), to.counts()), cmp.Compare(l.at, to.at), cmp.Compare(l.Summary.UID, to.Summary.UID)) < 0 {
		*to = l
	}
}

func (d *decision) wake(at int64) {
	if at > d.now && (d.Next == 0 || at < d.Next) {
		d.Next = at
	}
}

func (d *decision) workloadOf(r *podstate.Summary) *workload {
	id := r.Controller
	if id == 0 {
		id = podstate.MakeName(string(r.UID))
	}
	w := d.workloads[id]
	if w == nil {
		w = &workload{}
		d.workloads[id] = w
	}
	return w
}

// countWorkloads counts the Pods of each workload.
func (d *decision) countWorkloads() {
	d.workloads = map[podstate.Name]*workload{}
	for _, p := range d.pods {
		if !p.Dead && !p.isUnassigned() {
			d.workloadOf(p.Summary).pods++
		}
	}
	for _, l := range d.updating {
		w := d.workloadOf(l.Summary)
		w.updating++
		name(&w.who, l)
	}
}

// count counts one Pod, and finds what can be done with it.
func (d *decision) count(p *Pod) {
	now, r := d.now, p.Summary
	if p.Dead {
		d.countDead(p)
		return
	}
	d.Total++
	if d.strategy.scatters() {
		d.traits = append(d.traits, p.Traits)
	}
	if p.Updated && p.Sent == nil && !p.Matters() && !p.Resets { // as most Pods are
		d.Current++
		if !r.Ready && !p.isUnassigned() {
			d.notReady++
		}
		if d.Unstable && r.Ready {
			l := p.look(now)
			d.countCreated(&l)
		}
		return
	}
	l := p.look(now)
	switch {
	case p.isUnassigned() && p.current():
		d.countCurrent(&l)
		return
	case p.isUnassigned():
		d.offer(&l, None)
		return
	}
	d.wake(p.written().CarriedAt(now))
	state, next := l.state(d.strategy.minReady, now)
	d.wake(next)
	d.notRunning(&l)
	if !r.Ready && !l.byUpdate() {
		d.notReady++
	}
	if p.Resets && p.Sent == nil {
		d.Reset = append(d.Reset, p)
	}
	if l.counts() && state == Updating || !p.current() && l.byUpdate() {
		d.Updating++
		d.updating = append(d.updating, l)
		name(&d.who[usesBudget], l)
		if d.isFailing(&l) {
			d.Failing++
		}
	}
	if p.current() {
		d.countCurrent(&l)
		d.countUpdated(&l, state)
		d.countEvidence(&l, state)
	} else {
		d.offer(&l, state)
	}
}

// countDead counts a Pod on a dead node.
func (d *decision) countDead(p *Pod) {
	d.dead++
	if !p.Updated {
		d.Blocked.Add(inplace.NodeNotReady, "", p.Summary)
		if p.isInPlace() && !p.isUnselected() {
			d.deadOutdated++
		}
	}
	l := p.look(d.now)
	if is, until := l.lost(d.now); is {
		d.trial++
		d.Updating++
		d.Unavailable++
		d.wake(until)
		name(&d.who[usesBudget], l)
		name(&d.who[notReadyYet], l)
	}
}

// isFailing notes a Pod that uses the budget, and reports whether it is failing.
func (d *decision) isFailing(l *look) bool {
	d.Grace = max(d.Grace, int64(l.Summary.Grace))
	if l.Summary.Ready || !l.Trouble.IsFailure() && !l.carried {
		return false
	}
	from := max(l.at, l.since)
	d.wake(from + minute)
	return d.now >= from+minute
}

// countCurrent counts a Pod with the current revision.
func (d *decision) countCurrent(l *look) {
	d.Current++
	if l.has {
		d.Moved = max(d.Moved, l.at)
		if l.Summary.Ready && l.carried {
			d.Moved = max(d.Moved, l.since)
		}
	}
}

// countUpdated counts a Pod with the current revision by its state.
func (d *decision) countUpdated(l *look, state State) {
	switch state {
	case Updating:
		idle, next := l.idle(d.strategy.minReady, d.now)
		d.wake(next)
		if !idle && !(l.Summary.Ready && l.before == podstate.WasReady) { // it is Ready still
			d.UpdatedNotReady++
			name(&d.who[updatedNotReady], *l)
		}
		if l.counts() {
			d.Unavailable++
			name(&d.who[notReadyYet], *l)
		}
	case NotYetAvailable:
		d.UpdatedReady++
		if l.counts() {
			d.Unavailable++
			name(&d.who[notAvailableYet], *l)
		}
	case Available:
		d.UpdatedReady++
		if l.before == podstate.WasReady { // one that was not Ready before shows nothing
			d.Available++
		}
	case FailedAfterUpdate:
		d.UpdatedNotReady++
		d.FailedAfterUpdate++
		d.Unavailable++
		name(&d.who[failed], *l)
		name(&d.who[updatedNotReady], *l)
		if d.isFailing(l) {
			d.failedFailing++
		}
	case TimedOut:
		if idle, _ := l.idle(d.strategy.minReady, d.now); idle {
			d.UpdatedReady++
		}
		if l.Summary.Ready && !l.carried {
			d.Blocked.Add(inplace.UpdateTimedOut, l.Summary.ResizeMessage, l.Summary)
		}
	}
}

// offer finds what can be done with a Pod that is outdated.
func (d *decision) offer(l *look, state State) {
	p := l.Pod
	switch {
	case p.Verdict.Method == inplace.Unknown:
		return
	case !p.isInPlace():
		if p.Verdict.Reason != "" {
			d.Blocked.Add(p.Verdict.Reason, p.message(), p.Summary)
		}
		return
	case p.isUnselected() && !l.byUpdate():
		d.Unselected++
		return
	}
	d.Outdated++
	d.countOutdated(l)
	undone, isUndone := p.undone(d.now)
	if d.backsOff(p, &undone) {
		return
	}
	m := d.strategy.minReady
	switch created, until := l.isNew(d.now); {
	case p.isUnassigned() && d.NewPodsGetEarlier:
		name(&d.who[isNew], *l)
	case p.isUnassigned():
		d.unassigned = append(d.unassigned, p)
	case !p.Summary.Ready && (l.counts() || isUndone && undone.counts()):
		d.byUpdate = append(d.byUpdate, p)
	case created:
		d.wake(until)
		name(&d.who[isNew], *l)
	case !p.Summary.Ready:
		d.notReadyPods = append(d.notReadyPods, p)
	case state == Updating: // for another revision
	case state == NotYetAvailable:
		name(&d.who[becameReady], *l)
	case d.now < l.since+m:
		d.wake(l.since + m)
		name(&d.who[becameReady], *l)
	default:
		d.available = append(d.available, p)
	}
}

// backsOff reports whether a Pod must not be written, because its last write was refused or undone.
func (d *decision) backsOff(p *Pod, undone *look) (is bool) {
	var reason Backoff
	if undone.Pod != nil && d.now < undone.timeout {
		is, reason = true, Backoff{Reason: inplace.WriteReverted, Message: UndoneMessage}
		d.wake(undone.timeout)
		if undone.counts() {
			d.Unavailable++
			name(&d.who[notReadyYet], *undone)
		}
	}
	if p.Backoff != nil && d.now < p.Backoff.Until {
		is, reason = true, *p.Backoff
		d.wake(p.Backoff.Until)
	}
	if reason.Reason != "" {
		d.BackingOff++
		d.Blocked.Add(reason.Reason, reason.Message, p.Summary)
	}
	return is
}

// isUnselected reports whether updateStrategy.selector excludes the Pod.
func (p *Pod) isUnselected() bool { return p.Traits != nil && p.Traits.unselected }

// message is what the kubelet says about a resize that keeps the Pod from being updated.
func (p *Pod) message() string {
	if p.Verdict.Reason.IsOfResize() {
		return p.Summary.ResizeMessage
	}
	return ""
}

// notRunning counts a Pod one of whose sidecars does not run: for a minute, by a reason of failure,
// or for ten while it is only being created.
func (d *decision) notRunning(l *look) {
	if l.Trouble == 0 || l.Summary.Ready {
		return
	}
	at := l.since + tenMinutes
	if l.Trouble.IsFailure() {
		at += minute - tenMinutes
	}
	if d.now < at {
		d.wake(at)
		return
	}
	d.NotRunning.Add(inplace.Reason(l.Trouble.String()), l.Sidecar, l.Summary)
	if l.current() {
		d.NotRunningCurrent++
	}
}

// finish decides from the counters.
func (d *decision) finish() {
	d.MinReady = d.strategy.minReady
	d.Numbers.Budget = d.strategy.Allowed(d.Total)
	d.Kept = max(0, d.strategy.Kept(d.Total+d.dead)-d.deadOutdated)
	failed := max(0, d.FailedAfterUpdate-max(0, d.Plan.Status.NotReadyBefore)) // beyond those that were not Ready before
	d.BudgetUsed = d.Updating + failed + d.Plan.Status.Disappeared
	d.Failing += min(failed, d.failedFailing)
	d.Unavailable += d.Plan.Status.Disappeared
	switch s := d.strategy; {
	case s.problem != nil:
		d.Rule, d.Problem, d.Reset = Invalid, s.problem, nil
		d.weighEvidence()
		return
	case s.off == NotUpdate:
		d.Plan = Plan{Rule: NotUpdate, Next: d.Next, Status: Begun, Numbers: Numbers{Total: d.Total, Current: d.Current}, NotRunning: d.NotRunning, NotRunningCurrent: d.NotRunningCurrent}
		return
	case s.off == Paused:
		d.Rule, d.Reset = Paused, nil
		d.weighEvidence()
		d.setWho(d.budgetUser())
		return
	}
	d.budgetUsed, d.unavailable, d.updatedNotReady, d.room = d.BudgetUsed, d.Unavailable, d.UpdatedNotReady, d.Outdated-d.Kept
	repairs := d.takeNotReady(d.byUpdate)
	if repairs != Repairs && len(d.notReadyPods) > 0 {
		repairs = cmp.Or(d.takeNotReady(d.notReadyPods), repairs)
	}
	wait, holder := d.takeAvailable()
	repairs = cmp.Or(repairs, d.takeUnassigned())
	if len(d.Write) > 0 && d.Plan.Status.NotReadyBefore < 0 {
		d.Plan.Status.NotReadyBefore = d.notReady
	}
	if len(d.Write) > 0 && (d.Plan.Status.Started == 0 || d.Plan.Status.Started > d.now) {
		d.Plan.Status.Started = d.now
	}
	d.weighEvidence()
	d.explain(wait, repairs, holder)
}
