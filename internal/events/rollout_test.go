package events_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/events"
)

func TestEventsTellWhatBecomesOfARollout(t *testing.T) {
	of := func(revision, progressing, degraded string, blocked ...appsv1beta1.SidecarSetPodGroup) appsv1beta1.SidecarSetStatus {
		return appsv1beta1.SidecarSetStatus{LatestRevision: revision, MatchedPods: 5, BlockedPods: blocked, Conditions: []metav1.Condition{
			{Type: "Progressing", Reason: progressing, Message: "P"}, {Type: "Degraded", Reason: degraded, Message: "D"},
		}}
	}
	group := func(reason string, pods int32) appsv1beta1.SidecarSetPodGroup {
		return appsv1beta1.SidecarSetPodGroup{Reason: reason, Pods: pods, First: []string{"shop/a"}, Message: "denied"}
	}
	const fine = "AsExpected"
	tests := map[string]struct {
		before, after appsv1beta1.SidecarSetStatus
		want          string // type, reason and note of each
	}{
		"nothing was known":                   {appsv1beta1.SidecarSetStatus{}, of("r1", "Complete", fine), ""},
		"nothing changes":                     {of("r1", "RollingOut", fine), of("r1", "RollingOut", fine), ""},
		"it starts":                           {of("r1", "Complete", fine), of("r2", "RollingOut", fine), "Normal RollingOut P"},
		"it starts anew":                      {of("r1", "RollingOut", fine), of("r2", "RollingOut", fine), "Normal RollingOut P"},
		"it is done":                          {of("r2", "RollingOut", fine), of("r2", "Complete", fine), "Normal Complete P"},
		"it is done after a stall":            {of("r2", "Stalled", fine), of("r2", "Complete", fine), "Normal Complete P"},
		"it is done after a pause":            {of("r2", "Paused", fine), of("r2", "Complete", fine), "Normal Complete P"},
		"its partition had its Pods":          {of("r2", "PartitionReached", fine), of("r2", "Complete", fine), "Normal Complete P"},
		"its blocked Pods are replaced":       {of("r2", "PodsBlocked", fine), of("r2", "Complete", fine), "Normal Complete P"},
		"it is done before it was seen":       {of("r1", "Complete", fine), of("r2", "Complete", fine), "Normal Complete P"},
		"it reaches the partition":            {of("r1", "RollingOut", fine), of("r1", "PartitionReached", fine), "Normal PartitionReached P"},
		"it stalls":                           {of("r1", "RollingOut", fine), of("r1", "Stalled", "Stalled"), "Warning Stalled D"},
		"its last Pod stalls":                 {of("r1", "RollingOut", fine), of("r1", "Stalled", "PodsNotReady"), "Warning PodsNotReady D"},
		"Pods break while it is paused":       {of("r1", "Paused", fine), of("r1", "Paused", "PodsNotReady"), "Warning PodsNotReady D"},
		"sidecars do not run":                 {of("r1", "Complete", fine), of("r1", "Complete", "SidecarsNotRunning"), "Warning SidecarsNotRunning D"},
		"sidecars still do not run":           {of("r1", "Complete", "SidecarsNotRunning"), of("r1", "Complete", "SidecarsNotRunning"), ""},
		"sidecars run again":                  {of("r1", "Complete", "SidecarsNotRunning"), of("r1", "Complete", fine), ""},
		"it ends with blocked Pods":           {of("r1", "RollingOut", fine), of("r1", "PodsBlocked", fine), "Normal PodsBlocked P"},
		"it moves again":                      {of("r1", "Stalled", "Stalled"), of("r1", "RollingOut", fine), "Normal RollingOut P"},
		"it is being deleted":                 {of("r1", "RollingOut", fine), of("r1", "Deleting", fine), ""},
		"it is paused":                        {of("r1", "RollingOut", fine), of("r1", "Paused", fine), ""},
		"Pods are left alone from now on":     {of("r1", "RollingOut", fine), of("r2", "NotUpdate", fine), ""},
		"Pods cannot follow":                  {of("r1", "PodsBlocked", "PodsBlocked"), of("r1", "PodsBlocked", "PodsBlocked", group("NodeTooOld", 3)), "Normal NotUpgradablePods SidecarSet in-place update detected 3 not upgradable pod(s) in this round, will skip them."},
		"as many Pods cannot follow":          {of("r1", "PodsBlocked", fine, group("NodeTooOld", 3)), of("r1", "PodsBlocked", fine, group("RevisionUnknown", 3)), ""},
		"fewer Pods cannot follow":            {of("r1", "PodsBlocked", fine, group("NodeTooOld", 3)), of("r1", "PodsBlocked", fine, group("NodeTooOld", 2)), ""},
		"a Pod is refused":                    {of("r1", "PodsBlocked", fine, group("NodeTooOld", 1)), of("r1", "PodsBlocked", fine, group("WriteRejected", 1)), "Warning PodUpdateRejected The API server refused to update 1 Pods, the first is shop/a: denied"},
		"the leader knows nothing any more":   {of("r1", "RollingOut", fine), appsv1beta1.SidecarSetStatus{LatestRevision: "r1"}, ""},
		"there was no Pod to follow anything": {of("r1", "Complete", fine), appsv1beta1.SidecarSetStatus{LatestRevision: "r2", Conditions: of("", "Complete", fine).Conditions}, ""},
	}
	about := events.SidecarSet{Name: "log", UID: "u"}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range events.OfRollout(about, tc.before, tc.after) {
				got = append(got, e.Type+" "+e.Reason+" "+e.Note)
				if e.About != about || e.Action == "" {
					t.Errorf("event %+v is not about the SidecarSet, or has no action", e)
				}
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}
