package rollout

import (
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// explain says why Pods wait, and for whom.
func (d *decision) explain(wait, waitDown Rule, holder *Pod) {
	switch writes := len(d.Write) > 0; {
	case wait == Budget:
		d.Rule, d.Who = wait, d.charger()
	case wait == Proof:
		d.Rule, d.Who = wait, d.firstOf(unproven, lateNow, settling)
	case wait == Share:
		d.Rule, d.Who = wait, holder
	case wait == Storing:
		d.Rule = wait
	case waitDown == DownPods:
		d.Rule, d.Who = waitDown, d.firstOf(downNow)
	case !writes && d.who[justReady].Pod != nil:
		d.Rule, d.Who = JustReady, d.firstOf(justReady)
	case wait == Partition || waitDown == Partition:
		d.Rule = Partition
	case !writes && d.Outdated > 0 && d.who[charging].Pod != nil: // they are under way for another content
		d.Rule, d.Who = Budget, d.firstOf(charging)
	default:
		d.Who = d.charger()
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
	case p.Trouble.IsFailure():
		d.WhoIs = p.Trouble.String()
	case w.Why == podstate.WaitsForNode:
		d.WhoIs = appsv1beta1.ReasonNotAcknowledged
	case w.Why == podstate.WaitsForKill:
		d.WhoIs = appsv1beta1.ReasonTerminating
	case w.Why == podstate.WaitsForStartupProbe:
		d.WhoIs = appsv1beta1.ReasonStartupProbe
	case !w.IsCarriedOut(d.now) && w.At != 0:
		d.WhoIs = appsv1beta1.ReasonStarting
	case p.Record.Ready:
		d.WhoIs = appsv1beta1.ReasonSettling
	default:
		d.WhoIs = appsv1beta1.ReasonNotReady
	}
}

// charger returns a Pod that uses the budget. Late ones do if more are late than were down before.
func (d *decision) charger() *Pod {
	if d.Late > max(0, d.Status.NotReadyBefore) {
		return d.firstOf(charging, lateNow)
	}
	return d.firstOf(charging)
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
