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
	// NoRule: no Pod waits, except for its own write or its own rest.
	NoRule Rule = iota
	// Budget: as many Pods are down because of the rollout as maxUnavailable allows.
	Budget
	// Proof: as many Pods are updating, settling or late as are proven.
	Proof
	// DownPods: as many updated Pods are down as are up, or a tenth of all.
	DownPods
	// Share: the controllers of the Pods have their share of the budget updating.
	Share
	// JustReady: the Pods have just become Ready.
	JustReady
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
	// none, or for Pods that disappeared. Without a rule, it is a Pod that is charged. WhoIs is what
	// the Pod does, in one word: the kubelet's reason, or one of package apis.
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
	// Blocked are the Pods that cannot be updated in place, or rest, by reason.
	Blocked Groups
	// NotRunning are the Pods whose sidecars do not run, by the kubelet's reason. NotRunningCurrent
	// is how many of them carry the current content.
	NotRunning        Groups
	NotRunningCurrent int
}

// Numbers are those of the rules. Pods on dead nodes are in none.
type Numbers struct {
	Total    int // matched Pods
	Current  int // Pods with the current content
	Outdated int // Pods that can be updated in place, and are selected
	Budget   int // maxUnavailable
	Kept     int // by partition
	// Charged use the budget: Updating, Late beyond NotReadyBefore, and Disappeared.
	Charged, Updating, Late int
	// Trial are updating, settling or late, and Proven proven.
	Trial, Proven int
	// Down are updated Pods that are down, and Up those that are up.
	Down, Up int
	// Unselected are Pods that updateStrategy.selector excludes, and Resting those that are outdated
	// and were refused.
	Unselected, Resting int
	// Failing are charged Pods that have not been Ready for a minute and do not come back by
	// waiting, as far as the kubelet says.
	Failing int
	// Moved is when the last Pod was written or came back, in seconds; 0: none was.
	Moved int64
	// Grace is the longest termination grace period of a Pod that is charged, and MinReady is
	// min-ready-seconds.
	Grace, MinReady int64
}

// minute is how long the kubelet's reason has to last before it counts, in seconds.
const minute = 60

// Decide returns what to do now, in seconds since 1970. stored: the status is stored. The Pods are
// the matched ones, in any order.
func Decide(s *Strategy, status Status, stored bool, pods []*Pod, now int64) Plan {
	d := decision{strategy: s, now: now, pods: pods}
	d.Status = status.at(now)
	d.wake(d.Status.DisappearedUntil)
	for _, p := range pods {
		d.count(p)
	}
	d.finish(stored)
	return d.Plan
}

// decision is one run of Decide.
type decision struct {
	strategy *Strategy
	now      int64
	Plan
	pods          []*Pod
	crews         map[podstate.Name]*crew // made when an available Pod may be written
	updating      []look
	notReady      int // and not by the operator
	lateFailing   int
	first, second []*Pod
	available     []*Pod
	traits        []*Traits
	who           [kinds]look
	// The counters with the Pods that are about to be written, and room is how many more may be
	// for the partition.
	charged, trial, down, room int
}

// crew is the Pods of one controller. A Pod without a controller is a crew of its own.
type crew struct {
	pods, updating int
	who            look
}

// The kinds of Pods that rules wait for.
const (
	charging  = iota // uses the budget
	unproven         // is on trial, and not Ready
	settling         // is on trial, and Ready
	lateNow          // is late
	downNow          // is down since it was updated
	justReady        // has just become Ready
	kinds
)

// name keeps the Pod to name: of those that count, the one with the oldest write.
func name(to *look, l look) {
	if to.Pod == nil || cmp.Or(compareBool(l.counts(), to.counts()), cmp.Compare(l.at, to.at), cmp.Compare(l.Record.UID, to.Record.UID)) < 0 {
		*to = l
	}
}

// compareBool orders true before false.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (d *decision) wake(at int64) {
	if at > d.now && (d.Next == 0 || at < d.Next) {
		d.Next = at
	}
}

func (d *decision) crewOf(r *podstate.Record) *crew {
	id := r.Controller
	if id == 0 {
		id = podstate.MakeName(string(r.UID))
	}
	c := d.crews[id]
	if c == nil {
		c = &crew{}
		d.crews[id] = c
	}
	return c
}

