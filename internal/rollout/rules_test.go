package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// change changes a Pod. Times are in seconds before noon.
type change func(*rollout.Pod)

func pod(i int, changes ...change) *rollout.Pod {
	p := ready(i)
	for _, c := range changes {
		c(p)
	}
	return p
}

func ago(seconds int) uint32 { return uint32(noon - seconds) }

// current: the Pod has the wanted content.
func current(p *rollout.Pod) { p.Carries, p.Verdict.Way = true, inplace.Current }

// wrote: the operator wrote the Pod, and its node has not acted.
func wrote(at int, was podstate.Was) change {
	return func(p *rollout.Pod) { p.Written = podstate.Written{At: ago(at), Started: ago(at), Was: was} }
}

// carriedOut: the write is carried out, and the sidecars are up.
func carriedOut(started int) change {
	return func(p *rollout.Pod) {
		p.Written.Carried, p.Written.Started, p.Written.Up = p.Written.At, ago(started), true
	}
}

func readySince(at int) change {
	return func(p *rollout.Pod) { p.Record.Ready, p.Record.Since = true, ago(at) }
}

func downSince(at int) change {
	return func(p *rollout.Pod) { p.Record.Ready, p.Record.Since = false, ago(at) }
}

func in(controller string) change {
	return func(p *rollout.Pod) { p.Record.Controller = podstate.MakeName(controller) }
}

// Pods in each state, with the wanted content.
var (
	silentPod = []change{current, wrote(100, podstate.WasUp), readySince(5000)}
	updating  = []change{current, wrote(100, podstate.WasUp), downSince(98)}
	settling  = []change{current, wrote(20, podstate.WasUp), carriedOut(18), readySince(15)}
	isProven  = []change{current, wrote(1000, podstate.WasUp), carriedOut(990), readySince(980)}
	late      = []change{current, wrote(1000, podstate.WasUp), carriedOut(990), downSince(100)}
	downAgain = []change{current, wrote(100, podstate.WasDown), downSince(5000)}
	// ours is outdated, and the operator took it down.
	ours = []change{wrote(100, podstate.WasUp), carriedOut(90), downSince(80)}
	// outdatedDown is outdated, and down for other reasons.
	outdatedDown = []change{downSince(5000)}
)

func with(changes []change, more ...change) []change { return slices.Concat(changes, more) }

func many(n int, changes ...change) (pods []*rollout.Pod) {
	for i := range n {
		pods = append(pods, pod(2_000_000+i, changes...))
	}
	return pods
}

// ruled returns the plan at noon with a status.
func ruled(u update, status rollout.Status, pods ...*rollout.Pod) rollout.Plan {
	s := withMinReady(u, "30")
	for _, p := range pods {
		p.Traits = s.TraitsOf(p.Record.Labels.Labels())
	}
	return rollout.Decide(s, status, true, pods, noon)
}

