package progress

import (
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Pace estimates when a rollout has updated its Pods, from what it did since the first call of
// Left. The zero value has seen nothing.
type Pace struct {
	generation int64
	began      time.Time
	first      int32 // Pods that were updated then
}

// Left notes a state at a time, and returns about how long the rest takes at the pace so far; "" if
// no Pod was updated since the first call for this generation, or if no rollout is under way.
func (p *Pace) Left(s *Summary, now time.Time) string {
	if !s.Observed || s.Rollout.Reason != appsv1beta1.ReasonRollingOut {
		*p = Pace{}
		return ""
	}
	if p.began.IsZero() || p.generation != s.Generation || s.UpdatedPods < p.first {
		*p = Pace{s.Generation, now, s.UpdatedPods}
	}
	moved := s.UpdatedPods - p.first
	if moved == 0 || s.toGo <= 0 {
		return ""
	}
	left := now.Sub(p.began) / time.Duration(moved) * time.Duration(s.toGo)
	return duration.HumanDuration((left + 10*time.Second - 1).Truncate(10 * time.Second))
}
