package cli

import (
	"bytes"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/revision"
)

// After two bad edits in a row, the way back leads to what worked, not to the first bad edit.
func TestUndoGoesToARevisionThatWorked(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		revisions string
		undo      string
		says      string
	}{
		"the second attempt is bad, too": {"[{name: r1, pods: 3, readyPods: 3}, {name: r2, pods: 1}]", "agent:v1", "revision 1 (r1): 3 ready Pods have it"},
		"all Pods have the current one":  {"[{name: r3, pods: 4, readyPods: 4}]", "agent:v2", "revision 2 (r2): no other revision has a ready Pod"},
		"the stable one has fewer Pods":  {"[{name: r2, pods: 3, readyPods: 3}, {name: r1, pods: 1, readyPods: 1}]\n  stableRevision: r1", "agent:v1", "revision 1 (r1): it is the stable one, and 1 ready Pods have it"},
		"no Pod has the stable one":      {"[{name: r3, pods: 4, readyPods: 4}]\n  stableRevision: r1", "agent:v1", "revision 1 (r1): it is the stable one"},
	} {
		t.Run(name, func(t *testing.T) {
			object := objectOf(t, `
metadata: {name: agent, uid: "1", generation: 3}
spec: {selector: {matchLabels: {app: web}}, containers: [{name: agent, image: "agent:v3"}]}
status:
  observedGeneration: 3
  latestRevision: r3
  conditions: [{type: Degraded, status: "True", reason: PodsNotReady, message: x}]
  revisions: `+tc.revisions)
			builder := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(object)
			for i, image := range []string{"agent:v1", "agent:v2", "agent:v3"} {
				data, err := revision.Data(map[string]any{"containers": []any{map[string]any{"name": "agent", "image": image}}})
				if err != nil {
					t.Fatal(err)
				}
				r := &appsv1.ControllerRevision{Revision: int64(i + 1)}
				r.Name, r.Namespace, r.Labels, r.Data.Raw = "r"+image[len(image)-1:], "sidecarset-system", map[string]string{appsv1beta1.LabelSidecarSetName: "agent"}, data
				builder = builder.WithObjects(r)
			}
			c, out := builder.Build(), &bytes.Buffer{}
			a := &app{Streams: Streams{Out: out, ErrOut: out}, operatorNamespace: "sidecarset-system"}
			summary, err := summaryOf(t.Context(), c, "agent")
			if err != nil {
				t.Fatal(err)
			}
			h, err := a.historyOf(t.Context(), c, object)
			if err == nil {
				err = a.printHistory(h)
			}
			if err == nil {
				err = a.undo(t.Context(), c, "agent", 0, "none")
			}
			if err != nil {
				t.Fatal(err)
			}
			if text := out.String(); !strings.Contains(text, tc.says) || !strings.Contains(text, "undo goes to revision "+tc.says[9:10]+": ") || !strings.Contains(text, "(undo)") {
				t.Errorf("%q is not in\n%s", tc.says, text)
			}
			if worked := strings.Contains(tc.says, "ready Pods have it"); worked != strings.Contains(summary.ToDo, "goes back to revision r1, which ") {
				t.Errorf("to do: %s", summary.ToDo)
			}
			set, err := typedSet(t.Context(), c, "agent")
			if err != nil || set.Spec.Containers[0].Image != tc.undo {
				t.Errorf("undo has written %+v, %v", set.Spec.Containers, err)
			}
		})
	}
}