// The states of a Pod, by the counters in which it is, and when the state changes by itself.
func TestStates(t *testing.T) {
	type numbers = rollout.Numbers
	tests := map[string]struct {
		pod   []change
		want  numbers
		in    int64 // seconds; 0: never
		other string
	}{
		"it was created with the content":        {pod: []change{current}},
		"its node has not acted":                 {silentPod, numbers{Charged: 1, Updating: 1, Trial: 1}, 500, ""},
		"its node has not acted for ten minutes": {with(silentPod, wrote(600, podstate.WasUp)), numbers{}, 0, "NotCarriedOut"},
		"it is not Ready since the write":        {updating, numbers{Charged: 1, Updating: 1, Trial: 1, Down: 1}, 0, ""},
		"it has started, and is not Ready":       {with(updating, carriedOut(90)), numbers{Charged: 1, Updating: 1, Trial: 1, Down: 1, Failing: 1}, 0, ""},
		"it failed within half a minute":         {with(isProven, downSince(970)), numbers{Charged: 1, Updating: 1, Trial: 1, Down: 1, Failing: 1}, 0, ""},
		"it is Ready":                            {settling, numbers{Trial: 1, Up: 1}, 15, ""},
		"it was not Ready for four minutes":      {[]change{current, wrote(300, podstate.WasUp), carriedOut(290), readySince(50)}, numbers{Trial: 1, Up: 1}, 190, ""},
		"it was not Ready for ten minutes":       {[]change{current, wrote(700, podstate.WasUp), carriedOut(650), readySince(40)}, numbers{Proven: 1, Up: 1}, 0, ""},
		"it is proven":                           {isProven, numbers{Proven: 1, Up: 1}, 0, ""},
		"it was proven, and fails":               {late, numbers{Charged: 1, Late: 1, Trial: 1, Down: 1, Failing: 1}, 0, ""},
		"it was down, and nothing is known":      {downAgain, numbers{Down: 1}, 500, ""},
		"it was down, and has had ten minutes":   {with(downAgain, wrote(600, podstate.WasDown)), numbers{}, 0, ""},
		"it was down, its sidecars have started": {with(downAgain, carriedOut(10)), numbers{Down: 1}, 20, ""},
		"it was down, its sidecars run":          {with(downAgain, carriedOut(30)), numbers{}, 500, ""},
		"it was down, its sidecars have failed":  {with(downAgain, carriedOut(30), func(p *rollout.Pod) { p.Written.Up = false }), numbers{Down: 1}, 500, ""},
		"it came back in the future":             {with(settling, readySince(-50)), numbers{Trial: 1, Up: 1}, 30, ""},
		"it was down, and has come back":         {with(settling, wrote(20, podstate.WasDown), carriedOut(18)), numbers{Up: 1}, 15, ""},
		"it was down, and is back for long":      {with(isProven, wrote(1000, podstate.WasDown), carriedOut(990)), numbers{Up: 1}, 0, ""},
		"it was taken down before":               {with(downAgain, wrote(100, podstate.WasOurs)), numbers{Charged: 1, Updating: 1, Trial: 1, Down: 1}, 500, ""},
		"it was taken down ten minutes ago":      {with(downAgain, wrote(600, podstate.WasOurs)), numbers{}, 0, ""},
		"its time is in the future":              {with(silentPod, wrote(-50, podstate.WasUp)), numbers{Charged: 1, Updating: 1, Trial: 1}, 600, ""},
		"it started in the future":               {with(settling, carriedOut(-50)), numbers{Trial: 1, Up: 1}, 30, ""},
		"time has to show that it is carried out": {with(settling, func(p *rollout.Pod) { p.Written.Carried = ago(-20) }),
			numbers{Charged: 1, Updating: 1, Trial: 1}, 20, ""},
		"it is outdated, and was taken down":           {with(ours, downSince(20)), numbers{Charged: 1, Updating: 1}, 40, "write"},
		"it is outdated, and failed after ten minutes": {with(ours, wrote(800, podstate.WasUp), carriedOut(790), downSince(100)), numbers{}, 0, "write"},
		"it is outdated, and is being updated":         {[]change{wrote(100, podstate.WasUp)}, numbers{Charged: 1, Updating: 1}, 500, ""},
		"it is outdated, and being updated for long":   {[]change{wrote(600, podstate.WasUp)}, numbers{}, 0, "write"},
		"its node is dead":                             {with(updating, func(p *rollout.Pod) { p.Dead = true }), numbers{}, 0, ""},
		"its node is dead, and it is outdated":         {with(ours, func(p *rollout.Pod) { p.Dead = true }), numbers{}, 0, "NodeNotReady"},
		"it is outdated":                               {nil, numbers{}, 0, "write"},
		"it is not compared yet":                       {[]change{func(p *rollout.Pod) { p.Verdict.Way = inplace.Unknown }}, numbers{}, 0, ""},
		"its write is under way":                       {[]change{sent(podstate.WasUp)}, numbers{Charged: 1, Updating: 1, Trial: 1}, 600, ""},
		"its write is under way, and it is down":       {with(ours, sent(podstate.WasOurs)), numbers{Charged: 1, Updating: 1, Trial: 1, Down: 1}, 600, ""},
		"it is written for other reasons":              {with(outdatedDown, sent(podstate.WasDown)), numbers{Down: 1}, 600, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			plan := ruled(update{}, rollout.Begun, pod(1, tc.pod...))
			got := plan.Numbers
			got.Total, got.Current, got.Outdated, got.Budget, got.Moved, got.Grace, got.MinReady = 0, 0, 0, 0, 0, 0, 0
			next := int64(0)
			if tc.in > 0 {
				next = noon + tc.in
			}
			other := ""
			for _, g := range plan.Blocked.List() {
				other = g.Reason
			}
			if len(plan.Write) > 0 {
				other = "write"
			}
			if got != tc.want || plan.Next != next || other != tc.other {
				t.Errorf("counted %+v, again in %d s, %q, want %+v, in %d s, %q", got, plan.Next-noon, other, tc.want, tc.in, tc.other)
			}
		})
	}
}

