package status_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/test/health"
)

func of(matched, updated int32) status.Counters {
	return status.Counters{Matched: matched, Updated: updated}
}

func record(name string) *podstate.Summary {
	return &podstate.Summary{Namespace: podstate.MakeNamespace("shop"), Name: name}
}

// among are n Pods for one reason.
func among(reason, message string, n int) (g rollout.Groups) {
	for i := range n {
		g.Add(inplace.Reason(reason), message, record(fmt.Sprint("web-", i+1)))
	}
	return g
}

// waits is a rollout that began an hour ago, with five Pods. Three wait by a rule, and the rule waits
// for a Pod that is charged. The last Pod moved some time ago.
func waits(rule rollout.Rule, moved time.Duration, change ...func(*rollout.Plan)) status.Observation {
	p := &rollout.Plan{Rule: rule, Who: &rollout.Pod{Summary: record("web-1")}, WhoIs: "CrashLoopBackOff", Status: rollout.Begun, Numbers: rollout.Numbers{
		Total: 5, Current: 2, Outdated: 3, Budget: 2, BudgetUsed: 2, Updating: 2, Unavailable: 2, Available: 1, UpdatedNotReady: 2, UpdatedReady: 1, Grace: 30, MinReady: 30, Moved: start.Add(-moved).Unix(),
	}}
	for _, f := range change {
		f(p)
	}
	return status.Observation{Counters: of(5, 2), Plan: p, Since: start.Add(-time.Hour)}
}

// seen is a rollout in which nothing is charged.
func seen(n status.Counters, p rollout.Plan) status.Observation {
	p.Total, p.Budget = int(n.Matched), max(p.Budget, 1)
	return status.Observation{Counters: n, Plan: &p, Since: start.Add(-time.Hour)}
}

