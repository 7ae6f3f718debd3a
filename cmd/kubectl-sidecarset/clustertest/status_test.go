package clustertest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/progress"
)

func TestStatusShowsWhatIsBlocked(t *testing.T) {
	t.Parallel()
	name := app(t, 2, "")
	wants(t, []string{"status", name}, "sidecarset/"+name+": 2 of 2 Pods updated, 2 of these ready\n", "Injecting", "Complete: ", "2 Pods, 2 ready, current")

	// Another variable cannot be changed in place.
	apply(t, name, strings.Replace(sidecarSet, `v1"}`, `v1", env: [{name: A, value: b}]}`, 1))
	refuses(t, []string{"rollout", "status", name, "--timeout=3m"}, "PodsBlocked", "2 ImmutableFieldChanged: "+name+"/web-", "kubectl sidecarset rollout restart "+name+" restarts the workloads of the 2 Pods that need it")
	wants(t, []string{"status", name}, "PodsBlocked: ", "2 ImmutableFieldChanged: "+name+"/web-")

	var summary progress.Summary
	if err := json.Unmarshal([]byte(wants(t, []string{"status", name, "-o", "json"})), &summary); err != nil {
		t.Fatal(err)
	}
	if summary.Name != name || summary.MatchedPods != 2 || summary.BlockedPods != 2 || len(summary.Blocked) != 1 || summary.Degraded == nil {
		t.Errorf("summary: %+v", summary)
	}
	wants(t, []string{"status"}, "NEW PODS", "kubectl sidecarset status "+name)
	refuses(t, []string{"status", "no-such"}, `SidecarSet "no-such"`, "not found")
}
