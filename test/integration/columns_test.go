package integration

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/test/testkit"
)

// What kubectl shows of a SidecarSet, in either version.
func TestColumns(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	late := pod(namespace, "late", "app=columns")
	create(t, late)
	set := createSidecarSet(t, namespace, "selector: {matchLabels: {app: columns}}\nupdateStrategy: {type: NotUpdate}\n"+inNamespace+"containers: [{name: columns, image: \"example.com/side:v1\"}]\n")
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Uninjected: 1})
	status := testkit.AwaitObserved(t, api, set.GetName()).Status
	for _, resource := range []string{"sidecarsets.v1beta1.apps.kruise.io", "sidecarsets.v1alpha1.apps.kruise.io"} {
		for args, want := range map[string][2]string{
			"":        {"NAME MATCHED UPDATED READY IN-FORCE ROLLOUT AGE", set.GetName() + " 0 0 0 True NotUpdate AGE"},
			"-o=wide": {"NAME MATCHED UPDATED READY IN-FORCE ROLLOUT AGE UNINJECTED REVISION STRATEGY PAUSED DEGRADED", set.GetName() + " 0 0 0 True NotUpdate AGE 1 " + status.LatestRevision + " NotUpdate False"},
		} {
			output, err := cluster.Kubectl(t.Context(), "", strings.Fields("get "+resource+" "+set.GetName()+" "+args)...)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(output, "\n")
			row := strings.Fields(lines[1])
			row[6] = "AGE"
			if diff := cmp.Diff(want, [2]string{strings.Join(strings.Fields(lines[0]), " "), strings.Join(row, " ")}); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", resource, args, diff)
			}
		}
	}
}
