package executor

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/sidecarset/operator/internal/rollout"
)

// hasty is a Source that runs what rests no longer before what it was asked to do.
type hasty struct {
	*rig
	t *testing.T
}

func (h hasty) Do(ctx context.Context, sidecarSet string, f func(*rollout.Queue)) error {
	for h.queue.Len() > 0 {
		next, _ := h.queue.Get()
		if next.held != "" {
			h.t.Error("a Pod is released before it is held")
		}
		h.queue.Done(next)
	}
	return h.rig.Do(ctx, sidecarSet, f)
}

// A process may be paused at any moment, for as long as a Pod rests.
func TestAPodIsReleasedAfterItIsHeld(t *testing.T) {
	r := newRig(t, outdated(t, "p"))
	r.Source = hasty{r, t}
	batch, err := r.Take(t.Context(), "log", 1)
	if err != nil || len(batch.Updates) != 1 {
		t.Fatalf("%+v is due, %v", batch, err)
	}
	r.finish(t.Context(), batch.Program, batch.Updates[0], outcome{result: refused, reason: "Refused"})
	if n := r.queue.Len(); n != 1 {
		t.Errorf("%d releases come, want one", n)
	}
}

// silent has no Nodes, and records whether a request has a deadline.
type silent struct {
	corev1client.NodeInterface
	bounded bool
}

func (s *silent) Nodes() corev1client.NodeInterface { return s }

func (s *silent) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Node, error) {
	_, s.bounded = ctx.Deadline()
	return nil, errors.New("no answer")
}

func TestAnAPIServerThatSaysNothingAboutANodeIsNotWaitedForForever(t *testing.T) {
	s := &silent{}
	if _, err := newNodes(s).get(t.Context(), "n"); err == nil || !s.bounded {
		t.Errorf("error %v, bounded %v; want an error and a bound", err, s.bounded)
	}
}
