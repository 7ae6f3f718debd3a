package inplace_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
)

// Revisions are compared in the form in which they are recorded: another notation of a quantity
// is not a difference. A pair that was compared is not compared again.
func TestRevisionsAreComparedInOneForm(t *testing.T) {
	spec := func(text string) map[string]any {
		var out map[string]any
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	recorded := func(hash, text string) *appsv1.ControllerRevision {
		data, err := revision.Data(spec(text))
		if err != nil {
			t.Fatal(err)
		}
		r := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: data}}
		r.Annotations = map[string]string{appsv1beta1.AnnotationHashWithoutImage: hash}
		return r
	}
	current := spec(`{"containers":[{"name":"log","image":"log:2","env":[{"name":"A","value":"1"}],"resources":{"requests":{"cpu":"0.2","memory":"1024Mi"}}}]}`)
	history := revision.History{
		recorded("size", `{"containers":[{"name":"log","image":"log:1","env":[{"name":"A","value":"1"}],"resources":{"requests":{"cpu":"100m","memory":"1Gi"}}}]}`),
		recorded("env", `{"containers":[{"name":"log","image":"log:1","resources":{"requests":{"cpu":"200m","memory":"1Gi"}}}]}`),
		recorded("current", `{"containers":[{"name":"log","image":"log:1"}]}`),
		recorded("known", `{"containers":[{"name":"log","image":"log:1"}]}`),
		{Data: runtime.RawExtension{Raw: []byte("damaged")}},
	}
	history[4].Annotations = map[string]string{appsv1beta1.AnnotationHashWithoutImage: "damaged"}
	known := inplace.Differences{podstate.MakeName("known"): {Restarts: true}}
	got, err := known.With(history, current, "current")
	if err != nil || len(got) != 4 || len(known) != 1 {
		t.Fatalf("revisions %+v, %v; of them known were %+v", got, err, known)
	}
	of := func(hash string) inplace.Difference { return got[podstate.MakeName(hash)] }
	if d := of("size"); d.Other || len(d.Resources) != 1 || d.Resources[0].New.Requests.Cpu().String() != "200m" {
		t.Errorf("another size: %+v", d)
	}
	if !of("env").Other || !of("damaged").Other || !of("known").Restarts {
		t.Errorf("revisions %+v", got)
	}
}

func TestFixedNamesTheFieldsThatOnlyNewPodsGet(t *testing.T) {
	const recorded = `{"containers":[{"name":"log","image":"log:1","env":[{"name":"A"}],"resources":{"limits":{"cpu":"1"}}},{"name":"mesh","image":"mesh:1"}]}`
	for name, tc := range map[string]struct {
		now  string
		want []string
	}{
		"images and resources":  {`{"containers":[{"name":"log","image":"log:2","env":[{"name":"A"}],"resources":{"limits":{"cpu":"2"}}},{"name":"mesh","image":"mesh:2"}]}`, nil},
		"members of containers": {`{"containers":[{"name":"log","image":"log:1","args":["x"],"resources":{"limits":{"cpu":"1"}}},{"name":"mesh","image":"mesh:1"}]}`, []string{"spec.containers[log].args", "spec.containers[log].env"}},
		"a value that is gone":  {`{"containers":[{"name":"log","image":"log:1","env":[{"name":"A"}]},{"name":"mesh","image":"mesh:1"}]}`, []string{"spec.containers[log].resources"}},
		"other containers":      {`{"containers":[{"name":"log","image":"log:1"},{"name":"dns","image":"dns:1"}]}`, []string{"spec.containers[dns], which is new", "spec.containers[mesh], which is gone"}},
		"another order":         {`{"containers":[{"name":"mesh","image":"mesh:1"},{"name":"log","image":"log:1"}]}`, []string{"spec.containers, in the order"}},
		"a native sidecar":      {recorded[:len(recorded)-1] + `,"initContainers":[{"name":"n","restartPolicy":"Always"}]}`, []string{"spec.initContainers[n], which is new"}},
	} {
		t.Run(name, func(t *testing.T) {
			var old, now map[string]any
			if err := errors.Join(json.Unmarshal([]byte(recorded), &old), json.Unmarshal([]byte(tc.now), &now)); err != nil {
				t.Fatal(err)
			}
			data, err := revision.Data(old)
			if err != nil {
				t.Fatal(err)
			}
			got, err := inplace.Fixed(data, now)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}
