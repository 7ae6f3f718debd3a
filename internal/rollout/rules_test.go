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
	silentPod = []change{current, wrote(100, podstate.WasReady), readySince(5000)}
	updating  = []change{current, wrote(100, podstate.WasReady), downSince(98)}
	settling  = []change{current, wrote(20, podstate.WasReady), carriedOut(18), readySince(15)}
	isProven  = []change{current, wrote(1000, podstate.WasReady), carriedOut(990), readySince(980)}
	late      = []change{current, wrote(1000, podstate.WasReady), carriedOut(990), downSince(100)}
	downAgain = []change{current, wrote(100, podstate.WasNotReady), downSince(5000)}
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
		p.Traits = s.TraitsOf(p.Record.Labels.Labels())
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
		"it was created with the content":        {pod: []change{current}},
		"its node has not acted":                 {silentPod, numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 500, ""},
		"its node has not acted for ten minutes": {with(silentPod, wrote(600, podstate.WasReady)), numbers{}, 0, "UpdateTimedOut"},
		"it is not Ready since the write":        {updating, numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1}, 0, ""},
		"it has started, and is not Ready":       {with(updating, carriedOut(90)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1, Failing: 1}, 0, ""},
		"it failed within half a minute":         {with(isProven, downSince(970)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1, Failing: 1}, 0, ""},
		"it is Ready":                            {settling, numbers{Unavailable: 1, UpdatedReady: 1}, 15, ""},
		"it was not Ready for four minutes":      {[]change{current, wrote(300, podstate.WasReady), carriedOut(290), readySince(50)}, numbers{Unavailable: 1, UpdatedReady: 1}, 190, ""},
		"it was not Ready for ten minutes":       {[]change{current, wrote(700, podstate.WasReady), carriedOut(650), readySince(40)}, numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"it is proven":                           {isProven, numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"it was proven, and fails":               {late, numbers{BudgetUsed: 1, FailedAfterUpdate: 1, Unavailable: 1, UpdatedNotReady: 1, Failing: 1}, 0, ""},
		"it was down, and nothing is known":      {downAgain, numbers{UpdatedNotReady: 1}, 500, ""},
		"it was down, and has had ten minutes":   {with(downAgain, wrote(600, podstate.WasNotReady)), numbers{}, 0, ""},
		"it was down, its sidecars have started": {with(downAgain, carriedOut(10)), numbers{UpdatedNotReady: 1}, 20, ""},
		"it was down, its sidecars run":          {with(downAgain, carriedOut(30)), numbers{}, 500, ""},
		"it was down, its sidecars have failed":  {with(downAgain, carriedOut(30), func(p *rollout.Pod) { p.Written.Up = false }), numbers{UpdatedNotReady: 1}, 500, ""},
		"it came back in the future":             {with(settling, readySince(-50)), numbers{Unavailable: 1, UpdatedReady: 1}, 30, ""},
		"it was down, and has come back":         {with(settling, wrote(20, podstate.WasNotReady), carriedOut(18)), numbers{UpdatedReady: 1}, 15, ""},
		"it was down, and is back for long":      {with(isProven, wrote(1000, podstate.WasNotReady), carriedOut(990)), numbers{UpdatedReady: 1}, 0, ""},
		"it was taken down before":               {with(downAgain, wrote(100, podstate.WasNotReadyByUpdate)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1, UpdatedNotReady: 1}, 500, ""},
		"it was taken down ten minutes ago":      {with(downAgain, wrote(600, podstate.WasNotReadyByUpdate)), numbers{}, 0, ""},
		"its time is in the future":              {with(silentPod, wrote(-50, podstate.WasReady)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 600, ""},
		"it started in the future":               {with(settling, carriedOut(-50)), numbers{Unavailable: 1, UpdatedReady: 1}, 30, ""},
		"time has to show that it is carried out": {with(settling, func(p *rollout.Pod) { p.Written.Carried = ago(-20) }),
			numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 20, ""},
		"it is outdated, and was taken down":           {with(ours, downSince(20)), numbers{BudgetUsed: 1, Updating: 1}, 40, "write"},
		"it is outdated, and failed after ten minutes": {with(ours, wrote(800, podstate.WasReady), carriedOut(790), downSince(100)), numbers{}, 0, "write"},
		"it is outdated, and is being updated":         {[]change{wrote(100, podstate.WasReady)}, numbers{BudgetUsed: 1, Updating: 1}, 500, ""},
		"it is outdated, and being updated for long":   {[]change{wrote(600, podstate.WasReady)}, numbers{}, 0, "write"},
		"its node died":                                          {with(updating, dead), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 502, ""},
		"its node died ten minutes ago":                          {with(updating, dead, wrote(800, podstate.WasReady), downSince(600)), numbers{}, 0, ""},
		"it was not Ready, and its node died":                    {with(downAgain, dead), numbers{}, 0, ""},
		"its node died, and it is available":                     {with(isProven, dead, downSince(500)), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 100, ""},
		"its node died long after":                               {with(late, dead), numbers{}, 0, ""},
		"its node died, and it is outdated":                      {with(ours, dead), numbers{BudgetUsed: 1, Updating: 1, Unavailable: 1}, 520, "NodeNotReady"},
		"its node is dead, and it was not written":               {with(outdatedDown, dead), numbers{}, 0, "NodeNotReady"},
		"it was not Ready for ten minutes, and its sidecars run": {with(downAgain, wrote(600, podstate.WasNotReady), carriedOut(590)), numbers{UpdatedReady: 1}, 0, ""},
		"its clock is hours ahead":                               {with(settling, readySince(-9000)), numbers{Unavailable: 1, UpdatedReady: 1}, 30, ""},
		"its clock is hours ahead, ten minutes later":            {with(settling, readySince(-9000), wrote(700, podstate.WasReady), carriedOut(690)), numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"it started hours ahead":                                 {with(settling, wrote(700, podstate.WasReady), carriedOut(-9000), readySince(680)), numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"a leader's clock was hours ahead":                       {with(silentPod, wrote(-9000, podstate.WasReady)), numbers{}, 0, "UpdateTimedOut"},
		"and its node acted":                                     {with(settling, wrote(-9000, podstate.WasReady), func(p *rollout.Pod) { p.Written.Carried = p.Written.At + 40 }, readySince(50)), numbers{Available: 1, UpdatedReady: 1}, 0, ""},
		"it is outdated, and was just updated":                   {[]change{wrote(200, podstate.WasReady), carriedOut(190), readySince(40)}, numbers{}, 110, ""},
		"it has no node":                                         {with(outdatedDown, unassigned), numbers{}, 0, "write"},
		"it has no node, and was written":                        {with(downAgain, unassigned), numbers{}, 0, ""},
		"it is new":                                              {with(outdatedDown, created(500)), numbers{}, 100, ""},
		"it was created ten minutes ago":                         {with(outdatedDown, created(600)), numbers{}, 0, "write"},
		"it is new, and its sidecar fails":                       {with(outdatedDown, created(500), func(p *rollout.Pod) { p.Trouble = trouble("CrashLoopBackOff") }), numbers{}, 0, "write"},
		"it is new, and Ready":                                   {[]change{created(500), readySince(100)}, numbers{}, 0, "write"},
		"it is new, and was written":                             {with(ours, created(500), downSince(20)), numbers{BudgetUsed: 1, Updating: 1}, 40, "write"},
		"its update was undone":                                  {[]change{undone(100, podstate.WasReady)}, numbers{Unavailable: 1, BackingOff: 1}, 500, "WriteUndone"},
		"it was not Ready, and that was undone":                  {with(outdatedDown, undone(100, podstate.WasNotReady)), numbers{BackingOff: 1}, 500, "WriteUndone"},
		"its update was undone ten minutes ago":                  {[]change{undone(600, podstate.WasReady)}, numbers{}, 0, "write"},
		"it is outdated":                                         {nil, numbers{}, 0, "write"},
		"it is not compared yet":                                 {[]change{func(p *rollout.Pod) { p.Verdict.Way = inplace.Unknown }}, numbers{}, 0, ""},
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

func unassigned(p *rollout.Pod) { p.Record.Order.Assigned = false }

// refused: the last write of the Pod was refused a while ago.
func refused(p *rollout.Pod) {
	p.Backoff = &rollout.Backoff{Until: noon - 10, Reason: inplace.Refused}
}

// created: the Pod has what new Pods get.
func created(at int) change {
	return func(p *rollout.Pod) { p.AsNew, p.Record.Order.Created = true, int64(ago(at)) }
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
		earlier  bool // new Pods get an earlier content
	}{
		"nothing is to be done":                      {pods: many(5, isProven...)},
		"the first Pod":                              {pods: all(one(1), one(2)), rule: rollout.Budget, who: "1", writes: "1"},
		"Budget: one is updating":                    {pods: all(one(1, updating...), many(5, isProven...), one(2), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: the older one":                      {strategy: update{MaxUnavailable: share("2")}, pods: all(one(1, updating...), one(2, with(updating, older)...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "2"},
		"Budget: updating before failed":             {strategy: update{MaxUnavailable: share("2")}, pods: all(one(1, updating...), one(2, late...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: one failed":                         {pods: all(one(1, late...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: as many were down before":           {status: before, pods: all(one(1, late...), many(5, isProven...), one(3), one(4)), rule: rollout.Budget, who: "3", writes: "3"},
		"Budget: more than were down":                {status: before, pods: all(one(1, late...), one(2, late...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: an outdated victim counts":          {pods: all(one(1, ours...), many(1, downAgain...), many(5, isProven...), one(3)), rule: rollout.Budget, who: "1"},
		"Budget: one disappeared":                    {status: gone, pods: all(many(5, isProven...), one(3)), rule: rollout.Budget},
		"Budget: it is 0":                            {strategy: update{MaxUnavailable: share("0")}, pods: all(one(1), one(2, outdatedDown...)), rule: rollout.Budget, writes: "2"},
		"Budget: it is 0 %":                          {strategy: update{MaxUnavailable: share("0%")}, pods: all(one(1), one(2, outdatedDown...)), rule: rollout.Budget, writes: "2"},
		"Budget: a small percentage is one":          {strategy: update{MaxUnavailable: share("1%")}, pods: all(one(1), one(2)), rule: rollout.Budget, who: "1", writes: "1"},
		"Budget: under way for another":              {pods: one(1, wrote(100, podstate.WasReady)), rule: rollout.Budget, who: "1"},
		"SlowStart: the first is not available":      {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1, updating...), many(4)), rule: rollout.SlowStart, who: "1"},
		"SlowStart: one at first":                    {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1), one(2)), rule: rollout.SlowStart, who: "1", writes: "1"},
		"SlowStart: it is not yet available":         {strategy: update{MaxUnavailable: share("5")}, pods: all(one(1, settling...), many(4)), rule: rollout.SlowStart, who: "1"},
		"SlowStart: as many as are available":        {strategy: update{MaxUnavailable: share("9")}, pods: all(many(2, isProven...), one(3), one(4), one(5)), rule: rollout.SlowStart, who: "3", writes: "3 4"},
		"SlowStart: failed Pods count":               {strategy: update{MaxUnavailable: share("9")}, status: rollout.Status{NotReadyBefore: 9}, pods: all(one(1, late...), one(2, isProven...), one(3)), rule: rollout.SlowStart, who: "1"},
		"SlowStart: failed before not yet available": {strategy: update{MaxUnavailable: share("9")}, pods: all(one(1, late...), one(2, settling...), one(3, isProven...), one(4)), rule: rollout.SlowStart, who: "1"},
		"SlowStart: not from Pods that were down": {strategy: update{MaxUnavailable: share("9")}, pods: all(many(5, with(isProven, wrote(1000, podstate.WasNotReady), carriedOut(990))...), one(1), one(2)),
			rule: rollout.SlowStart, who: "1", writes: "1"},
		"SlowStart: not from Pods that were created with it": {strategy: update{MaxUnavailable: share("9")}, pods: all(many(5, current), one(1), one(2)), rule: rollout.SlowStart, who: "1", writes: "1"},
		"SlowStart: a victim that is cured counts":           {strategy: update{MaxUnavailable: share("9")}, pods: all(one(1, ours...), one(2)), rule: rollout.SlowStart, writes: "1"},
		"SlowStart: one that disappeared counts":             {strategy: update{MaxUnavailable: share("9")}, status: gone, pods: all(one(1), one(2)), rule: rollout.SlowStart},
		"Repairs: one at first":                              {pods: many(3, outdatedDown...), rule: rollout.Repairs, who: "2000000", writes: "2000000"},
		"Repairs: it is not back":                            {pods: all(one(1, downAgain...), many(3, outdatedDown...)), rule: rollout.Repairs, who: "1"},
		"Repairs: while fewer are down than up":              {pods: all(many(40, current), one(1, downAgain...), many(3, with(settling, wrote(20, podstate.WasNotReady), carriedOut(18))...), one(5, outdatedDown...), one(6, outdatedDown...), one(7, outdatedDown...)), rule: rollout.Repairs, who: "1", writes: "5 6"},
		"Repairs: and fewer than a tenth of all":             {pods: all(many(17, isProven...), one(1, outdatedDown...), one(2, outdatedDown...), one(3, outdatedDown...)), rule: rollout.Repairs, who: "1", writes: "1 2"},
		"Repairs: idle ones hold up none":                    {pods: all(one(1, with(downAgain, carriedOut(30))...), one(2, outdatedDown...)), writes: "2"},
		"Repairs: a failed one holds them up":                {pods: all(one(1, late...), one(2, outdatedDown...)), rule: rollout.Repairs, who: "1"},
		"Repairs: it names one that was up":                  {pods: all(one(1, updating...), one(2, with(downAgain, wrote(200, podstate.WasNotReady))...), one(3, outdatedDown...)), rule: rollout.Repairs, who: "1"},
		"Repairs: victims come first":                        {pods: all(one(1, outdatedDown...), one(2, ours...), one(3, outdatedDown...)), rule: rollout.Repairs, who: "2", writes: "2"},
		"Repairs: they use no budget":                        {pods: all(one(1, silentPod...), one(2, outdatedDown...), one(3)), rule: rollout.Budget, who: "1", writes: "2"},
		"WorkloadShare: its controller has one": {strategy: update{MaxUnavailable: share("3")}, pods: all(one(1, with(updating, in("a"))...), many(3, with(isProven, in("b"))...), one(2, in("a")), one(3, in("a"))),
			rule: rollout.WorkloadShare, who: "1"},
		"WorkloadShare: others go on": {strategy: update{MaxUnavailable: share("3")}, pods: all(many(4, with(isProven, in("b"))...), one(1, in("a")), one(2, in("a")), one(3, in("b")), one(4, in("b"))),
			rule: rollout.WorkloadShare, who: "1", writes: "1 3 4"},
		"MinReadySeconds":                  {pods: one(1, readySince(10)), rule: rollout.MinReadySeconds, who: "1"},
		"MinReadySeconds: others go on":    {pods: all(one(1, readySince(10)), one(2)), writes: "2"},
		"Partition":                        {strategy: update{Partition: share("1")}, pods: one(1), rule: rollout.Partition},
		"Partition: of down Pods":          {strategy: update{Partition: share("1")}, pods: one(1, outdatedDown...), rule: rollout.Partition},
		"Partition: not of victims":        {strategy: update{Partition: share("1")}, pods: one(1, ours...), writes: "1"},
		"Partition: of those of long ago":  {strategy: update{Partition: share("1")}, pods: one(1, with(ours, wrote(900, podstate.WasReady), carriedOut(890), downSince(200))...), rule: rollout.Partition},
		"Partition: after the victims":     {strategy: update{Partition: share("1"), MaxUnavailable: share("9")}, pods: all(one(1, ours...), one(2), many(5, isProven...)), rule: rollout.Partition, writes: "1"},
		"Partition: 90 % of ten":           {strategy: update{Partition: share("90%"), MaxUnavailable: share("9")}, pods: all(many(2, isProven...), one(1), one(2), many(6)), rule: rollout.Partition},
		"Partition: 70 % of ten":           {strategy: update{Partition: share("70%"), MaxUnavailable: share("9")}, pods: all(many(2, isProven...), one(1), many(7)), rule: rollout.Partition, writes: "1"},
		"Partition: 99 % of three":         {strategy: update{Partition: share("99%")}, pods: all(one(1), many(2)), rule: rollout.Budget, who: "1", writes: "1"},
		"Partition: 99 % of one":           {strategy: update{Partition: share("99%")}, pods: one(1), rule: rollout.Partition},
		"Partition: while nodes are dead":  {strategy: update{Partition: share("50%"), MaxUnavailable: share("9")}, pods: all(many(4, isProven...), one(1, with(outdatedDown, dead)...), one(2, with(late, dead)...), one(3), many(5)), rule: rollout.Partition, writes: "3"},
		"NewPods":                          {earlier: true, pods: one(1, with(outdatedDown, created(100))...), rule: rollout.NewPods, who: "1"},
		"NewPods: others go on":            {earlier: true, pods: all(one(1, with(outdatedDown, created(100))...), one(2)), rule: rollout.NoRule, writes: "2"},
		"NewPods: without a node":          {earlier: true, pods: one(1, with(outdatedDown, unassigned)...), rule: rollout.NewPods, who: "1"},
		"without a node":                   {pods: all(one(1, with(outdatedDown, unassigned)...), one(2, with(outdatedDown, unassigned)...), one(3), one(4)), rule: rollout.Budget, who: "3", writes: "3 1 2"},
		"without a node, beside a victim":  {pods: all(one(1, with(outdatedDown, unassigned)...), one(2, with(downAgain, unassigned)...), one(3, updating...), one(4)), rule: rollout.Budget, who: "3", writes: "1"},
		"without a node, by partition":     {strategy: update{Partition: share("1")}, pods: all(one(1, with(outdatedDown, unassigned)...), one(2, with(outdatedDown, unassigned)...)), rule: rollout.Partition, writes: "1"},
		"refused ones come last":           {strategy: update{MaxUnavailable: share("2")}, pods: all(one(1, refused), one(2), one(3, undone(700, podstate.WasReady)), many(5, isProven...)), rule: rollout.Budget, who: "2", writes: "2 1"},
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
				p.Traits = s.TraitsOf(p.Record.Labels.Labels())
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
		"for another content":             {[]change{wrote(100, ready)}, 100, 30, 600, ready},
		"not yet available":               {settling, 0, 0, 600, ready},
		"available for long":              {isProven, 0, 0, 0, ready},
		"available for a short time":      {with(isProven, wrote(500, ready), carriedOut(490), readySince(480)), 0, 0, 600, ready},
		"failed":                          {with(late, downSince(500)), 600, 600, 600, byUpdate},
		"failed after ten minutes":        {late, 600, 600, 600, notReady},
		"failed with another content":     {late[1:], 0, 0, 0, notReady},
		"it was not Ready before":         {downAgain, 0, 0, 0, notReady},
		"it was, by the update":           {with(downAgain, wrote(100, byUpdate)), 100, 30, 600, byUpdate},
		"outdated, and by the update":     {ours, 600, 600, 600, byUpdate},
		"its node died":                   {with(updating, dead), 502, 502, 502, byUpdate},
		"its node died long ago":          {with(updating, dead, wrote(2000, ready), carriedOut(1900), downSince(700)), 0, 0, 0, notReady},
		"available, and its node died":    {with(isProven, dead, downSince(500)), 100, 100, 100, byUpdate},
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

// Once a Pod is written, the status says how many were not Ready, and not by the operator. Available
// Pods wait until that is stored; Pods that are down do not.
func TestTheStatusIsStoredFirst(t *testing.T) {
	s := withMinReady(update{MaxUnavailable: share("9")}, "30")
	pods := slices.Concat(many(4, outdatedDown...), many(30, isProven...), []*rollout.Pod{pod(1), pod(2, ours...), pod(3, with(updating, func(p *rollout.Pod) { p.Dead = true })...)})
	plan := rollout.Decide(rollout.Input{Strategy: s, Status: rollout.Begun, Stored: false, Now: noon}, pods)
	if plan.Rule != rollout.Storing || plan.Who != nil || slices.Contains(names(plan.Write), "1") || len(plan.Write) != 3 {
		t.Errorf("wrote %q by rule %d", names(plan.Write), plan.Rule)
	}
	if got := plan.Status.NotReadyBefore; got != 4 {
		t.Errorf("%d Pods were not Ready before, want 4", got)
	}
	plan.Status.NotReadyBefore = 1
	if plan = rollout.Decide(rollout.Input{Strategy: s, Status: plan.Status, Stored: true, Now: noon}, pods); plan.Status.NotReadyBefore != 1 || !slices.Contains(names(plan.Write), "1") {
		t.Errorf("wrote %q with status %+v", names(plan.Write), plan.Status)
	}
	if plan = ruled(update{}, rollout.Begun, pod(1, updating...), pod(2)); rollout.Decide(rollout.Input{Strategy: withMinReady(update{}, "30"), Status: rollout.Begun, Now: noon}, []*rollout.Pod{pod(1, updating...), pod(2)}).Rule != plan.Rule {
		t.Error("Pods that wait by another rule wait for the status")
	}
	if plan = rollout.Decide(rollout.Input{Strategy: s, Status: rollout.Begun, Stored: false, Now: noon}, many(5, isProven...)); plan.Rule != rollout.NoRule || plan.Status != rollout.Begun {
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
			p.Backoff = &rollout.Backoff{Until: until, Reason: reason, Message: "denied by policy"}
		}
	}
	plan := ruled(update{}, rollout.Begun, pod(1, rests(noon+90, inplace.Refused)), pod(2, rests(noon+40, "")), pod(3, rests(noon, inplace.WriteUndone)), pod(4, isProven...))
	blocked := plan.Blocked.List()
	if !slices.Equal(names(plan.Write), []string{"3"}) || plan.Next != noon+40 || plan.BackingOff != 1 || len(blocked) != 1 || blocked[0].Message != "denied by policy" {
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
		if plan := ruled(tc.strategy, rollout.Begun, pod(1, with(silentPod, resets)...), pod(2, resets), pod(3, resets, sent(podstate.WasReady))); len(plan.Reset) != tc.want {
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
		"an outdated one":      {has("CrashLoopBackOff", 60, wrote(5000, podstate.WasNotReady)), "CrashLoopBackOff", 0},
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
		pod(3, verdict(inplace.LeaveAlone, inplace.ResizeDeferred)), pod(4, verdict(inplace.LeaveAlone, "")), pod(5, moves), pod(6, with(silentPod, wrote(700, podstate.WasReady))...),
		pod(7, verdict(inplace.Resize, "")))
	said := map[string]string{}
	for _, g := range plan.Blocked.List() {
		said[g.Reason] = fmt.Sprint(g.Pods, " ", g.Message)
	}
	want := map[string]string{"ImmutableFieldChanged": "2 ", "ResizeDeferred": "1 too big", "UpdateTimedOut": "1 "}
	if !maps.Equal(said, want) || plan.Outdated != 1 || !slices.Equal(names(plan.Write), []string{"7"}) || plan.Blocked.Pods() != 4 {
		t.Errorf("blocked %q, %d outdated, wrote %q", said, plan.Outdated, names(plan.Write))
	}
}

// Moved is the last write or return of a Pod with the content. Failing Pods are charged ones that do
// not come back by waiting.
func TestMovedGraceAndFailing(t *testing.T) {
	grace := func(seconds uint32) change { return func(p *rollout.Pod) { p.Record.Grace = seconds } }
	pulls := func(p *rollout.Pod) { p.Trouble = trouble("ErrImagePull") }
	plan := ruled(update{}, rollout.Begun, pod(1, with(late, grace(90))...), pod(2, with(isProven, grace(500))...), pod(3, with(settling, wrote(50, podstate.WasReady), carriedOut(40))...))
	if plan.Moved != noon-15 || plan.Grace != 90 || plan.Failing != 1 || plan.MinReady != 30 {
		t.Errorf("counted %+v", plan.Numbers)
	}
	for name, tc := range map[string]struct {
		pod     []change
		failing int
		in      int64
	}{
		"its image cannot be pulled": {with(updating, pulls), 1, 0},
		"not for a minute":           {with(updating, pulls, wrote(40, podstate.WasReady), downSince(30)), 0, 30},
		"it only waits":              {updating, 0, 0},
		"it has just failed":         {with(late, downSince(50)), 0, 10},
		"it was down before":         {with(downAgain, pulls), 0, 500},
	} {
		if plan := ruled(update{}, rollout.Begun, pod(1, tc.pod...)); plan.Failing != tc.failing || max(0, plan.Next-noon) != tc.in {
			t.Errorf("%s: %d fail, again in %d s", name, plan.Failing, plan.Next-noon)
		}
	}
	if plan := decide(strategy(update{}), pod(1, with(late, downSince(990))...)); plan.FailedAfterUpdate != 0 || plan.Updating != 1 {
		t.Errorf("a Pod that never was Ready is late: %+v", plan.Numbers)
	}
	if plan := ruled(update{}, rollout.Begun, pod(1)); plan.Moved != 0 {
		t.Errorf("a rollout without writes moved at %d", plan.Moved)
	}
}
