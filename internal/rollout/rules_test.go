package rollout_test

import (
	"slices"
	"strings"
	"testing"

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

// current: the Pod has the wanted revision.
func current(p *rollout.Pod) { p.Updated, p.Verdict.Method = true, inplace.Current }

// wrote: the operator wrote the Pod, and its node has not acted.
func wrote(at int, was podstate.StateBefore) change {
	return func(p *rollout.Pod) { p.Written = podstate.Written{At: ago(at), Started: ago(at), StateBefore: was} }
}

// carriedOut: the write is carried out, and the sidecars are up.
func carriedOut(started int) change {
	return func(p *rollout.Pod) {
		p.Written.Carried, p.Written.Started, p.Written.Up = p.Written.At, ago(started), true
	}
}

func readySince(at int) change {
	return func(p *rollout.Pod) { p.Summary.Ready, p.Summary.Since = true, ago(at) }
}

func downSince(at int) change {
	return func(p *rollout.Pod) { p.Summary.Ready, p.Summary.Since = false, ago(at) }
}

func in(controller string) change {
	return func(p *rollout.Pod) { p.Summary.Controller = podstate.MakeName(controller) }
}

// Pods in each state, with the wanted revision.
var (
	silentPod   = []change{current, wrote(100, podstate.WasReady), readySince(5000)}
	updating    = []change{current, wrote(100, podstate.WasReady), downSince(98)}
	unavailable = []change{current, wrote(20, podstate.WasReady), carriedOut(18), readySince(15)}
	available   = []change{current, wrote(1000, podstate.WasReady), carriedOut(990), readySince(980)}
	late        = []change{current, wrote(1000, podstate.WasReady), carriedOut(990), downSince(100)}
	downAgain   = []change{current, wrote(100, podstate.WasNotReady), downSince(5000)}
	// ours is outdated, and the operator took it down.
	ours = []change{wrote(100, podstate.WasReady), carriedOut(90), downSince(80)}
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
		p.Traits = s.TraitsOf(p.Summary.Labels.Labels())
	}
	return rollout.Decide(rollout.Input{Strategy: s, Status: status, Stored: true, Now: noon}, pods)
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
		"it was created with the revision":       {pod: []change{current}},
		"its node has not acted":                 {silentPod, numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 500, ""},
		"its node has not acted for ten minutes": {with(silentPod, wrote(600, podstate.WasReady)), numbers{}, 0, "UpdateTimedOut"},
		"it is not Ready since the write":        {updating, numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1}, 0, ""},
		"it has started, and is not Ready":       {with(updating, carriedOut(90)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1, Failing: 1}, 0, ""},
		"it failed within half a minute":         {with(available, downSince(970)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1, Failing: 1}, 0, ""},
		"it is Ready":                            {unavailable, numbers{Unavailable: 1, UpdatedReady: 1}, 15, ""},
		"it was not Ready for four minutes":      {[]change{current, wrote(300, podstate.WasReady), carriedOut(290), readySince(50)}, numbers{Unavailable: 1, UpdatedReady: 1}, 190, ""},
		"it was not Ready for ten minutes":       {[]change{current, wrote(700, podstate.WasReady), carriedOut(650), readySince(40)}, numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"it is available":                        {available, numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"it was available, and fails":            {late, numbers{BudgetUsed: 1, FailedAfterUpdate: 1, Unavailable: 1, UpdatedNotReady: 1, Failing: 1}, 0, ""},
		"it was down, and nothing is known":      {downAgain, numbers{UpdatedNotReady: 1}, 500, ""},
		"it was down, and has had ten minutes":   {with(downAgain, wrote(600, podstate.WasNotReady)), numbers{}, 0, ""},
		"it was down, its sidecars have started": {with(downAgain, carriedOut(10)), numbers{UpdatedNotReady: 1}, 20, ""},
		"it was down, its sidecars run":          {with(downAgain, carriedOut(30)), numbers{}, 500, ""},
		"it was down, its sidecars have failed":  {with(downAgain, carriedOut(30), func(p *rollout.Pod) { p.Written.Up = false }), numbers{UpdatedNotReady: 1}, 500, ""},
		"it came back in the future":             {with(unavailable, readySince(-50)), numbers{Unavailable: 1, UpdatedReady: 1}, 30, ""},
		"it was down, and has come back":         {with(unavailable, wrote(20, podstate.WasNotReady), carriedOut(18)), numbers{UpdatedReady: 1}, 15, ""},
		"it was down, and is back for long":      {with(available, wrote(1000, podstate.WasNotReady), carriedOut(990)), numbers{UpdatedReady: 1}, 0, ""},
		"it was taken down before":               {with(downAgain, wrote(100, podstate.WasNotReadyByUpdate)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1}, 500, ""},
		"it was taken down ten minutes ago":      {with(downAgain, wrote(600, podstate.WasNotReadyByUpdate)), numbers{}, 0, ""},
		"its time is in the future":              {with(silentPod, wrote(-50, podstate.WasReady)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 600, ""},
		"it started in the future":               {with(unavailable, carriedOut(-50)), numbers{Unavailable: 1, UpdatedReady: 1}, 30, ""},
		"time has to show that it is carried out": {with(unavailable, func(p *rollout.Pod) { p.Written.Carried = ago(-20) }),
			numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 20, ""},
		"it is outdated, and was taken down":           {with(ours, downSince(20)), numbers{BudgetUsed: 1, Updating: 1}, 40, "write"},
		"it is outdated, and failed after ten minutes": {with(ours, wrote(800, podstate.WasReady), carriedOut(790), downSince(100)), numbers{}, 0, "write"},
		"it is outdated, and is being updated":         {[]change{wrote(100, podstate.WasReady)}, numbers{BudgetUsed: 1, Updating: 1}, 500, ""},
		"it is outdated, and being updated for long":   {[]change{wrote(600, podstate.WasReady)}, numbers{}, 0, "write"},
		"its node died":                                          {with(updating, dead), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 502, ""},
		"its node died ten minutes ago":                          {with(updating, dead, wrote(800, podstate.WasReady), downSince(600)), numbers{}, 0, ""},
		"it was not Ready, and its node died":                    {with(downAgain, dead), numbers{}, 0, ""},
		"its node died, and it is available":                     {with(available, dead, downSince(500)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 100, ""},
		"its node died long after":                               {with(late, dead), numbers{}, 0, ""},
		"its node died, and it is outdated":                      {with(ours, dead), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 520, "NodeNotReady"},
		"its node is dead, and it was not written":               {with(outdatedDown, dead), numbers{}, 0, "NodeNotReady"},
		"it was not Ready for ten minutes, and its sidecars run": {with(downAgain, wrote(600, podstate.WasNotReady), carriedOut(590)), numbers{UpdatedReady: 1}, 0, ""},
		"its clock is hours ahead":                               {with(unavailable, readySince(-9000)), numbers{Unavailable: 1, UpdatedReady: 1}, 30, ""},
		"its clock is hours ahead, ten minutes later":            {with(unavailable, readySince(-9000), wrote(700, podstate.WasReady), carriedOut(690)), numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"it started hours ahead":                                 {with(unavailable, wrote(700, podstate.WasReady), carriedOut(-9000), readySince(680)), numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"a leader's clock was hours ahead":                       {with(silentPod, wrote(-9000, podstate.WasReady)), numbers{}, 0, "UpdateTimedOut"},
		"and its node acted":                                     {with(unavailable, wrote(-9000, podstate.WasReady), func(p *rollout.Pod) { p.Written.Carried = p.Written.At + 40 }, readySince(50)), numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"it is outdated, and was just updated":                   {[]change{wrote(200, podstate.WasReady), carriedOut(190), readySince(40)}, numbers{}, 110, ""},
		"it has no node":                                         {with(outdatedDown, unassigned), numbers{}, 0, "write"},
		"it has no node, and was written":                        {with(downAgain, unassigned), numbers{}, 0, ""},
		"it is new":                                              {with(outdatedDown, created(500)), numbers{}, 100, ""},
		"it was created ten minutes ago":                         {with(outdatedDown, created(600)), numbers{}, 0, "write"},
		"it is new, and its sidecar fails":                       {with(outdatedDown, created(500), func(p *rollout.Pod) { p.Trouble = trouble("CrashLoopBackOff") }), numbers{}, 0, "write"},
		"it is new, and Ready":                                   {[]change{created(500), readySince(100)}, numbers{}, 0, "write"},
		"it is new, and was written":                             {with(ours, created(500), downSince(20)), numbers{BudgetUsed: 1, Updating: 1}, 40, "write"},
		"its update was undone":                                  {[]change{undone(100, podstate.WasReady)}, numbers{Unavailable: 1, BackingOff: 1}, 500, "WriteReverted"},
		"it was not Ready, and that was undone":                  {with(outdatedDown, undone(100, podstate.WasNotReady)), numbers{BackingOff: 1}, 500, "WriteReverted"},
		"its update was undone ten minutes ago":                  {[]change{undone(600, podstate.WasReady)}, numbers{}, 0, "write"},
		"it is outdated":                                         {nil, numbers{}, 0, "write"},
		"it is not compared yet":                                 {[]change{func(p *rollout.Pod) { p.Verdict.Method = inplace.Unknown }}, numbers{}, 0, ""},
		"its write is under way":                                 {[]change{sent(podstate.WasReady)}, numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 600, ""},
		"its write is under way, and it is down":                 {with(ours, sent(podstate.WasNotReadyByUpdate)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1}, 600, ""},
		"it is written for other reasons":                        {with(outdatedDown, sent(podstate.WasNotReady)), numbers{UpdatedNotReady: 1}, 600, ""},
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

func dead(p *rollout.Pod) { p.Dead = true }

func unassigned(p *rollout.Pod) { p.Summary.Order.Assigned = false }

// refused: the last write of the Pod was refused a while ago.
func refused(p *rollout.Pod) {
	p.Backoff = &rollout.Backoff{Until: noon - 10, Reason: inplace.WriteRejected}
}

// created: the Pod has what new Pods get.
func created(at int) change {
	return func(p *rollout.Pod) { p.AsNew, p.Summary.Order.Created = true, int64(ago(at)) }
}

func undone(at int, before podstate.StateBefore) change {
	return func(p *rollout.Pod) { p.Undone = podstate.Undone{At: ago(at), StateBefore: before} }
}

func sent(was podstate.StateBefore) change {
	return func(p *rollout.Pod) { p.Sent = &podstate.Written{At: noon, StateBefore: was} }
}

// Each rule names the Pod for which it waits: of those that count, the one with the oldest write.
func TestRules(t *testing.T) {
	older := wrote(200, podstate.WasReady)
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
		earlier  bool // new Pods get an earlier revision
	}{
		"nothing is to be done":                      {pods: many(5, available...)},
		"the first Pod":                              {pods: all(one(1), one(2)), rule: rollout.Budget, who: "1", writes: "1"},
		"Budget: one is updating":                    {pods: all(one(1, updating...), many(5, available...), one(2), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: the older one":                      {strategy: update{MaxUnavailable: share("2")}, pods: all(one(1, updating...), one(2, with(updating, older)...), many(5, available...), one(3)), rule: rollout.Budget, who: "2"},
		"Budget: updating before failed":             {strategy: update{MaxUnavailable: share("2")}, pods: all(one(1, updating...), one(2, late...), many(5, available...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: one failed":                         {pods: all(one(1, late...), many(5, available...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: as many were down before":           {status: before, pods: all(one(1, late...), many(5, available...), one(3), one(4)), rule: rollout.Budget, who: "3", writes: "3"},
		"Budget: more than were down":                {status: before, pods: all(one(1, late...), one(2, late...), many(5, available...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: an outdated victim counts":          {pods: all(one(1, ours...), many(1, downAgain...), many(5, available...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: one disappeared":                    {status: gone, pods: all(many(5, available...), one(3)), rule: rollout.Budget},
		"Budget: it is 0":                            {strategy: update{MaxUnavailable: share("0")}, pods: all(one(1), one(2, outdatedDown...)), rule: rollout.Budget, writes: "2"},
		"Budget: it is 0 %":                          {strategy: update{MaxUnavailable: share("0%")}, pods: all(one(1), one(2, outdatedDown...)), rule: rollout.Budget, writes: "2"},
		"Budget: a small percentage is one":          {strategy: update{MaxUnavailable: share("1%")}, pods: all(one(1), one(2)), rule: rollout.Budget, who: "1", writes: "1"},
		"Budget: under way for another":              {pods: one(1, wrote(100, podstate.WasReady)), rule: rollout.Budget, who: "1"},
		"SlowStart: the first is not available":      {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1, updating...), many(4)), rule: rollout.SlowStart, who: "1"},
		"SlowStart: one at first":                    {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1), one(2)), rule: rollout.SlowStart, who: "1", writes: "1"},
		"SlowStart: it is not yet available":         {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1, unavailable...), many(4)), rule: rollout.SlowStart, who: "1"},
		"SlowStart: as many as are available":        {strategy: update{MaxUnavailable: share("9")}, pods: all(many(2, available...), one(3), one(4), one(5)), rule: rollout.SlowStart, who: "3", writes: "3 4"},
		"SlowStart: failed Pods count":               {strategy: update{MaxUnavailable: share("9")}, status: rollout.Status{NotReadyBefore: 9}, pods: all(one(1, late...), one(2, available...), one(3)), rule: rollout.SlowStart, who: "1"},
		"SlowStart: failed before not yet available": {strategy: update{MaxUnavailable: share("9")}, pods: all(one(1, late...), one(2, unavailable...), one(3, available...), one(4)), rule: rollout.SlowStart, who: "1"},
		"SlowStart: not from Pods that were down": {strategy: update{MaxUnavailable: share("9")}, pods: all(many(5, with(available, wrote(1000, podstate.WasNotReady), carriedOut(990))...), one(1), one(2)),
			rule: rollout.SlowStart, who: "1", writes: "1"},
		"SlowStart: not from Pods that were created with it": {strategy: update{MaxUnavailable: share("9")}, pods: all(many(5, current), one(1), one(2)), rule: rollout.SlowStart, who: "1", writes: "1"},
		"SlowStart: a victim that is cured counts":           {strategy: update{MaxUnavailable: share("9")}, pods: all(one(1, ours...), one(2)), rule: rollout.SlowStart, writes: "1"},
		"SlowStart: one that disappeared counts":             {strategy: update{MaxUnavailable: share("9")}, status: gone, pods: all(one(1), one(2)), rule: rollout.SlowStart},
		"Repairs: one at first":                              {pods: many(3, outdatedDown...), rule: rollout.Repairs, who: "2000000", writes: "2000000"},
		"Repairs: it is not back":                            {pods: all(one(1, downAgain...), many(3, outdatedDown...)), rule: rollout.Repairs, who: "1"},
		"Repairs: while fewer are down than up":              {pods: all(many(40, current), one(1, downAgain...), many(3, with(unavailable, wrote(20, podstate.WasNotReady), carriedOut(18))...), one(5, outdatedDown...), one(6, outdatedDown...), one(7, outdatedDown...)), rule: rollout.Repairs, who: "1", writes: "5 6"},
		"Repairs: and fewer than a tenth of all":             {pods: all(many(17, available...), one(1, outdatedDown...), one(2, outdatedDown...), one(3, outdatedDown...)), rule: rollout.Repairs, who: "1", writes: "1 2"},
		"Repairs: idle ones hold up none":                    {pods: all(one(1, with(downAgain, carriedOut(30))...), one(2, outdatedDown...)), writes: "2"},
		"Repairs: a failed one holds them up":                {pods: all(one(1, late...), one(2, outdatedDown...)), rule: rollout.Repairs, who: "1"},
		"Repairs: it names one that was up":                  {pods: all(one(1, updating...), one(2, with(downAgain, wrote(200, podstate.WasNotReady))...), one(3, outdatedDown...)), rule: rollout.Repairs, who: "1"},
		"Repairs: victims come first":                        {pods: all(one(1, outdatedDown...), one(2, ours...), one(3, outdatedDown...)), rule: rollout.Repairs, who: "2", writes: "2"},
		"Repairs: they use no budget":                        {pods: all(one(1, silentPod...), one(2, outdatedDown...), one(3)), rule: rollout.Budget, who: "1", writes: "2"},
		"WorkloadShare: its controller has one": {strategy: update{MaxUnavailable: share("3")}, pods: all(one(1, with(updating, in("a"))...), many(3, with(available, in("b"))...), one(2, in("a")), one(3, in("a"))),
			rule: rollout.WorkloadShare, who: "1"},
		"WorkloadShare: others go on": {strategy: update{MaxUnavailable: share("3")}, pods: all(many(4, with(available, in("b"))...), one(1, in("a")), one(2, in("a")), one(3, in("b")), one(4, in("b"))),
			rule: rollout.WorkloadShare, who: "1", writes: "1 3 4"},
		"MinReadySeconds":                  {pods: one(1, readySince(10)), rule: rollout.MinReadySeconds, who: "1"},
		"MinReadySeconds: others go on":    {pods: all(one(1, readySince(10)), one(2)), writes: "2"},
		"Partition":                        {strategy: update{Partition: share("1")}, pods: one(1), rule: rollout.Partition},
		"Partition: of down Pods":          {strategy: update{Partition: share("1")}, pods: one(1, outdatedDown...), rule: rollout.Partition},
		"Partition: not of victims":        {strategy: update{Partition: share("1")}, pods: one(1, ours...), writes: "1"},
		"Partition: of those of long ago":  {strategy: update{Partition: share("1")}, pods: one(1, with(ours, wrote(900, podstate.WasReady), carriedOut(890), downSince(200))...), rule: rollout.Partition},
		"Partition: after the victims":     {strategy: update{Partition: share("1"), MaxUnavailable: share("9")}, pods: all(one(1, ours...), one(2), many(5, available...)), rule: rollout.Partition, writes: "1"},
		"Partition: 90 % of ten":           {strategy: update{Partition: share("90%"), MaxUnavailable: share("9")}, pods: all(many(2, available...), one(1), one(2), many(6)), rule: rollout.Partition},
		"Partition: 70 % of ten":           {strategy: update{Partition: share("70%"), MaxUnavailable: share("9")}, pods: all(many(2, available...), one(1), many(7)), rule: rollout.Partition, writes: "1"},
		"Partition: 99 % of three":         {strategy: update{Partition: share("99%")}, pods: all(one(1), many(2)), rule: rollout.Budget, who: "1", writes: "1"},
		"Partition: 99 % of one":           {strategy: update{Partition: share("99%")}, pods: one(1), rule: rollout.Partition},
		"Partition: while nodes are dead":  {strategy: update{Partition: share("50%"), MaxUnavailable: share("9")}, pods: all(many(4, available...), one(1, with(outdatedDown, dead)...), one(2, with(late, dead)...), one(3), many(5)), rule: rollout.Partition, writes: "3"},
		"NewPods":                          {earlier: true, pods: one(1, with(outdatedDown, created(100))...), rule: rollout.NewPods, who: "1"},
		"NewPods: others go on":            {earlier: true, pods: all(one(1, with(outdatedDown, created(100))...), one(2)), rule: rollout.NoRule, writes: "2"},
		"NewPods: without a node":          {earlier: true, pods: one(1, with(outdatedDown, unassigned)...), rule: rollout.NewPods, who: "1"},
		"without a node":                   {pods: all(one(1, with(outdatedDown, unassigned)...), one(2, with(outdatedDown, unassigned)...), one(3), one(4)), rule: rollout.Budget, who: "3", writes: "3 1 2"},
		"without a node, beside a victim":  {pods: all(one(1, with(outdatedDown, unassigned)...), one(2, with(downAgain, unassigned)...), one(3, updating...), one(4)), rule: rollout.Budget, who: "3", writes: "1"},
		"without a node, by partition":     {strategy: update{Partition: share("1")}, pods: all(one(1, with(outdatedDown, unassigned)...), one(2, with(outdatedDown, unassigned)...)), rule: rollout.Partition, writes: "1"},
		"refused ones come last":           {strategy: update{MaxUnavailable: share("2")}, pods: all(one(1, refused), one(2), one(3, undone(700, podstate.WasReady)), many(5, available...)), rule: rollout.Budget, who: "2", writes: "2 1"},
		"refused ones, of those not Ready": {pods: all(one(1, with(outdatedDown, refused)...), one(2, outdatedDown...)), rule: rollout.Repairs, who: "2", writes: "2"},
		"Paused":                           {strategy: update{Paused: true}, pods: all(one(1, ours...), one(2)), rule: rollout.Paused, who: "1"},
		"NotUpdate":                        {strategy: update{Type: appsv1beta1.NotUpdateSidecarSetStrategyType, Partition: share("not even looked at")}, pods: all(one(1, ours...), one(2)), rule: rollout.NotUpdate},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.status == (rollout.Status{}) {
				tc.status = begun
			}
			s := withMinReady(tc.strategy, "30")
			for _, p := range tc.pods {
				p.Traits = s.TraitsOf(p.Summary.Labels.Labels())
			}
			plan := rollout.Decide(rollout.Input{Strategy: s, Status: tc.status, Stored: true, NewPodsGetEarlier: tc.earlier, Now: noon}, tc.pods)
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

// The word for what the Pod does that a rule waits for.
func TestWhatThePodDoes(t *testing.T) {
	waits := func(why podstate.Wait) change { return func(p *rollout.Pod) { p.Written.Why = why } }
	fails := func(word string) change { return func(p *rollout.Pod) { p.Trouble = trouble(word) } }
	for name, tc := range map[string]struct {
		pod  []change
		want string
		next bool // another Pod waits for it
	}{
		"its node is dead":             {with(updating, dead, fails("CrashLoopBackOff")), string(inplace.NodeNotReady), false},
		"a sidecar fails":              {with(updating, fails("CrashLoopBackOff"), waits(podstate.WaitsForKill)), "CrashLoopBackOff", false},
		"its update was undone":        {[]change{undone(100, podstate.WasReady)}, string(inplace.WriteReverted), true},
		"it was refused":               {[]change{refused}, string(inplace.WriteRejected), false},
		"it is written now":            {nil, appsv1beta1.ReasonUpdating, false},
		"it is repaired now":           {outdatedDown, appsv1beta1.ReasonUpdating, false},
		"its node has not seen it":     {with(silentPod, waits(podstate.WaitsForNode)), appsv1beta1.ReasonNotAcknowledged, false},
		"its old container is stopped": {with(updating, waits(podstate.WaitsForKill)), appsv1beta1.ReasonTerminating, false},
		"its startup probe runs":       {with(updating, waits(podstate.WaitsForStartupProbe)), appsv1beta1.ReasonStartupProbe, false},
		"its new container is started": {with(updating, fails("ContainerCreating")), appsv1beta1.ReasonStarting, false},
		"its containers run":           {with(updating, carriedOut(90)), appsv1beta1.ReasonNotReady, false},
		"it failed later":              {late, appsv1beta1.ReasonNotReady, false},
		"it is Ready":                  {unavailable, appsv1beta1.ReasonMinReadySeconds, true},
		"it has just become Ready":     {[]change{readySince(10)}, appsv1beta1.ReasonMinReadySeconds, false},
		"it has no node":               {with(outdatedDown, unassigned), appsv1beta1.ReasonNotScheduled, false},
	} {
		pods := []*rollout.Pod{pod(1, tc.pod...)}
		if tc.next {
			pods = append(pods, pod(2))
		}
		if plan := ruled(update{}, rollout.Begun, pods...); plan.WhoIs != tc.want {
			t.Errorf("%s: the word is %q, want %q (rule %d)", name, plan.WhoIs, tc.want, plan.Rule)
		}
	}
}

// Pods that disappeared use the budget until a time, which is stored.
func TestPodsThatDisappearedUseTheBudget(t *testing.T) {
	s := withMinReady(update{}, "30")
	victim := pod(1, with(updating, carriedOut(90))...)
	status := rollout.Begun
	for _, before := range []int64{700, 200, 100} {
		status = status.Disappear(victim, s, true, 0, noon-before)
	}
	if want := (rollout.Status{NotReadyBefore: -1, Disappeared: 3, DisappearedUntil: noon + 500}); status != want {
		t.Errorf("the status is %+v, want %+v", status, want)
	}
	if plan := ruled(update{}, status, pod(1)); plan.BudgetUsed != 3 || plan.Unavailable != 3 || plan.Next != noon+500 || plan.Who != nil {
		t.Errorf("the plan is %+v", plan)
	}
	for _, until := range []int64{noon, noon + 601} { // it is over; a leader whose clock was wrong has stored it
		status.DisappearedUntil = until
		if plan := ruled(update{}, status, pod(1)); plan.BudgetUsed != 0 || len(plan.Write) != 1 || plan.Status.Disappeared != 0 {
			t.Errorf("%d s before its end, the plan is %+v", until-noon, plan)
		}
		if again := status.Disappear(victim, s, true, 0, noon); again.Disappeared != 1 {
			t.Errorf("after those are forgotten, the status is %+v", again)
		}
	}
}

// How long a Pod that disappears uses the budget, and what the record of a new write says of it.
func TestDisappearAndStateBefore(t *testing.T) {
	fails := func(p *rollout.Pod) { p.Trouble = trouble("CrashLoopBackOff") }
	const ready, byUpdate, notReady = podstate.WasReady, podstate.WasNotReadyByUpdate, podstate.WasNotReady
	tests := map[string]struct {
		pod []change
		// seconds: if the Pod is deleted while nothing is available, which the operator wrote for 100 s;
		// if it is deleted while others are; and if it fails as a whole
		first, deleted, failed int64
		before                 podstate.StateBefore
	}{
		"outdated":                        {nil, 0, 0, 0, ready},
		"not Ready before":                {outdatedDown, 0, 0, 0, notReady},
		"updating":                        {updating, 100, 30, 600, byUpdate},
		"updating, and a sidecar fails":   {with(updating, fails), 600, 600, 600, byUpdate},
		"updating, and it came and went":  {with(updating, carriedOut(99)), 600, 600, 600, byUpdate},
		"updating, and it should be back": {with(updating, carriedOut(90), downSince(100)), 600, 600, 600, byUpdate},
		"updating, and may be back soon":  {with(updating, carriedOut(20), downSince(100)), 100, 30, 600, byUpdate},
		"its node does not act":           {silentPod, 100, 30, 600, ready},
		"for another revision":            {[]change{wrote(100, ready)}, 100, 30, 600, ready},
		"not yet available":               {unavailable, 0, 0, 600, ready},
		"available for long":              {available, 0, 0, 0, ready},
		"available for a short time":      {with(available, wrote(500, ready), carriedOut(490), readySince(480)), 0, 0, 600, ready},
		"failed":                          {with(late, downSince(500)), 600, 600, 600, byUpdate},
		"failed after ten minutes":        {late, 600, 600, 600, notReady},
		"failed with another revision":    {late[1:], 0, 0, 0, notReady},
		"it was not Ready before":         {downAgain, 0, 0, 0, notReady},
		"it was, by the update":           {with(downAgain, wrote(100, byUpdate)), 100, 30, 600, byUpdate},
		"outdated, and by the update":     {ours, 600, 600, 600, byUpdate},
		"its node died":                   {with(updating, dead), 502, 502, 502, byUpdate},
		"its node died long ago":          {with(updating, dead, wrote(2000, ready), carriedOut(1900), downSince(700)), 0, 0, 0, notReady},
		"available, and its node died":    {with(available, dead, downSince(500)), 100, 100, 100, byUpdate},
		"its write is on the way":         {[]change{sent(ready)}, 100, 30, 600, ready},
	}
	s := withMinReady(update{}, "30")
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := pod(1, tc.pod...)
			started := rollout.Status{Started: noon - 100}
			for _, end := range []struct {
				how       string
				status    rollout.Status
				failed    bool
				available int
				want      int64
			}{
				{"deleted at first", started, false, 0, tc.first}, {"deleted", started, false, 1, tc.deleted}, {"failed", started, true, 1, tc.failed},
			} {
				got := end.status.Disappear(p, s, end.failed, end.available, noon)
				if in := max(0, got.DisappearedUntil-noon); in != end.want || (got.Disappeared == 1) != (end.want > 0) {
					t.Errorf("%s: it uses the budget for %d s, want %d: %+v", end.how, in, end.want, got)
				}
			}
			if got := (rollout.Status{}).Disappear(p, s, false, 0, noon); tc.first == 100 && tc.deleted == 30 && got.DisappearedUntil != noon+600 {
				t.Errorf("if it is not known when the rollout began, it uses the budget until %d", got.DisappearedUntil-noon)
			}
			if got := p.StateBefore(noon); got != tc.before {
				t.Errorf("StateBefore() = %d, want %d", got, tc.before)
			}
		})
	}
}

// trouble returns the trouble with the kubelet's word.
func trouble(word string) podstate.Trouble {
	for t := range podstate.Troubles {
		if t.String() == word {
			return t
		}
	}
	panic(word)
}
