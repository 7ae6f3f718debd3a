package executor

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/tally"
)

// hasty is a Tally that empties the queue before it runs a function. The queue must not have a
// release of a Pod that is not held yet.
type hasty struct {
	*rig
	t *testing.T
}

func (h hasty) use(ctx context.Context, f func(*tally.Tally)) error {
	for h.queue.Len() > 0 {
		next, _ := h.queue.Get()
		if next.held != "" {
			h.t.Error("a Pod is released before it is held")
		}
		h.queue.Done(next)
	}
	return h.rig.use(ctx, f)
}

// The process may be paused at any moment, for as long as the retry delay of a Pod.
func TestAPodIsReleasedAfterItIsHeld(t *testing.T) {
	r := newRig(t, outdated(t, "p"))
	r.Tally = hasty{r, t}.use
	due := r.tally.Due("log", 1)
	if len(due.Updates) != 1 {
		t.Fatalf("%+v is due", due)
	}
	r.finish(t.Context(), due.Program, due.Updates[0], outcome{result: refused, reason: "Refused"})
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

// A lost wake-up delays a rollout by half a minute, and does not stop it.
func TestALostWakeUpDoesNotStopARollout(t *testing.T) {
	r := newRig(t, outdated(t, "p"))
	if err := r.look(t.Context(), item{sidecarSet: "log", overdue: true}); err != nil {
		t.Fatal(err)
	}
	r.running.Wait()
	if got := r.image(t, "p"); got != "side:v2" {
		t.Errorf("the image is %s, want side:v2", got)
	}
}

// An update that is over is not the reason for a later failure. The record of the next update
// does not inherit it either.
func TestAnUpdateThatIsOverIsNotInherited(t *testing.T) {
	for name, later := range map[string]time.Duration{"for a minute": time.Minute, "for long": 20 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, outdated(t, "p"))
			r.pass(t)
			at := time.Now().Add(time.Second)
			status := func(p *corev1.Pod, id string, ready corev1.ConditionStatus, at time.Time) {
				p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = ready, metav1.NewTime(at)
				side := &p.Status.ContainerStatuses[1]
				side.ContainerID, side.ImageID, side.Image = id, "r@sha256:"+p.Spec.Containers[1].Image, p.Spec.Containers[1].Image
				side.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}
			}
			r.see(t, "p", func(p *corev1.Pod) { status(p, "c://second", corev1.ConditionTrue, at) })
			r.tally.Settle(at.Add(later))
			r.see(t, "p", func(p *corev1.Pod) { status(p, "c://third", corev1.ConditionFalse, at.Add(later)) })
			r.follow(program(t, "side:v3"))
			r.pass(t)
			p, err := r.client.CoreV1().Pods("a").Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			marks, err := inplace.MarksOf(p)
			if err != nil {
				t.Fatal(err)
			}
			mark, _ := marks.Sets["log"]
			if image := p.Spec.Containers[1].Image; image != "side:v3" || mark.WasReady != (later < 10*time.Minute) {
				t.Errorf("the image is %s, and the record says wasReady: %v", image, mark.WasReady)
			}
		})
	}
}
