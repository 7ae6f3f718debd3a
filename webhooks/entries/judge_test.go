package entries

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/status"
)

// Name and generation do not identify a SidecarSet: one that is created again has generation 1 again.
func TestReadinessBelongsToOneUIDAndGeneration(t *testing.T) {
	b := &Board{}
	b.replace(map[string]boardEntry{"log": {uid: "old", generation: 1, readiness: status.Readiness{Ready: true}}})
	if b.Of("log", "new", 1) != nil || b.Of("log", "old", 2) != nil || b.Of("log", "old", 1) == nil {
		t.Error("it is of another one")
	}
}

// Reviews know what the watch has delivered. Two SidecarSets in conflict that are stored within its delay
// are both admitted.
func TestTheLaterOfTwoSidecarSetsInConflictIsNotReady(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		older, later, third := fixtures.LogSet(1), fixtures.LogSet(1), reviewed("third")
		older.Name, older.UID = "z-older", "older"
		later.CreationTimestamp = metav1.NewTime(time.Now())
		says := func(set *appsv1beta1.SidecarSet) *status.Readiness {
			l.judged(t)
			return l.board.Of(set.Name, set.UID, set.Generation)
		}
		c.have(later, third)
		if got := says(later); !got.Ready {
			t.Errorf("nothing is in conflict, and it says %+v", got)
		}
		c.have(older, later, third)
		if got := says(later); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonConflict || !strings.Contains(got.Message, "z-older") {
			t.Errorf("the later one says %+v", got)
		}
		if got := says(older); !got.Ready {
			t.Errorf("the older one says %+v", got)
		}
		c.have(later, third)
		if got := says(later); !got.Ready {
			t.Errorf("the older one is gone, and it says %+v", got)
		}
	})
}

// If the SidecarSet were Ready, a user who waits for that would see every Pod refused.
func TestASidecarSetThatNoPodCanHaveIsNotReady(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		object := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").
			Spec("injectionStrategy", map[string]any{"revision": map[string]any{"revisionName": "log-1", "policy": "Always"}}).Map()
		object["metadata"].(map[string]any)["generation"] = int64(1)
		program, err := inject.Compile(object)
		if err != nil {
			t.Fatal(err)
		}
		catalog := match.Build([]*inject.Program{program}, nil)
		c.sets.SwapSnapshot(catalog)
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonInvalid || !strings.Contains(got.Message, "spec.injectionStrategy.revision") {
			t.Errorf("while its revision is not recorded it says %+v", got)
		}
		c.sets.SwapSnapshot(catalog.WithHistory(map[string]*inject.Program{"log": program}))
		if got := l.judged(t); !got.Ready {
			t.Errorf("when it is it says %+v", got)
		}
	})
}

// Ready would promise that the next selected Pod is injected, but no Pod can be selected.
func TestASidecarSetThatCanSelectNoPodIsNotReady(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.options.Settings.ExcludedNamespaces = []string{"ours", "kube-system"}
		set := fixtures.LogSet(1)
		set.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "kube-system"}}
		c.have(set)
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonNothingSelected || !strings.Contains(got.Message, "kube-system") {
			t.Errorf("for an excluded namespace it says %+v", got)
		}
		set = fixtures.LogSet(1)
		set.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpDoesNotExist}}
		c.have(set)
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonNothingSelected || !strings.Contains(got.Message, "label app") {
			t.Errorf("for a selector that contradicts itself it says %+v", got)
		}
	})
}