func sent(was podstate.Was) change {
	return func(p *rollout.Pod) { p.Sent = &podstate.Written{At: noon, Was: was} }
}

// Each rule names the Pod for which it waits: of those that count, the one with the oldest write.
func TestRules(t *testing.T) {
	older := wrote(200, podstate.WasUp)
	all := func(parts ...[]*rollout.Pod) []*rollout.Pod { return slices.Concat(parts...) }
	one := func(i int, changes ...change) []*rollout.Pod { return []*rollout.Pod{pod(i, changes...)} }
	begun, before := rollout.Begun, rollout.Status{NotReadyBefore: 1}
	gone := rollout.Status{NotReadyBefore: 0, Disappeared: 1, DisappearedUntil: noon + 300}
	tests := map[string]struct {
		strategy update
		status   rollout.Status
		pods     []*rollout.Pod
		rule     rollout.Rule
		who      string // a number; "": none
		writes   string
	}{
		"nothing is to be done":             {pods: many(5, isProven...)},
		"the first Pod":                     {pods: all(one(1), one(2)), rule: rollout.Budget, writes: "1"},
		"Budget: one is updating":           {pods: all(one(1, updating...), many(5, isProven...), one(2), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: the older one":             {strategy: update{MaxUnavailable: share("2")}, pods: all(one(1, updating...), one(2, with(updating, older)...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "2"},
		"Budget: updating before late":      {strategy: update{MaxUnavailable: share("2")}, pods: all(one(1, updating...), one(2, late...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: one is late":               {pods: all(one(1, late...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: as many were down before":  {status: before, pods: all(one(1, late...), many(5, isProven...), one(3), one(4)), rule: rollout.Budget, writes: "3"},
		"Budget: more than were down":       {status: before, pods: all(one(1, late...), one(2, late...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: an outdated victim counts": {pods: all(one(1, ours...), many(1, downAgain...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: one disappeared":           {status: gone, pods: all(many(5, isProven...), one(3)), rule: rollout.Budget},
		"Budget: it is 0":                   {strategy: update{MaxUnavailable: share("0")}, pods: all(one(1), one(2, outdatedDown...)), rule: rollout.Budget, writes: "2"},
		"Budget: it is 0 %":                 {strategy: update{MaxUnavailable: share("0%")}, pods: all(one(1), one(2, outdatedDown...)), rule: rollout.Budget, writes: "2"},
		"Budget: a small percentage is one": {strategy: update{MaxUnavailable: share("1%")}, pods: all(one(1), one(2)), rule: rollout.Budget, writes: "1"},
		"Budget: under way for another":     {pods: one(1, wrote(100, podstate.WasUp)), rule: rollout.Budget, who: "1"},
		"Proof: the first is on trial":      {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1, updating...), many(4)), rule: rollout.Proof, who: "1"},
		"Proof: one at first":               {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1), one(2)), rule: rollout.Proof, writes: "1"},
		"Proof: it is settling":             {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1, settling...), many(4)), rule: rollout.Proof, who: "1"},
		"Proof: as many as are proven":      {strategy: update{MaxUnavailable: share("9")}, pods: all(many(2, isProven...), one(3), one(4), one(5)), rule: rollout.Proof, writes: "3 4"},
		"Proof: late Pods are on trial":     {strategy: update{MaxUnavailable: share("9")}, status: rollout.Status{NotReadyBefore: 9}, pods: all(one(1, late...), one(2, isProven...), one(3)), rule: rollout.Proof, who: "1"},
		"Proof: late before settling":       {strategy: update{MaxUnavailable: share("9")}, pods: all(one(1, late...), one(2, settling...), one(3, isProven...), one(4)), rule: rollout.Proof, who: "1"},
		"Proof: not from Pods that were down": {strategy: update{MaxUnavailable: share("9")}, pods: all(many(5, with(isProven, wrote(1000, podstate.WasDown), carriedOut(990))...), one(1), one(2)),
			rule: rollout.Proof, writes: "1"},
		"Proof: not from Pods that were created with it": {strategy: update{MaxUnavailable: share("9")}, pods: all(many(5, current), one(1), one(2)), rule: rollout.Proof, writes: "1"},
		"Proof: a victim that is cured is on trial":      {strategy: update{MaxUnavailable: share("9")}, pods: all(one(1, ours...), one(2)), rule: rollout.Proof, writes: "1"},
		"Proof: one that disappeared is on trial":        {strategy: update{MaxUnavailable: share("9")}, status: gone, pods: all(one(1), one(2)), rule: rollout.Proof},
		"Down: one at first":                             {pods: many(3, outdatedDown...), rule: rollout.DownPods, writes: "2000000"},
		"Down: it is not back":                           {pods: all(one(1, downAgain...), many(3, outdatedDown...)), rule: rollout.DownPods, who: "1"},
		"Down: while fewer are down than up":             {pods: all(many(40, current), one(1, downAgain...), many(3, with(settling, wrote(20, podstate.WasDown), carriedOut(18))...), one(5, outdatedDown...), one(6, outdatedDown...), one(7, outdatedDown...)), rule: rollout.DownPods, who: "1", writes: "5 6"},
		"Down: and fewer than a tenth of all":            {pods: all(many(17, isProven...), one(1, outdatedDown...), one(2, outdatedDown...), one(3, outdatedDown...)), rule: rollout.DownPods, writes: "1 2"},
		"Down: idle ones hold up nothing":                {pods: all(one(1, with(downAgain, carriedOut(30))...), one(2, outdatedDown...)), writes: "2"},
		"Down: a late one holds them up":                 {pods: all(one(1, late...), one(2, outdatedDown...)), rule: rollout.DownPods, who: "1"},
		"Down: it names one that was up":                 {pods: all(one(1, updating...), one(2, with(downAgain, wrote(200, podstate.WasDown))...), one(3, outdatedDown...)), rule: rollout.DownPods, who: "1"},
		"Down: victims come first":                       {pods: all(one(1, outdatedDown...), one(2, ours...), one(3, outdatedDown...)), rule: rollout.DownPods, writes: "2"},
		"Down: they use no budget":                       {pods: all(one(1, silentPod...), one(2, outdatedDown...), one(3)), rule: rollout.Budget, who: "1", writes: "2"},
		"Share: its controller has one": {strategy: update{MaxUnavailable: share("3")}, pods: all(one(1, with(updating, in("a"))...), many(3, with(isProven, in("b"))...), one(2, in("a")), one(3, in("a"))),
			rule: rollout.Share, who: "1"},
		"Share: others go on": {strategy: update{MaxUnavailable: share("3")}, pods: all(many(4, with(isProven, in("b"))...), one(1, in("a")), one(2, in("a")), one(3, in("b")), one(4, in("b"))),
			rule: rollout.Share, who: "1", writes: "1 3 4"},
		"JustReady":                       {pods: one(1, readySince(10)), rule: rollout.JustReady, who: "1"},
		"JustReady: others go on":         {pods: all(one(1, readySince(10)), one(2)), writes: "2"},
		"Partition":                       {strategy: update{Partition: share("1")}, pods: one(1), rule: rollout.Partition},
		"Partition: of down Pods":         {strategy: update{Partition: share("1")}, pods: one(1, outdatedDown...), rule: rollout.Partition},
		"Partition: not of victims":       {strategy: update{Partition: share("1")}, pods: one(1, ours...), writes: "1"},
		"Partition: of those of long ago": {strategy: update{Partition: share("1")}, pods: one(1, with(ours, wrote(900, podstate.WasUp), carriedOut(890), downSince(200))...), rule: rollout.Partition},
		"Partition: after the victims":    {strategy: update{Partition: share("1"), MaxUnavailable: share("9")}, pods: all(one(1, ours...), one(2), many(5, isProven...)), rule: rollout.Partition, writes: "1"},
		"Partition: 90 % of ten":          {strategy: update{Partition: share("90%"), MaxUnavailable: share("9")}, pods: all(many(2, isProven...), one(1), one(2), many(6)), rule: rollout.Partition},
		"Partition: 70 % of ten":          {strategy: update{Partition: share("70%"), MaxUnavailable: share("9")}, pods: all(many(2, isProven...), one(1), many(7)), rule: rollout.Partition, writes: "1"},
		"Partition: 99 % of three":        {strategy: update{Partition: share("99%")}, pods: all(one(1), many(2)), rule: rollout.Budget, writes: "1"},
		"Partition: 99 % of one":          {strategy: update{Partition: share("99%")}, pods: one(1), rule: rollout.Partition},
		"Paused":                          {strategy: update{Paused: true}, pods: all(one(1, ours...), one(2)), rule: rollout.Paused, who: "1"},
		"NotUpdate":                       {strategy: update{Type: appsv1beta1.NotUpdateSidecarSetStrategyType, Partition: share("not even looked at")}, pods: all(one(1, ours...), one(2)), rule: rollout.NotUpdate},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.status == (rollout.Status{}) {
				tc.status = begun
			}
			plan := ruled(tc.strategy, tc.status, tc.pods...)
			who := ""
			if plan.Who != nil {
				who = names([]*rollout.Pod{plan.Who})[0]
			}
			if writes := strings.Join(names(plan.Write), " "); plan.Rule != tc.rule || tc.rule != rollout.NoRule && who != tc.who || writes != tc.writes {
				t.Errorf("rule %d, Pod %q, written %q, want %d, %q, %q: %+v", plan.Rule, who, writes, tc.rule, tc.who, tc.writes, plan.Numbers)
			}
		})
	}
}