// Each row is a state of a SidecarSet: what the conditions say of it, and what kstatus and the
// health check for Argo CD make of them.
func TestStates(t *testing.T) {
	const recent, minute = time.Second, time.Minute
	numbers := func(n rollout.Numbers) rollout.Plan { return rollout.Plan{Numbers: n} }
	last := func(p *rollout.Plan) { p.Outdated = 0 }
	nobody := func(p *rollout.Plan) {
		p.Who, p.BudgetUsed, p.Status.Disappeared, p.Status.DisappearedUntil = nil, 2, 2, start.Add(time.Hour).Unix()
	}
	budget := func(n int) func(*rollout.Plan) { return func(p *rollout.Plan) { p.Budget = n } }
	broken := func(p *rollout.Plan) { p.Failing = 2 }
	first := func(is string) func(*rollout.Plan) {
		return func(p *rollout.Plan) { p.BudgetUsed, p.Updating, p.Unavailable, p.WhoIs = 0, 0, 0, is }
	}
	calm := func(p *rollout.Plan) { p.BudgetUsed, p.Unavailable, p.Who = 0, 0, nil }
	downs := func(n, of int) status.Observation {
		o := seen(status.Counters{Matched: int32(of), Updated: int32(of)}, rollout.Plan{NotRunning: among("ImagePullBackOff", "log", n), NotRunningCurrent: n})
		o.Plan.Current = of
		return o
	}
	for name, tc := range map[string]struct {
		seen                            status.Observation
		progressing, degraded, k8s, cdr string
		says                            string // in the message of Progressing, or of a true Degraded
	}{
		"no Pods":                  {seen(of(0, 0), rollout.Plan{}), "Complete", "AsExpected", "Current", "Healthy", "All 0 matched Pods are updated."},
		"all are updated":          {seen(of(5, 5), numbers(rollout.Numbers{Kept: 2})), "Complete", "AsExpected", "Current", "Healthy", "All 5"},
		"all are updated, in part": {seen(status.Counters{Matched: 5, Updated: 5, Uninjected: 2}, rollout.Plan{}), "PodsBlocked", "AsExpected", "Current", "Healthy", "2 selected Pods were not injected"},
		"the last Pod is not back": {waits(rollout.NoRule, recent, last), "RollingOut", "AsExpected", "Current", "Progressing", "2 of 5 matched Pods are updated. 2 Pods are not back from the update. The first is shop/web-1 (CrashLoopBackOff)."},
		"the last Pod is charged":  {func() status.Observation { o := waits(rollout.NoRule, recent, last); o.Counters = of(5, 5); return o }(), "RollingOut", "AsExpected", "Current", "Progressing", "5 of 5"},
		"the last Pods settle":     {seen(of(5, 5), numbers(rollout.Numbers{Unavailable: 2})), "Complete", "AsExpected", "Current", "Healthy", ""},

		"Budget": {waits(rollout.Budget, 10*minute), "RollingOut", "AsExpected", "Current", "Progressing",
			"2 of 5 matched Pods are updated. 3 are still to be updated. Budget: maxUnavailable is 2, and 2 Pods use it. The rollout waits for shop/web-1 (CrashLoopBackOff)."},
		"Budget, of Pods that disappeared": {waits(rollout.Budget, recent, nobody), "RollingOut", "AsExpected", "Current", "Progressing", "Budget: 2 Pods that disappeared use maxUnavailable until 04:04 UTC."},
		"SlowStart": {waits(rollout.SlowStart, recent), "RollingOut", "AsExpected", "Current", "Progressing",
			"SlowStart: 2 updated Pods are not available, and 1 is. The rollout waits for shop/web-1 (CrashLoopBackOff)."},
		"SlowStart, of Pods that disappeared":  {waits(rollout.SlowStart, recent, nobody), "RollingOut", "AsExpected", "Current", "Progressing", "SlowStart: 2 Pods that disappeared use maxUnavailable until 04:04 UTC."},
		"Repairs":                              {waits(rollout.Repairs, recent), "RollingOut", "AsExpected", "Current", "Progressing", "Repairs: of the updated Pods, 2 are not Ready, and 1 is. The other Pods that are not Ready wait for shop/web-1"},
		"WorkloadShare":                        {waits(rollout.WorkloadShare, recent), "RollingOut", "AsExpected", "Current", "Progressing", "WorkloadShare: the workloads of the next Pods have their share of maxUnavailable, which is 2. The rollout waits for shop/web-1"},
		"MinReadySeconds":                      {waits(rollout.MinReadySeconds, recent), "RollingOut", "AsExpected", "Current", "Progressing", "MinReadySeconds: the next Pods have just become Ready, and min-ready-seconds is 30. The rollout waits for shop/web-1"},
		"Storing":                              {waits(rollout.Storing, recent, calm), "RollingOut", "AsExpected", "Current", "Progressing", "3 are still to be updated. The next Pods wait until the status is stored."},
		"NewPods":                              {waits(rollout.NewPods, recent, func(p *rollout.Plan) { p.WhoIs = "NotScheduled" }), "RollingOut", "AsExpected", "Current", "Progressing", "NewPods: the next Pods are new, and have the revision that new Pods get. The rollout waits for shop/web-1 (NotScheduled)."},
		"the first Pod is about to be written": {waits(rollout.Budget, recent, first("Updating")), "RollingOut", "AsExpected", "Current", "Progressing", "3 are still to be updated. The next Pod is shop/web-1 (Updating)."},
		"its write is refused":                 {waits(rollout.Budget, time.Hour, first("WriteRejected")), "Stalled", "Stalled", "Failed", "Degraded", "Budget: the rollout waits for shop/web-1 (WriteRejected)."},
		"there is no cause":                    {waits(rollout.NoRule, time.Hour, calm), "RollingOut", "AsExpected", "Current", "Progressing", "2 of 5 matched Pods are updated. 3 are still to be updated."},
		"a canary, and the partition keeps the rest": {waits(rollout.Partition, recent, func(p *rollout.Plan) { p.Kept = 3 }), "RollingOut", "AsExpected", "Current", "Progressing", "2 Pods are not back"},

		"nothing moves":                        {waits(rollout.Budget, 11*minute), "Stalled", "Stalled", "Failed", "Degraded", "Budget: maxUnavailable is 2, and 2 Pods use it."},
		"nothing moves, and nothing is broken": {waits(rollout.WorkloadShare, 11*minute), "Stalled", "Stalled", "Failed", "Degraded", "Share: "},
		"some are broken, and others wait":     {waits(rollout.Budget, 10*minute, broken), "RollingOut", "AsExpected", "Current", "Progressing", ""},
		"a long grace period":                  {waits(rollout.Budget, time.Hour, func(p *rollout.Plan) { p.Grace = 3600 }), "RollingOut", "AsExpected", "Current", "Progressing", ""},
		"the last Pods are broken":             {waits(rollout.NoRule, recent, last, broken), "Stalled", "PodsNotReady", "Failed", "Degraded", "The first is shop/web-1 (CrashLoopBackOff)."},
		"the last Pods do not come back":       {waits(rollout.NoRule, 11*minute, last), "Stalled", "PodsNotReady", "Failed", "Degraded", "The first is shop/web-1"},
		"the last Pods disappeared": {func() status.Observation {
			o := waits(rollout.NoRule, 11*minute, last, nobody)
			o.Counters = of(5, 5)
			return o
		}(), "Complete", "AsExpected", "Current", "Healthy", ""},
		"one Pod disappeared": {waits(rollout.Budget, recent, nobody, func(p *rollout.Plan) { p.BudgetUsed, p.Status.Disappeared = 1, 1 }), "RollingOut", "AsExpected", "Current", "Progressing", "Budget: 1 Pod that disappeared uses maxUnavailable until 04:04 UTC."},
		"one is left": {func() status.Observation {
			o := waits(rollout.Budget, recent, func(p *rollout.Plan) { p.BudgetUsed, p.Updating, p.Outdated, p.Budget = 1, 1, 1, 1 })
			o.Counters = of(1, 0)
			return o
		}(), "RollingOut", "AsExpected", "Current", "Progressing", "0 of 1 matched Pod is updated. 1 is still to be updated. Budget: maxUnavailable is 1, and 1 Pod uses it."},
		"one cannot follow":                  {seen(of(1, 0), rollout.Plan{Blocked: among("NodeTooOld", "", 1)}), "PodsBlocked", "PodsBlocked", "Current", "Degraded", "1 Pod cannot be updated: 1 NodeTooOld."},
		"a canary is broken":                 {waits(rollout.Partition, recent, broken, func(p *rollout.Plan) { p.Kept = 3 }), "Stalled", "PodsNotReady", "Failed", "Degraded", "shop/web-1"},
		"the others rest, and one is broken": {waits(rollout.NoRule, recent, broken, func(p *rollout.Plan) { p.BackingOff, p.Blocked = 3, among("WriteRejected", "", 3) }), "Stalled", "PodsNotReady", "Failed", "Degraded", "shop/web-1"},

		"paused":                                 {waits(rollout.Paused, time.Hour, calm), "Paused", "AsExpected", "Current", "Suspended", "updateStrategy.paused is true: 2 of 5"},
		"paused and done":                        {seen(of(5, 5), rollout.Plan{Rule: rollout.Paused}), "Complete", "AsExpected", "Current", "Healthy", ""},
		"paused while a Pod is restarted":        {waits(rollout.Paused, recent), "Paused", "AsExpected", "Current", "Suspended", ""},
		"paused while Pods are broken":           {waits(rollout.Paused, recent, broken), "Paused", "PodsNotReady", "Failed", "Degraded", "2 Pods are not back from the update. The first is shop/web-1"},
		"paused while Pods do not come back":     {waits(rollout.Paused, 2*minute), "Paused", "PodsNotReady", "Failed", "Degraded", "shop/web-1"},
		"maxUnavailable is 0":                    {waits(rollout.Budget, time.Hour, calm, budget(0)), "Paused", "AsExpected", "Current", "Suspended", "maxUnavailable is 0"},
		"maxUnavailable is 0, and Pods are down": {waits(rollout.Budget, 2*minute, budget(0)), "Paused", "PodsNotReady", "Failed", "Degraded", "shop/web-1"},
		"NotUpdate":                              {seen(of(5, 2), rollout.Plan{Rule: rollout.NotUpdate}), "NotUpdate", "AsExpected", "Current", "Healthy", "NotUpdate: running Pods keep"},
		"the partition keeps the rest":           {seen(of(5, 2), rollout.Plan{Rule: rollout.Partition, Numbers: rollout.Numbers{Outdated: 3, Kept: 3}, Blocked: among("WriteRejected", "", 1)}), "PartitionReached", "AsExpected", "Current", "Healthy", "2 of 5"},
		"the selector keeps the rest":            {seen(of(5, 2), numbers(rollout.Numbers{Unselected: 3})), "PartitionReached", "AsExpected", "Current", "Healthy", "2 of 5"},

		"Pods run to completion":  {seen(of(5, 2), rollout.Plan{Blocked: among("RunToCompletion", "", 3)}), "PodsBlocked", "AsExpected", "Current", "Healthy", "3 RunToCompletion"},
		"their node is dead":      {seen(of(5, 2), rollout.Plan{Blocked: among("NodeNotReady", "", 3)}), "PodsBlocked", "AsExpected", "Current", "Healthy", "3 NodeNotReady"},
		"Pods cannot follow":      {seen(of(5, 2), rollout.Plan{Blocked: among("NodeTooOld", "", 3)}), "PodsBlocked", "PodsBlocked", "Current", "Degraded", "3 Pods cannot be updated: 3 NodeTooOld. status.blockedPods"},
		"Pods rest":               {seen(of(5, 2), rollout.Plan{Numbers: rollout.Numbers{Outdated: 3, BackingOff: 3}, Blocked: among("WriteRejected", "", 3)}), "PodsBlocked", "PodsBlocked", "Current", "Degraded", "3 WriteRejected"},
		"a node ignores the last": {seen(of(5, 5), rollout.Plan{Blocked: among("UpdateTimedOut", "", 1)}), "Complete", "PodsBlocked", "Current", "Degraded", "1 UpdateTimedOut"},
		"some cannot follow": {func() status.Observation {
			o := waits(rollout.Budget, recent)
			o.Plan.Blocked = among("WriteRejected", "", 1)
			return o
		}(), "RollingOut", "PodsBlocked", "Current", "Degraded", "1 WriteRejected"},

		"sidecars do not run":     {downs(1, 20), "Complete", "SidecarsNotRunning", "Current", "Degraded", "The sidecars of 1 Pod do not run: 1 ImagePullBackOff (container log, first Pod shop/web-1)."},
		"one in twenty-one":       {downs(1, 21), "Complete", "AsExpected", "Current", "Healthy", ""},
		"two in twenty-one":       {downs(2, 21), "Complete", "SidecarsNotRunning", "Current", "Degraded", "2 ImagePullBackOff"},
		"none with this revision": {func() status.Observation { o := downs(1, 20); o.Plan.NotRunningCurrent = 0; return o }(), "Complete", "AsExpected", "Current", "Healthy", ""},

		"the revision cannot be recorded": {func() status.Observation {
			o := seen(of(5, 5), rollout.Plan{})
			o.Unrecorded = errors.New("exceeded quota")
			return o
		}(), "Complete", "RevisionNotRecorded", "Failed", "Degraded", "exceeded quota"},
		"the strategy is not understood": {seen(of(5, 2), rollout.Plan{Rule: rollout.Invalid, Problem: errors.New("partition is odd")}), "InvalidSpec", "InvalidSpec", "Failed", "Degraded", "partition is odd"},
		"of no use":                      {status.Observation{Problem: errors.New("x"), Plan: &rollout.Plan{}}, "InvalidSpec", "InvalidSpec", "Failed", "Degraded", "Accepted"},
		"not Ready yet":                  {status.Observation{Readiness: &status.Readiness{Reason: appsv1beta1.ReasonPending, Message: "Not yet."}, Plan: &rollout.Plan{}}, "Complete", "AsExpected", "InProgress", "Progressing", ""},
		"not Ready until a user acts":    {status.Observation{Readiness: &status.Readiness{Reason: appsv1beta1.ReasonWebhookConfigurationMissing, Message: "Apply it."}, Plan: &rollout.Plan{}}, "Complete", "AsExpected", "InProgress", "Progressing", ""},
		"injection is paused":            {status.Observation{InjectionPaused: true, Plan: &rollout.Plan{}}, "Complete", "AsExpected", "Current", "Suspended", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := tc.seen
			o.Now, o.Generation = start, 7
			if o.Readiness == nil {
				o.Readiness = &status.Readiness{Ready: true, Reason: appsv1beta1.ReasonInjecting, Message: "It injects."}
			}
			s := status.Next(appsv1beta1.SidecarSetStatus{}, o)
			said := ""
			for kind, want := range map[string]string{appsv1beta1.ConditionProgressing: tc.progressing, appsv1beta1.ConditionDegraded: tc.degraded} {
				c := meta.FindStatusCondition(s.Conditions, kind)
				if c.Reason != want || c.Message == "" {
					t.Errorf("%s is %s, want %s: %q", kind, c.Reason, want, c.Message)
				}
				if kind == appsv1beta1.ConditionProgressing || c.Status == metav1.ConditionTrue {
					said += c.Message
				}
			}
			if !strings.Contains(said, tc.says) {
				t.Errorf("it says %q, want %q in it", said, tc.says)
			}
			var history fixtures.ConditionHistory
			if broken := history.Add(7, s, start); len(broken) > 0 && tc.degraded != appsv1beta1.ReasonSidecarsNotRunning {
				t.Error(strings.Join(broken, "\n"))
			}
			if again := status.Next(s, o); !status.Equal(s, again) {
				t.Errorf("there is something to write although nothing is new: %+v and %+v", s, again)
			}
			object := asObject(t, s, o.InjectionPaused)
			if got := read(t, object, health.Kstatus); got != tc.k8s {
				t.Errorf("kstatus says %s, want %s: %+v", got, tc.k8s, s.Conditions)
			}
			if got := read(t, object, health.Argo); got != tc.cdr {
				t.Errorf("the health check says %s, want %s: %+v", got, tc.cdr, s.Conditions)
			}
		})
	}
}