// countCrews counts the Pods of each controller.
func (d *decision) countCrews() {
	d.crews = map[podstate.Name]*crew{}
	for _, p := range d.pods {
		if !p.Dead {
			d.crewOf(p.Record).pods++
		}
	}
	for _, l := range d.updating {
		c := d.crewOf(l.Record)
		c.updating++
		name(&c.who, l)
	}
}

// count counts one Pod, and finds what can be done with it.
func (d *decision) count(p *Pod) {
	now, r := d.now, p.Record
	if p.Dead {
		if !p.Carries {
			d.Blocked.Add(inplace.NodeNotReady, "", r)
		}
		return
	}
	d.Total++
	if d.strategy.scatters() {
		d.traits = append(d.traits, p.Traits)
	}
	if p.Carries && p.Sent == nil && !p.Matters() && !p.Resets { // as most Pods are
		d.Current++
		if !r.Ready {
			d.notReady++
		}
		return
	}
	l := p.look(now)
	d.wake(int64(p.written().Carried))
	state, next := l.state(d.strategy.minReady, now)
	d.wake(next)
	d.notRunning(p)
	if !r.Ready && !l.ours() {
		d.notReady++
	}
	if p.Resets && p.Sent == nil {
		d.Reset = append(d.Reset, p)
	}
	if l.counts() && state == Updating || !p.current() && l.ours() {
		d.Updating++
		d.updating = append(d.updating, l)
		name(&d.who[charging], l)
		if d.charge(&l) {
			d.Failing++
		}
	}
	if p.current() {
		d.prove(&l, state)
	} else {
		d.offer(&l, state)
	}
}

// charge notes a Pod that uses the budget, and reports whether it is failing.
func (d *decision) charge(l *look) bool {
	d.Grace = max(d.Grace, int64(l.Record.Grace))
	if l.Record.Ready || !l.Trouble.IsFailure() && !l.carried {
		return false
	}
	from := max(l.at, l.since)
	d.wake(from + minute)
	return d.now >= from+minute
}

// prove counts a Pod with the current content.
func (d *decision) prove(l *look, state State) {
	d.Current++
	if l.has {
		d.Moved = max(d.Moved, l.at)
		if l.Record.Ready && l.carried {
			d.Moved = max(d.Moved, l.since)
		}
	}
	switch state {
	case Updating:
		idle, next := l.idle(d.strategy.minReady, d.now)
		d.wake(next)
		if !idle && !(l.Record.Ready && l.was == podstate.WasUp) { // not down yet
			d.Down++
			name(&d.who[downNow], *l)
		}
		if l.counts() {
			d.Trial++
			name(&d.who[unproven], *l)
		}
	case Settling:
		d.Up++
		if l.counts() {
			d.Trial++
			name(&d.who[settling], *l)
		}
	case Proven:
		d.Up++
		if l.was == podstate.WasUp { // one that was down before proves nothing
			d.Proven++
		}
	case Late:
		d.Down++
		d.Late++
		d.Trial++
		name(&d.who[lateNow], *l)
		name(&d.who[downNow], *l)
		if d.charge(l) {
			d.lateFailing++
		}
	case Excused:
		if l.Record.Ready && !l.carried {
			d.Blocked.Add(inplace.NotCarriedOut, l.Record.ResizeMessage, l.Record)
		}
	}
}

// offer finds what can be done with a Pod that is outdated.
func (d *decision) offer(l *look, state State) {
	p := l.Pod
	switch {
	case p.Verdict.Way == inplace.Unknown:
		return
	case !p.isInPlace():
		if p.Verdict.Reason != "" {
			d.Blocked.Add(p.Verdict.Reason, p.message(), p.Record)
		}
		return
	case p.Traits != nil && p.Traits.unselected && !l.ours():
		d.Unselected++
		return
	}
	d.Outdated++
	switch {
	case p.Rest != nil && d.now < p.Rest.Until:
		d.wake(p.Rest.Until)
		if p.Rest.Reason != "" {
			d.Resting++
			d.Blocked.Add(p.Rest.Reason, p.Rest.Message, p.Record)
		}
	case !p.Record.Ready && l.counts():
		d.first = append(d.first, p)
	case !p.Record.Ready:
		d.second = append(d.second, p)
	case state == Updating: // under way for another content
	case d.now < l.since+d.strategy.minReady:
		d.wake(l.since + d.strategy.minReady)
		name(&d.who[justReady], *l)
	default:
		d.available = append(d.available, p)
	}
}