// The places of Pods that disappeared are kept for ten minutes after the last one.
func TestPodsThatDisappearKeepTheirPlaces(t *testing.T) {
	s := rollout.Begun.Lose(noon - 700).Lose(noon - 200).Lose(noon - 100)
	if want := (rollout.Status{NotReadyBefore: -1, Disappeared: 3, DisappearedUntil: noon + 500}); s != want {
		t.Errorf("the status is %+v, want %+v", s, want)
	}
	if plan := ruled(update{}, s, pod(1)); plan.Charged != 3 || plan.Trial != 3 || plan.Next != noon+500 || plan.Who != nil {
		t.Errorf("the plan is %+v", plan)
	}
	s.DisappearedUntil = noon
	if plan := ruled(update{}, s, pod(1)); plan.Charged != 0 || len(plan.Write) != 1 || plan.Status.Disappeared != 0 {
		t.Errorf("ten minutes later, the plan is %+v", plan)
	}
	if s = s.Lose(noon); s.Disappeared != 1 {
		t.Errorf("after those are forgotten, the status is %+v", s)
	}
}

// Which Pods keep their places, and what the record of a new write says of them.
func TestIsChargedAndWas(t *testing.T) {
	tests := map[string]struct {
		pod     []change
		charged bool
		was     podstate.Was
	}{
		"outdated":              {nil, false, podstate.WasUp},
		"down":                  {outdatedDown, false, podstate.WasDown},
		"updating":              {updating, true, podstate.WasOurs},
		"a silent node":         {silentPod, true, podstate.WasUp},
		"for another content":   {[]change{wrote(100, podstate.WasUp)}, true, podstate.WasUp},
		"settling":              {settling, false, podstate.WasUp},
		"proven":                {isProven, false, podstate.WasUp},
		"late within ten":       {with(late, downSince(500)), true, podstate.WasOurs},
		"late after ten":        {late, true, podstate.WasDown},
		"late with another":     {late[1:], false, podstate.WasDown},
		"it was down":           {downAgain, false, podstate.WasDown},
		"it was down and ours":  {with(downAgain, wrote(100, podstate.WasOurs)), true, podstate.WasOurs},
		"outdated and ours":     {ours, true, podstate.WasOurs},
		"on a dead node":        {with(updating, func(p *rollout.Pod) { p.Dead = true }), false, podstate.WasOurs},
		"its write is on a way": {[]change{sent(podstate.WasUp)}, true, podstate.WasUp},
	}
	s := withMinReady(update{}, "30")
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := pod(1, tc.pod...)
			if got := p.IsCharged(s, noon); got != tc.charged {
				t.Errorf("IsCharged() = %t", got)
			}
			if got := p.Was(noon); got != tc.was {
				t.Errorf("Was() = %d, want %d", got, tc.was)
			}
		})
	}
}