// A status that changes although nothing happens is looked at again in time: when the rollout is
// stalled, or when its plan changes.
func TestLooksAgainIn(t *testing.T) {
	next := func(in time.Duration) func(*rollout.Plan) {
		return func(p *rollout.Plan) { p.Next = start.Add(in).Unix() }
	}
	later := func(o status.Observation) status.Observation { o.Since = start; return o }
	now := start.Truncate(time.Second)
	for name, tc := range map[string]struct {
		seen    status.Observation
		want    time.Duration // 0: never
		stalled bool          // then, and not before
	}{
		"nothing is known":         {status.Observation{}, 0, false},
		"nothing waits":            {seen(of(5, 5), rollout.Plan{}), 0, false},
		"Pods wait":                {waits(rollout.Budget, 4*time.Minute), 7 * time.Minute, true},
		"a plan changes before":    {waits(rollout.Budget, 4*time.Minute, next(time.Minute)), time.Minute, false},
		"a plan changes after":     {waits(rollout.Budget, 4*time.Minute, next(time.Hour)), 7 * time.Minute, true},
		"the revision is new":      {later(waits(rollout.Budget, 4*time.Minute)), 11 * time.Minute, true},
		"paused":                   {waits(rollout.Paused, 0), 2 * time.Minute, true},
		"already stalled":          {waits(rollout.Budget, time.Hour), 0, false},
		"NotUpdate, until a plan":  {waits(rollout.NotUpdate, 0, next(time.Minute)), time.Minute, false},
		"the partition is reached": {seen(of(5, 2), rollout.Plan{Rule: rollout.Partition, Numbers: rollout.Numbers{Outdated: 3, Kept: 3}}), 0, false},
	} {
		o := tc.seen
		o.Generation, o.Now = 1, now
		if o.Since.Equal(start) {
			o.Since = now
		}
		in, ok := o.LooksAgainIn()
		if ok != (tc.want > 0) || ok && in != tc.want {
			t.Errorf("%s: in %v, %v, want %v", name, in, ok, tc.want)
		}
		for at, want := range map[time.Duration]bool{in - 1: false, in: true} {
			o.Now = now.Add(at)
			if got := meta.IsStatusConditionTrue(status.Next(appsv1beta1.SidecarSetStatus{}, o).Conditions, appsv1beta1.ConditionDegraded); tc.stalled && got != want {
				t.Errorf("%s: degraded after %v is %v", name, at, got)
			}
		}
	}
}

