package registration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
)

// A SidecarSet whose Pods are refused says so, as long as they are.
func TestReadyFollowsPodSecurity(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		object := fixtures.SidecarSet("log").Select("app", "web").Container("agent", "log:v1").Map()
		object["metadata"].(map[string]any)["generation"] = int64(1)
		compiled := fixtures.Compiled(t, object)
		restricted := labels.Set{"pod-security.kubernetes.io/enforce": "restricted"}
		changes := 0
		l.board.Notify(func(string) { changes++ })
		says := func(what, want string, namespaces map[string]labels.Set) {
			t.Helper()
			c.sets.SwapSnapshot(match.Build([]*inject.Compiled{compiled}, namespaces))
			before, announced := l.judged(t), changes
			<-time.After(enforcingAgain)
			got := l.judged(t)
			if _, refused, _ := strings.Cut(got.Message, "Pod Security (restricted) refuses Pods with these sidecars in namespace"); !got.Ready || !strings.HasPrefix(refused, want) || (want == "") != (refused == "") {
				t.Errorf("%s: it says %+v, want %q", what, got, want)
			}
			if before == got && changes != announced {
				t.Errorf("%s: the same message is announced again", what)
			}
		}
		says("nothing enforces", "", map[string]labels.Set{"a": {}})
		says("a Namespace is labelled", " a: ", map[string]labels.Set{"a": restricted})
		says("ours is, too", " a: ", map[string]labels.Set{"a": restricted, "b": {"x": "y"}})
		many := map[string]labels.Set{}
		for i := range 5 {
			many[fmt.Sprint("n", i)] = restricted
		}
		says("more are", "s n0, n1, n2 and others: ", many)
		announced := changes
		many["n9"] = restricted
		says("one more is", "s n0, n1, n2 and others: ", many)
		if changes != announced {
			t.Error("each Namespace more is announced")
		}
		says("none is any more", "", map[string]labels.Set{"a": {}})
	})
}