// Once a Pod is written, the status says how many were not Ready, and not by the operator. Available
// Pods wait until that is stored; Pods that are down do not.
func TestTheStatusIsStoredFirst(t *testing.T) {
	s := withMinReady(update{MaxUnavailable: share("9")}, "30")
	pods := slices.Concat(many(4, outdatedDown...), many(30, isProven...), []*rollout.Pod{pod(1), pod(2, ours...), pod(3, with(updating, func(p *rollout.Pod) { p.Dead = true })...)})
	plan := rollout.Decide(s, rollout.Begun, false, pods, noon)
	if plan.Rule != rollout.Storing || plan.Who != nil || slices.Contains(names(plan.Write), "1") || len(plan.Write) != 3 {
		t.Errorf("wrote %q by rule %d", names(plan.Write), plan.Rule)
	}
	if got := plan.Status.NotReadyBefore; got != 4 {
		t.Errorf("%d Pods were not Ready before, want 4", got)
	}
	plan.Status.NotReadyBefore = 1
	if plan = rollout.Decide(s, plan.Status, true, pods, noon); plan.Status.NotReadyBefore != 1 || !slices.Contains(names(plan.Write), "1") {
		t.Errorf("wrote %q with status %+v", names(plan.Write), plan.Status)
	}
	if plan = ruled(update{}, rollout.Begun, pod(1, updating...), pod(2)); rollout.Decide(withMinReady(update{}, "30"), rollout.Begun, false, []*rollout.Pod{pod(1, updating...), pod(2)}, noon).Rule != plan.Rule {
		t.Error("Pods that wait by another rule wait for the status")
	}
	if plan = rollout.Decide(s, rollout.Begun, false, many(5, isProven...), noon); plan.Rule != rollout.NoRule || plan.Status != rollout.Begun {
		t.Errorf("nothing is outdated, and the plan is %+v", plan)
	}
}