// A SidecarSet that is being deleted says what it waits for, and keeps what was said of its Pods.
func TestDeleting(t *testing.T) {
	o := waits(rollout.Budget, time.Hour)
	o.Generation, o.Now = 1, start
	before := status.Next(appsv1beta1.SidecarSetStatus{}, o)
	got := status.Next(before, status.Observation{Generation: 1, Now: start, Counters: o.Counters, Finalizers: []string{"example.com/a", strings.Repeat("ü", 500)}})
	c := meta.FindStatusCondition(got.Conditions, appsv1beta1.ConditionProgressing)
	if c.Reason != appsv1beta1.ReasonDeleting || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "finalizers: example.com/a, ü") || len(c.Message) > 720 {
		t.Errorf("Progressing is %+v", c)
	}
	if diff := cmp.Diff(meta.FindStatusCondition(before.Conditions, "Degraded"), meta.FindStatusCondition(got.Conditions, "Degraded")); diff != "" {
		t.Errorf("Degraded (-before +after):\n%s", diff)
	}
}

// Reasons of the kubelet and names are text of others: they do not displace what is said of them.
func TestMessagesHaveRoomForWhatTheySay(t *testing.T) {
	long := strings.Repeat("ü", 300)
	for name, o := range map[string]status.Observation{
		"Budget": waits(rollout.Budget, time.Hour, func(p *rollout.Plan) { p.Who.Summary, p.WhoIs = record(long+"\xff-1"), "CrashLoopBackOff" }),
		"SidecarsNotRunning": seen(of(5, 5), rollout.Plan{NotRunningCurrent: 5, NotRunning: func() (g rollout.Groups) {
			for i := range 5 {
				g.Add(inplace.Reason(fmt.Sprint(i, long)), long, record(long))
			}
			return g
		}()}),
	} {
		o.Now = start
		s := status.Next(appsv1beta1.SidecarSetStatus{}, o)
		for _, c := range s.Conditions {
			if len(c.Message) > 720 || strings.ContainsRune(c.Message, '�') {
				t.Errorf("%s: the message of %d bytes is %q", name, len(c.Message), c.Message)
			}
		}
		if c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionDegraded); !strings.HasSuffix(c.Message, "-1 (CrashLoopBackOff).") && !strings.HasPrefix(c.Message, "The sidecars of 5 Pods do not run: ") {
			t.Errorf("%s: the message is %q", name, c.Message)
		}
	}
}

