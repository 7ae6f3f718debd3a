package forecast

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/rollout"
)

// Rollout is how a rollout goes if every Pod comes back in time. It follows the rules of budget and
// proof (docs/rollouts.md); those of shares are left out.
type Rollout struct {
	// Batches are the Pods that are written at the same time, in order.
	Batches []Batch `json:"batches,omitempty"`
	// Kept is how many of the Pods with a fate in place the partition keeps as they are.
	Kept int `json:"kept,omitempty"`
	// Seconds is how long it takes until the last Pod is back.
	Seconds int64 `json:"seconds"`
	// PodBackSeconds and MinReadySeconds are what was assumed.
	PodBackSeconds  int64 `json:"podBackSeconds"`
	MinReadySeconds int64 `json:"minReadySeconds"`
}

// Batch is a number of Pods that are written at the same time.
type Batch struct {
	// After is when, in seconds from the beginning.
	After int64 `json:"after"`
	Pods  int   `json:"pods"`
}

// rollOut finds which Pods the update strategy keeps, and how long the others take.
func (f *forecast) rollOut() *Rollout {
	strategy, u := rollout.NewStrategy(f.Program.Set), &f.Program.Set.Spec.UpdateStrategy
	out := &Rollout{PodBackSeconds: int64(f.Back / time.Second), MinReadySeconds: int64(strategy.MinReady() / time.Second)}
	var available, down []*pod
	total := 0
	for _, p := range f.pods {
		if p.carries {
			total++
		}
		switch {
		case !slices.Contains([]Fate{InPlace, Resize, HotUpgrade}, p.fate):
		case !strategy.Selects(labels.Set(p.Labels)):
			p.keep("Unselected", "updateStrategy.selector does not select them")
		case p.record.Ready:
			available = append(available, p)
		default:
			down = append(down, p)
		}
	}
	budget := budgetOf(u, total)
	kept := min(strategy.Kept(total), len(available)+len(down))
	reason, why := "", ""
	switch {
	case u.Type == appsv1beta1.NotUpdateSidecarSetStrategyType:
		reason, why = "NotUpdate", "no Pod is written: updateStrategy.type is NotUpdate"
	case u.Paused:
		reason, why = "Paused", "no Pod is written: updateStrategy.paused is true"
	case kept == len(available)+len(down):
		reason, why = "Partition", fmt.Sprintf("updateStrategy.partition %s keeps them", u.Partition)
	}
	if reason != "" {
		for _, p := range slices.Concat(available, down) {
			p.keep(reason, why)
		}
		return out
	}
	if budget == 0 {
		for _, p := range available {
			p.keep("Budget", fmt.Sprintf("updateStrategy.maxUnavailable %s allows no Pod to be down", u.MaxUnavailable))
		}
		available = nil
	}
	// Down Pods are written besides, so the partition most likely keeps available ones.
	out.Kept = min(kept, len(available)+len(down))
	inTurn := max(0, len(available)-kept)
	besides := len(down) - max(0, kept-len(available))
	back := out.PodBackSeconds
	out.Batches = slices.Concat(paced(inTurn, budget, back, max(back+out.MinReadySeconds, 2*back)), paced(besides, max(1, total/10), back, back))
	slices.SortStableFunc(out.Batches, func(a, b Batch) int { return cmp.Compare(a.After, b.After) })
	if n := len(out.Batches); n > 0 {
		out.Seconds = out.Batches[n-1].After + back
	}
	return out
}

func (p *pod) keep(reason, why string) { p.fate, p.reason, p.message = Kept, reason, why }

// budgetOf is maxUnavailable of a number of Pods. A percentage above 0 is at least one Pod.
func budgetOf(u *appsv1beta1.SidecarSetUpdateStrategy, total int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(cmp.Or(u.MaxUnavailable, new(intstr.FromInt32(1))), total, true)
	if err != nil {
		return 0
	}
	return n
}

// paced writes n Pods. At most budget are down at a time; each is down for back seconds and proven
// after proof seconds. At most as many are written and not proven as are proven, but always one.
func paced(n, budget int, back, proof int64) (batches []Batch) {
	written, isBack, isProven := 0, 0, 0
	var down, unproven int // the first batches that are
	for at := int64(0); n > 0; {
		for ; down < len(batches) && batches[down].After+back <= at; down++ {
			isBack += batches[down].Pods
		}
		for ; unproven < len(batches) && batches[unproven].After+proof <= at; unproven++ {
			isProven += batches[unproven].Pods
		}
		if free := min(n, budget-(written-isBack), max(1, isProven)-(written-isProven)); free > 0 {
			batches = append(batches, Batch{at, free})
			n, written = n-free, written+free
			continue
		}
		next := batches[unproven].After + proof // some Pod is not proven, or there were room
		if down < len(batches) {
			next = min(next, batches[down].After+back)
		}
		at = next
	}
	return batches
}