// updateStrategy.selector excludes Pods, but not those that an update took down.
func TestSelector(t *testing.T) {
	u := update{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"track": "canary"}}}
	inside, outside, victim := labelled(1, "track", "canary"), ready(2), pod(3, ours...)
	if plan := ruled(u, rollout.Begun, inside, outside, victim); plan.Unselected != 1 || plan.Outdated != 2 || !slices.Equal(names(plan.Write), []string{"3"}) {
		t.Errorf("wrote %q: %+v", names(plan.Write), plan.Numbers)
	}
}

// A Pod that was refused rests alone, with its reason.
func TestRest(t *testing.T) {
	rests := func(until int64, reason inplace.Reason) change {
		return func(p *rollout.Pod) {
			p.Rest = &rollout.Rest{Until: until, Reason: reason, Message: "denied by policy"}
		}
	}
	plan := ruled(update{}, rollout.Begun, pod(1, rests(noon+90, inplace.Refused)), pod(2, rests(noon+40, "")), pod(3, rests(noon, inplace.WriteUndone)), pod(4, isProven...))
	blocked := plan.Blocked.List()
	if !slices.Equal(names(plan.Write), []string{"3"}) || plan.Next != noon+40 || plan.Resting != 1 || len(blocked) != 1 || blocked[0].Message != "denied by policy" {
		t.Errorf("wrote %q, again in %d s, blocked %+v", names(plan.Write), plan.Next-noon, blocked)
	}
	if plan = ruled(update{}, rollout.Begun, pod(1, rests(noon+90, inplace.Refused))); plan.Rule != rollout.NoRule || plan.Who != nil {
		t.Errorf("a Pod that rests waits by rule %d", plan.Rule)
	}
}