// What is kept of a rollout survives its way through the status, for its own revision only.
func TestWhatIsKeptOfARollout(t *testing.T) {
	for _, kept := range []rollout.Status{
		rollout.Begun, {NotReadyBefore: 0}, {NotReadyBefore: 3}, {NotReadyBefore: -1, Disappeared: 2, DisappearedUntil: start.Unix()}, {NotReadyBefore: 1, Disappeared: 1, DisappearedUntil: start.Unix() + 600},
	} {
		o := status.Observation{Now: start, Revision: &status.Revision{Name: "log-1"}, Plan: &rollout.Plan{Status: kept}}
		s := status.Next(appsv1beta1.SidecarSetStatus{}, o)
		if got := status.RolloutOf(s, "log-1"); got != kept {
			t.Errorf("%+v becomes %+v", kept, got)
		}
		if got := status.RolloutOf(s, "log-2"); got != rollout.Begun {
			t.Errorf("another revision inherits %+v", got)
		}
		o.Plan = nil // a new leader does not know yet
		if got := status.RolloutOf(status.Next(s, o), "log-1"); got != kept {
			t.Errorf("%+v becomes %+v, although nothing is known", kept, got)
		}
		o.Revision = &status.Revision{Name: "log-2"}
		if got := status.RolloutOf(status.Next(s, o), "log-2"); got != rollout.Begun {
			t.Errorf("an edit keeps %+v", got)
		}
	}
	forged := appsv1beta1.SidecarSetStatus{LatestRevision: "log-1", NotReadyBefore: new(int32(-7)), DisappearedPods: -1, DisappearedUntil: new(metav1.NewTime(start))}
	if got := status.RolloutOf(forged, "log-1"); got != (rollout.Status{}) {
		t.Errorf("a forged status is read as %+v", got)
	}
}
