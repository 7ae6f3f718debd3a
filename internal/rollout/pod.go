package rollout

import (
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Pod is what the rollout of one SidecarSet needs to know of one Pod.
type Pod struct {
	Record *podstate.Record
	// Written is the operator's last write of the Pod for the SidecarSet.
	Written podstate.Written
	// Way is how the Pod can get the current content, and Reason why not in place.
	Way    inplace.Way
	Reason inplace.Reason
	// Evict: the Pod may be evicted if only a new Pod can have the content. Otherwise
	// KeepReason says why not. Both are zero if the SidecarSet does not ask for evictions.
	Evict      bool
	KeepReason inplace.Reason
	// Carries: the Pod has the current content, or is being resized to it.
	Carries bool
	// Uninjected: the Pod does not carry the SidecarSet. It is here only to be evicted.
	Uninjected bool
	// Unfinished: an update that OpenKruise made is not over, or a hot upgrade has to be ended,
	// and the Pod was available before.
	Unfinished bool
	// Waits: the Pod is not written before the kubelet has acted on an earlier change.
	Waits bool
	// Lost: the Pod's node is not ready or gone.
	Lost bool
	// Trouble is why a sidecar does not run.
	Trouble podstate.Trouble
	// Grace is the termination grace period in seconds.
	Grace uint32
}

// facts are the parts of a Pod that say how it is.
type facts struct {
	Written                                      podstate.Written
	Grace                                        uint32
	Way                                          inplace.Way
	Trouble                                      podstate.Trouble
	Carries, Uninjected, Unfinished, Waits, Lost bool
}

// plan is the part of a Pod that says what to do with it if it is outdated.
type plan struct {
	Reason, KeepReason inplace.Reason
	Evict              bool
}

// facts of a Pod that was never written have neither grace period nor trouble: it does not count.
func (p *Pod) facts() facts {
	f := facts{p.Written, p.Grace, p.Way, p.Trouble, p.Carries, p.Uninjected, p.Unfinished, p.Waits, p.Lost}
	if p.Written.At == 0 && p.Way == inplace.Current {
		f.Grace, f.Trouble = 0, 0
	}
	return f
}

func (p *Pod) plan() plan { return plan{p.Reason, p.KeepReason, p.Evict} }

// outdated reports whether the Pod is to get the content.
func (f *facts) outdated() bool { return f.Way != inplace.Current }

// inPlace reports whether the Pod can be written.
func (f *facts) inPlace() bool { return f.Way == inplace.Images || f.Way == inplace.Resize }

// broke reports whether the Pod has turned not Ready after its new containers had started.
func (f *facts) broke() bool {
	return f.Written.At != 0 && !f.Written.Ready && f.Written.Started != 0 && f.Written.Turned > f.Written.Started
}

// failed reports whether the Pod, which counts, cannot be expected to come back by waiting.
func (f *facts) failed() bool { return f.Trouble != 0 || f.broke() }

// waitsFor is what a Pod that counts waits for, in one word.
func (f *facts) waitsFor() string {
	if f.Trouble != 0 {
		return f.Trouble.String()
	}
	switch f.Written.Why {
	case podstate.WaitsForNode:
		return appsv1beta1.ReasonNotAcknowledged
	case podstate.WaitsForKill:
		return appsv1beta1.ReasonTerminating
	case podstate.WaitsForStartupProbe:
		return appsv1beta1.ReasonStartupProbe
	case podstate.WaitsForReady:
		return appsv1beta1.ReasonNotReady
	}
	if f.Written.Started != 0 && !f.Written.Ready {
		return appsv1beta1.ReasonNotReady
	}
	return appsv1beta1.ReasonStarting
}

// ID names a Pod in a Rollout, from Add to Remove.
type ID int32

// Take is one Pod that may be written now, or evicted if its Way is Recreate. The Pod is
// reserved until the caller passes the Take to Return, once. It is comparable.
type Take struct {
	UID       types.UID
	Namespace podstate.Namespace
	Name      string
	Way       inplace.Way
	// Free: the Pod takes no place of the budget, because it was not available when it was
	// taken. It must not be written if it has become available; return it as Stale.
	Free bool
	// Stuck: the Pod is to be evicted although its record says that it can be updated in place,
	// because a write has shown that it cannot.
	Stuck bool

	id     ID
	ticket uint64
}

// ResultKind is what became of a Take.
type ResultKind uint8

// The kinds of results.
const (
	// Stale: the live Pod differs from what the Take was decided from. Nothing was written.
	Stale ResultKind = iota
	// Written: the write was carried out.
	Written
	// Refused: the API server, or a policy that it asks, refused the write.
	Refused
	// Blocked: the Pod cannot be updated now because of its node, another writer or the kubelet.
	Blocked
	// Failed: the write was not carried out for an unknown reason.
	Failed
	// Evicted: the API server has accepted the eviction.
	Evicted
	// Protected: a PodDisruptionBudget does not allow the eviction now.
	Protected
)

// Result is what became of a Take.
type Result struct {
	Kind ResultKind
	// Version is the resourceVersion of a written Pod.
	Version uint64
	// Reason and Message are shown to users while the Pod is held. The caller bounds the message.
	Reason  inplace.Reason
	Message string
	// Recreate: only a new Pod can have the content.
	Recreate bool
}