// The end of a hot upgrade waits for no rule but paused, and not for a write that is under way.
func TestReset(t *testing.T) {
	resets := func(p *rollout.Pod) { p.Resets = true }
	for name, tc := range map[string]struct {
		strategy update
		want     int
	}{
		"budget":    {update{MaxUnavailable: share("0")}, 2},
		"partition": {update{Partition: share("100%")}, 2},
		"paused":    {update{Paused: true}, 0},
		"NotUpdate": {update{Type: appsv1beta1.NotUpdateSidecarSetStrategyType}, 0},
	} {
		if plan := ruled(tc.strategy, rollout.Begun, pod(1, with(silentPod, resets)...), pod(2, resets), pod(3, resets, sent(podstate.WasUp))); len(plan.Reset) != tc.want {
			t.Errorf("%s: %q are reset", name, names(plan.Reset))
		}
	}
}

// Sidecars that do not run are told after a minute, or after ten while they are being created.
func TestNotRunning(t *testing.T) {
	has := func(word string, since int, more ...change) *rollout.Pod {
		return pod(1, with(more, downSince(since), func(p *rollout.Pod) { p.Trouble, p.Sidecar = trouble(word), "proxy" })...)
	}
	for name, tc := range map[string]struct {
		pod  *rollout.Pod
		want string
		in   int64
	}{
		"a failure":            {has("ErrImagePull", 60, current), "ErrImagePull", 0},
		"not for long":         {has("ErrImagePull", 20, current), "", 40},
		"an outdated one":      {has("CrashLoopBackOff", 60, wrote(5000, podstate.WasDown)), "CrashLoopBackOff", 0},
		"it is created":        {has("ContainerCreating", 60, current), "", 540},
		"that takes long":      {has("ContainerCreating", 600, current), "ContainerCreating", 0},
		"in the future":        {has("ErrImagePull", -50, current), "", 60},
		"it is Ready":          {pod(1, current, func(p *rollout.Pod) { p.Trouble = trouble("Completed") }), "", 0},
		"it runs":              {pod(1, current, downSince(5000)), "", 0},
		"its node is not well": {has("ErrImagePull", 60, current, func(p *rollout.Pod) { p.Dead = true }), "", 0},
	} {
		u := update{Paused: true}
		for range 2 { // paused or not updated makes no difference
			plan := ruled(u, rollout.Begun, tc.pod)
			var got []string
			for _, g := range plan.NotRunning.List() {
				got = append(got, g.Reason)
				if g.Message != "proxy" || !slices.Equal(g.First, []string{"default/pod-000001"}) || (plan.NotRunningCurrent == 1) != tc.pod.Carries {
					t.Errorf("%s: told %+v, with the content: %d", name, g, plan.NotRunningCurrent)
				}
			}
			if next := max(0, plan.Next-noon); strings.Join(got, " ") != tc.want || next != tc.in {
				t.Errorf("%s: told %q, again in %d s, want %q, %d", name, got, next, tc.want, tc.in)
			}
			u = update{Type: appsv1beta1.NotUpdateSidecarSetStrategyType}
		}
	}
}

