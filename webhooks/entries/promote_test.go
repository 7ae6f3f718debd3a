package entries

import (
	"math"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/fixtures"
)

// An API server may use the object without the provisional entry while it still uses an
// older copy of the object with the entry that replaces it.
func TestAProvisionalEntryIsKeptUntilItsSuccessorIsInForce(t *testing.T) {
	for name, tc := range map[string]struct {
		uses  func(pass int) int64 // the serial that the API server uses
		stays int                  // for how many passes the provisional entry stays
	}{
		"used at once":      {func(int) int64 { return math.MaxInt64 }, 0},
		"used after a time": {func(pass int) int64 { return map[bool]int64{true: math.MaxInt64}[pass >= 2] }, 2},
		"never used":        {func(int) int64 { return 1 }, triesToProve},
	} {
		t.Run(name, func(t *testing.T) {
			leading(t, func(t *testing.T, l *leader, c *cluster) {
				sets := l.sets.(*fixtures.Snapshots)
				sets.Swap()
				if _, err := l.pass(t.Context()); err != nil { // the pass allows provisional entries
					t.Fatal(err)
				}
				entry, err := entryplan.Of(fixtures.LogSet(1))
				if err != nil {
					t.Fatal(err)
				}
				settings, err := l.webhooks.settings(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				changes, _ := entryplan.Widen(l.webhooks.store.current(), []entryplan.Entry{entry}, settings)
				for _, change := range changes {
					if _, err := l.webhooks.write(t.Context(), change); err != nil {
						t.Fatal(err)
					}
				}

				var serial int64
				server := fake.NewClientset()
				server.PrependReactor("create", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
					probe := action.(clienttesting.CreateAction).GetObject().(*corev1.ConfigMap).DeepCopy()
					probe.Annotations = map[string]string{entryplan.AnnotationBarrier: strconv.FormatInt(serial, 10)}
					return true, probe, nil
				})
				l.webhooks.barrier.servers = []*apiServer{{proven: map[string]int64{}, configMaps: server.CoreV1().ConfigMaps("ours")}}
				sets.Swap(fixtures.LogSet(1))
				written := int64(0)
				for pass := range tc.stays + 1 {
					serial = tc.uses(pass)
					_, _ = l.pass(t.Context()) // the conditions have the error
					layout := l.webhooks.store.current()
					i, _, ok := layout.Locate(entry.Name)
					if !ok {
						t.Fatal("the entry of the SidecarSet is not written")
					}
					if now := entryplan.Serial(layout[i]); now <= written {
						t.Errorf("pass %d: an API server that has missed serial %d is not told again: %d", pass, written, now)
					} else {
						written = now
					}
					if kept := len(layout.Provisionals()) == 1; kept != (pass < tc.stays) {
						t.Errorf("pass %d: the provisional entry is kept: %t", pass, kept)
					}
				}
			})
		})
	}
}
