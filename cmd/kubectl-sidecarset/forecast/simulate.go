package forecast

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

const (
	// maxIdle is how often in a row the planner may find nothing to do before the simulation ends.
	maxIdle = 100
	// inHand is how many Pods the leader takes at once.
	inHand = 64
)

// Rollout is what the planner does in simulated time.
type Rollout struct {
	// Batches are the Pods that are written or evicted at the same time, in order.
	Batches []Batch `json:"batches,omitempty"`
	// Seconds is how long it takes until the last Pod is back.
	Seconds int64 `json:"seconds"`
	// PodBackSeconds and MinReadySeconds are what was assumed.
	PodBackSeconds  int64 `json:"podBackSeconds"`
	MinReadySeconds int64 `json:"minReadySeconds"`
}

// Batch is Pods that are written or evicted at the same time.
type Batch struct {
	// After is when, in seconds from the beginning.
	After int64 `json:"after"`
	// Names are the Pods, as namespace/name, in the order in which they are taken.
	Names []string `json:"names"`
}

// back is a Pod that is back at a time.
type back struct {
	at  time.Time
	pod *pod
}

// simulate runs the planner with Pods that come back after a nominal time. The leader is taken for
// one that has led for a while: Pods that were back for min-ready-seconds are proven.
func (f *forecast) simulate(ctx context.Context, out *Forecast) error {
	strategy := rollout.NewStrategy(f.Program.Set)
	out.Rollout = &Rollout{PodBackSeconds: int64(f.Back / time.Second), MinReadySeconds: int64(strategy.MinReady() / time.Second)}
	r := rollout.New()
	r.SetStrategy(strategy)
	r.SetContent(f.Program.Hash, nil)
	r.SetRecreation(rollout.Recreation{Since: f.since.Unix(), InForce: true})
	byUID := map[any]*pod{}
	for _, p := range f.pods {
		if p.fate != Deselected && (!p.plan.Uninjected || p.plan.Evict) {
			byUID[p.UID], p.id = p, r.Add(p.plan)
		}
	}
	r.Next(0, 0, f.now.Add(-strategy.MinReady())) // one look, before
	var coming []back
	at := f.now
	for idle := 0; idle < maxIdle && ctx.Err() == nil; idle++ {
		var names []string
		takes, again := r.Next(inHand, 0, at)
		for ; len(takes) > 0; takes, again = r.Next(inHand, 0, at) {
			for _, take := range takes {
				p := byUID[take.UID]
				result := rollout.Written
				if take.Way == inplace.Recreate {
					result = rollout.Evicted
				} else {
					r.Set(p.id, p.written(at, time.Time{}), at)
				}
				if r.Return(take, rollout.Result{Kind: result}, at); result == rollout.Evicted {
					r.Remove(p.id, true, at)
				}
				names, p.moved, coming = append(names, p.name()), true, append(coming, back{at.Add(f.Back), p})
			}
		}
		if len(names) > 0 {
			after := int64(at.Sub(f.now) / time.Second)
			out.Rollout.Batches, out.Rollout.Seconds, idle = append(out.Rollout.Batches, Batch{after, names}), after+out.Rollout.PodBackSeconds, 0
		}
		if len(coming) > 0 && (again.IsZero() || !coming[0].at.After(again)) {
			again = coming[0].at
		}
		if again.IsZero() {
			break
		}
		at = again
		for len(coming) > 0 && !coming[0].at.After(at) {
			p := coming[0].pod
			if coming, idle = coming[1:], 0; p.plan.Way == inplace.Recreate {
				p.id = r.Add(p.renewed(at))
			} else {
				r.Set(p.id, p.written(at.Add(-f.Back), at), at)
			}
		}
	}
	f.settle(strategy, r.Report(0, at))
	return ctx.Err()
}

// written is the Pod after a write, for the planner; back is when it is back, zero for not yet.
func (p *pod) written(at, back time.Time) rollout.Pod {
	record := *p.record
	record.Ready = !back.IsZero()
	w := podstate.Written{At: uint32(at.Unix()), Disturbed: p.record.Ready, Why: podstate.WaitsForNode}
	if record.Ready {
		w.Started, w.Turned, w.BackAt = uint32(back.Unix()), uint32(back.Unix()), uint32(back.Unix())
		w.Ready, w.Acknowledged, w.Why = true, true, podstate.NoWait
	}
	return rollout.Pod{Record: &record, Written: w, Carries: true, Way: inplace.Current, Grace: record.Grace}
}

// renewed is the Pod in place of an evicted one, for the planner.
func (p *pod) renewed(at time.Time) rollout.Pod {
	record := *p.record
	record.UID, record.Name, record.Ready = p.UID+"-new", p.Name+"-new", true
	record.Order.Created = at.Unix()
	return rollout.Pod{Record: &record, Carries: true, Way: inplace.Current}
}

// settle finds the fate of the Pods that depends on the planner. report is its state at the end.
func (f *forecast) settle(strategy *rollout.Strategy, report rollout.Report) {
	u := &f.Program.Set.Spec.UpdateStrategy
	limit := map[rollout.Limit]string{
		rollout.NotUpdate: "no Pod is written: updateStrategy.type is NotUpdate",
		rollout.Paused:    "no Pod is written: updateStrategy.paused is true",
		rollout.Partition: fmt.Sprintf("updateStrategy.partition %s keeps the others", u.Partition),
		rollout.Budget:    fmt.Sprintf("as many Pods are down as updateStrategy.maxUnavailable %s allows", u.MaxUnavailable),
		rollout.Invalid:   fmt.Sprintf("no Pod is written: %v", report.Problem),
	}[report.Limit]
	if limit == "" {
		limit = "they wait for something that the forecast does not see"
	}
	for _, p := range f.pods {
		switch inPlace := slices.Contains([]Fate{InPlace, Resize, HotUpgrade}, p.fate); {
		case p.moved && !inPlace:
			p.fate = Evict
		case p.moved || !inPlace:
		case !strategy.Selects(p.Labels):
			p.fate, p.reason, p.message = Kept, "Unselected", "updateStrategy.selector does not select them"
		default:
			p.fate, p.reason, p.message = Kept, string(report.Limit), limit
		}
	}
}
