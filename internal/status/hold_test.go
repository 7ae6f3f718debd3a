package status_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
)

// Ready is about the revision that new Pods get.
func TestReadyWhileARevisionIsHeldBack(t *testing.T) {
	ready, no := &status.Readiness{Ready: true, Reason: appsv1beta1.ReasonInjecting}, &status.Readiness{Reason: appsv1beta1.ReasonNoReplica}
	unsure := &status.Readiness{Reason: appsv1beta1.ReasonPending, Unsure: true}
	const waits = "False RevisionNotStable Reconciling"
	failing := rollout.Plan{NotRunningCurrent: 1, Numbers: rollout.Numbers{Total: 9, Current: 1}}
	for name, tc := range map[string]struct {
		before  string // the reason of Ready of this generation
		next    *status.Readiness
		held    bool // by the annotation
		hold    bool
		unknown bool // whether the revision is recorded
		plan    rollout.Plan
		want    string
		stable  string
	}{
		"an edit":                               {"", ready, true, true, false, rollout.Plan{}, waits, "log-1"},
		"it is stable":                          {"RevisionNotStable", ready, true, false, false, rollout.Plan{}, "True Injecting", "log-2"},
		"without the annotation":                {"", ready, false, true, false, rollout.Plan{}, "True Injecting", "log-1"},
		"the annotation is removed":             {"RevisionNotStable", ready, false, true, false, rollout.Plan{}, "True Injecting", "log-1"},
		"no replica answers":                    {"RevisionNotStable", no, true, true, false, rollout.Plan{}, "False NoReplica Reconciling", "log-1"},
		"doubt changes nothing":                 {"RevisionNotStable", unsure, true, true, false, rollout.Plan{}, waits, "log-1"},
		"nothing is known of the revision":      {"RevisionNotStable", ready, true, true, true, rollout.Plan{}, waits, "log-1"},
		"the new sidecars do not run":           {"RevisionNotStable", ready, true, true, false, failing, "False RevisionNotStable Stalled", "log-1"},
		"they do not run where nothing is held": {"Injecting", ready, false, false, false, failing, "True Injecting", "log-2"},
	} {
		before := appsv1beta1.SidecarSetStatus{ObservedGeneration: 2, LatestRevision: "log-2", StableRevision: "log-1"}
		if tc.before != "" {
			meta.SetStatusCondition(&before.Conditions, metav1.Condition{Type: "Ready", Status: "False", Reason: tc.before, ObservedGeneration: 2})
		}
		tc.plan.Evidence = rollout.Evidence{Available: 1, Pending: 7}
		o := status.Observation{Name: "log", Generation: 2, Now: start, Counters: of(9, 9), Plan: &tc.plan, Readiness: tc.next, Hold: tc.hold,
			Revision: &status.Revision{Name: "log-2", NewPods: "log-1", Held: tc.held}}
		if tc.unknown {
			o.Revision = nil
		}
		next := status.Next(before, o)
		c := meta.FindStatusCondition(next.Conditions, "Ready")
		got := fmt.Sprint(c.Status, " ", c.Reason)
		for _, kind := range []string{"Reconciling", "Stalled"} {
			if meta.IsStatusConditionTrue(next.Conditions, kind) {
				got += " " + kind
			}
		}
		if got != tc.want || next.StableRevision != tc.stable {
			t.Errorf("%s: %s, stable is %s, want %s, %s", name, got, next.StableRevision, tc.want, tc.stable)
		}
		const says = "New Pods get log-1 until running Pods are available with log-2: 1 of 3 available. To give it to new Pods now: kubectl annotate sidecarset log sidecarset.io/new-pods-"
		if strings.Contains(got, "RevisionNotStable") && !tc.unknown && c.Message != says {
			t.Errorf("%s: it says %q", name, c.Message)
		}
	}
}
