package registration

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/status"
)

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