// Pods that cannot be updated in place are counted by reason, and hold up nothing.
func TestBlocked(t *testing.T) {
	verdict := func(way inplace.Way, reason inplace.Reason) change {
		return func(p *rollout.Pod) {
			p.Verdict, p.Record.ResizeMessage = inplace.Verdict{Way: way, Reason: reason}, "too big"
		}
	}
	moves := func(p *rollout.Pod) { p.Verdict = inplace.Verdict{Way: inplace.Resize, Moves: true} }
	plan := ruled(update{}, rollout.Begun, pod(1, verdict(inplace.Recreate, inplace.ImmutableFieldChanged)), pod(2, verdict(inplace.Recreate, inplace.ImmutableFieldChanged)),
		pod(3, verdict(inplace.LeaveAlone, inplace.ResizeDeferred)), pod(4, verdict(inplace.LeaveAlone, "")), pod(5, moves), pod(6, with(silentPod, wrote(700, podstate.WasUp))...),
		pod(7, verdict(inplace.Resize, "")))
	said := map[string]string{}
	for _, g := range plan.Blocked.List() {
		said[g.Reason] = fmt.Sprint(g.Pods, " ", g.Message)
	}
	want := map[string]string{"ImmutableFieldChanged": "2 ", "ResizeDeferred": "1 too big", "NotCarriedOut": "1 "}
	if !maps.Equal(said, want) || plan.Outdated != 1 || !slices.Equal(names(plan.Write), []string{"7"}) || plan.Blocked.Pods() != 4 {
		t.Errorf("blocked %q, %d outdated, wrote %q", said, plan.Outdated, names(plan.Write))
	}
}

// Moved is the last write or return of a Pod with the content. Failing Pods are charged ones that do
// not come back by waiting.
func TestMovedGraceAndFailing(t *testing.T) {
	grace := func(seconds uint32) change { return func(p *rollout.Pod) { p.Record.Grace = seconds } }
	pulls := func(p *rollout.Pod) { p.Trouble = trouble("ErrImagePull") }
	plan := ruled(update{}, rollout.Begun, pod(1, with(late, grace(90))...), pod(2, with(isProven, grace(500))...), pod(3, with(settling, wrote(50, podstate.WasUp), carriedOut(40))...))
	if plan.Moved != noon-15 || plan.Grace != 90 || plan.Failing != 1 || plan.MinReady != 30 {
		t.Errorf("counted %+v", plan.Numbers)
	}
	for name, tc := range map[string]struct {
		pod     []change
		failing int
		in      int64
	}{
		"its image cannot be pulled": {with(updating, pulls), 1, 0},
		"not for a minute":           {with(updating, pulls, wrote(40, podstate.WasUp), downSince(30)), 0, 30},
		"it only waits":              {updating, 0, 0},
		"it has just failed":         {with(late, downSince(50)), 0, 10},
		"it was down before":         {with(downAgain, pulls), 0, 500},
	} {
		if plan := ruled(update{}, rollout.Begun, pod(1, tc.pod...)); plan.Failing != tc.failing || max(0, plan.Next-noon) != tc.in {
			t.Errorf("%s: %d fail, again in %d s", name, plan.Failing, plan.Next-noon)
		}
	}
	if plan := decide(strategy(update{}), pod(1, with(late, downSince(990))...)); plan.Late != 0 || plan.Updating != 1 {
		t.Errorf("a Pod that never was Ready is late: %+v", plan.Numbers)
	}
	if plan := ruled(update{}, rollout.Begun, pod(1)); plan.Moved != 0 {
		t.Errorf("a rollout without writes moved at %d", plan.Moved)
	}
}
