package rollout

import (
	"cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// explain says why Pods wait, and for whom. wait is why available Pods do, and repairs why the others do.
func (d *decision) explain(wait, repairs Rule, holder *Pod) {
	writes := len(d.Write) > 0
	switch {
	case wait == Budget:
		d.Rule, d.Who = wait, cmp.Or(d.budgetUser(), d.tried)
	case wait == SlowStart:
		d.Rule, d.Who = wait, cmp.Or(d.firstOf(notReadyYet, failed, notAvailableYet), d.tried)
	case wait == WorkloadShare:
		d.Rule, d.Who = wait, holder
	case wait == Storing:
		d.Rule = wait
	case repairs == Repairs:
		d.Rule, d.Who = repairs, cmp.Or(d.firstOf(updatedNotReady), d.repair)
	case !writes && d.who[becameReady].Pod != nil:
		d.Rule, d.Who = MinReadySeconds, d.firstOf(becameReady)
	case !writes && d.who[isNew].Pod != nil:
		d.Rule, d.Who = NewPods, d.firstOf(isNew)
	case wait == Partition || repairs == Partition:
		d.Rule = Partition
	case !writes && d.Outdated > 0 && d.who[usesBudget].Pod != nil: // they are under way for another revision
		d.Rule, d.Who = Budget, d.firstOf(usesBudget)
	default:
		d.Who = cmp.Or(d.budgetUser(), d.tried, d.repair)
		if d.Who == nil && writes {
			d.Who = d.Write[0]
		}
	}
	d.setWho(d.Who)
}

// setWho names a Pod, and says what it does.
func (d *decision) setWho(p *Pod) {
	if d.Who = p; p == nil {
		return
	}
	w := p.written()
	switch {
	case p.Dead:
		d.WhoIs = string(inplace.NodeNotReady)
	case p.isUnassigned():
		d.WhoIs = appsv1beta1.ReasonNotScheduled
	case p.Trouble.IsFailure():
		d.WhoIs = p.Trouble.String()
	case p.isUndone():
		d.WhoIs = string(inplace.WriteReverted)
	case p.Backoff != nil && p.Backoff.Reason != "" && p.Sent == nil:
		d.WhoIs = string(p.Backoff.Reason)
	case p == d.tried || p == d.repair:
		d.WhoIs = appsv1beta1.ReasonUpdating
	case w.Why == podstate.WaitsForNode:
		d.WhoIs = appsv1beta1.ReasonNotAcknowledged
	case w.Why == podstate.WaitsForKill:
		d.WhoIs = appsv1beta1.ReasonTerminating
	case w.Why == podstate.WaitsForStartupProbe:
		d.WhoIs = appsv1beta1.ReasonStartupProbe
	case !w.IsCarriedOut(d.now) && w.At != 0:
		d.WhoIs = appsv1beta1.ReasonStarting
	case p.Summary.Ready:
		d.WhoIs = appsv1beta1.ReasonMinReadySeconds
	default:
		d.WhoIs = appsv1beta1.ReasonNotReady
	}
}

// budgetUser returns a Pod that uses the budget. Those that failed after the update do if there are more
// than were not Ready before.
func (d *decision) budgetUser() *Pod {
	if d.FailedAfterUpdate > max(0, d.Plan.Status.NotReadyBefore) {
		return d.firstOf(usesBudget, failed)
	}
	return d.firstOf(usesBudget)
}

// firstOf returns the Pod of the first kind that has one.
func (d *decision) firstOf(kinds ...int) *Pod {
	for _, k := range kinds {
		if p := d.who[k].Pod; p != nil {
			return p
		}
	}
	return nil
}