// message is what the kubelet says about a resize that keeps the Pod from being updated.
func (p *Pod) message() string {
	if p.Verdict.Reason.IsOfResize() {
		return p.Record.ResizeMessage
	}
	return ""
}

// notRunning counts a Pod one of whose sidecars does not run: for a minute, by a reason of failure,
// or for ten while it is only being created.
func (d *decision) notRunning(p *Pod) {
	if p.Trouble == 0 || p.Record.Ready {
		return
	}
	at := min(d.now, int64(p.Record.Since)) + tenMinutes
	if p.Trouble.IsFailure() {
		at += minute - tenMinutes
	}
	if d.now < at {
		d.wake(at)
		return
	}
	d.NotRunning.Add(inplace.Reason(p.Trouble.String()), p.Sidecar, p.Record)
	if p.current() {
		d.NotRunningCurrent++
	}
}

// finish decides from the counters.
func (d *decision) finish(stored bool) {
	d.MinReady = d.strategy.minReady
	d.Numbers.Budget, d.Kept = d.strategy.Allowed(d.Total), d.strategy.Kept(d.Total)
	late := max(0, d.Late-max(0, d.Status.NotReadyBefore)) // beyond those that were down before
	d.Charged = d.Updating + late + d.Status.Disappeared
	d.Failing += min(late, d.lateFailing)
	d.Trial += d.Status.Disappeared
	switch s := d.strategy; {
	case s.problem != nil:
		d.Rule, d.Problem, d.Reset = Invalid, s.problem, nil
		return
	case s.off == NotUpdate:
		d.Plan = Plan{Rule: NotUpdate, Next: d.Next, Status: Begun, Numbers: Numbers{Total: d.Total, Current: d.Current}, NotRunning: d.NotRunning, NotRunningCurrent: d.NotRunningCurrent}
		return
	case s.off == Paused:
		d.Rule, d.Reset = Paused, nil
		d.setWho(d.charger())
		return
	}
	d.charged, d.trial, d.down, d.room = d.Charged, d.Trial, d.Down, d.Outdated-d.Kept
	waitDown := d.takeDown(d.first)
	if waitDown != DownPods && len(d.second) > 0 {
		waitDown = cmp.Or(d.takeDown(d.second), waitDown)
	}
	wait, holder := d.takeAvailable(stored)
	if len(d.Write) > 0 && d.Status.NotReadyBefore < 0 {
		d.Status.NotReadyBefore = d.notReady
	}
	d.explain(wait, waitDown, holder)
}

// takeDown takes Pods that are down, and returns why the others wait. They use no budget. One more
// is written while fewer are down with this content than are up, and fewer than a tenth of all.
func (d *decision) takeDown(pods []*Pod) (wait Rule) {
	line := newLine(pods)
	for p := line.next(); p != nil; p = line.next() {
		switch l := p.look(d.now); {
		case d.down >= max(1, min(d.Up, d.Total/10)):
			return DownPods
		case d.room <= 0 && !l.ours():
			wait = Partition
		default:
			d.Write = append(d.Write, p)
			d.down++
			d.room--
			if l.ours() {
				d.trial++
			}
		}
	}
	return wait
}

// takeAvailable takes Pods that are available, and returns why the others wait, and for a Share, the
// Pod that has it.
func (d *decision) takeAvailable(stored bool) (wait Rule, holder *Pod) {
	if len(d.available) == 0 {
		return NoRule, nil
	}
	if wait = d.limit(stored); wait != NoRule {
		return wait, nil
	}
	d.countCrews()
	line := d.scattered(d.available)
	for p := line.next(); p != nil; p = line.next() {
		if limit := d.limit(stored); limit != NoRule {
			return limit, nil
		}
		c := d.crewOf(p.Record)
		if c.updating >= max(1, d.Numbers.Budget*c.pods/d.Total) {
			wait, holder = Share, c.who.Pod
			continue
		}
		d.Write = append(d.Write, p)
		d.charged++
		d.trial++
		d.room--
		c.updating++
		if c.who.Pod == nil {
			c.who = look{Pod: p, has: true, at: d.now}
		}
	}
	return wait, holder
}

// limit returns why no further available Pod is written.
func (d *decision) limit(stored bool) Rule {
	switch {
	case d.charged >= d.Numbers.Budget:
		return Budget
	case d.trial >= max(1, d.Proven):
		return Proof
	case d.room <= 0:
		return Partition
	case !stored:
		return Storing
	}
	return NoRule
}
