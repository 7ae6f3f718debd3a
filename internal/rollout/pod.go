package rollout

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Pod is the part of a matched Pod that the queue needs. It is comparable. The fields
// that the order compares come first, because the queue mostly compares.
type Pod struct {
	Order podstate.Order
	// Ready Pods are available: updating one counts against the budget.
	Ready bool
	// InFlight Pods were available when the operator updated them, and are not
	// available again, whatever content they carry. A Pod on a dead node is not in
	// flight.
	InFlight bool
	// Settling Pods are in flight. The queue only waits until it is certain that they are
	// back.
	Settling bool
	// Over: the Pod was back from its last update for long, so that this update is over,
	// whatever the Pod's status says now.
	Over bool
	// InTransition Pods wait for the kubelet to act on an earlier change that the
	// operator has no record of. They are skipped until it has.
	InTransition bool
	// Way is how the Pod can be updated. Only Pods with Images and Resize are taken,
	// and Evictable ones with Recreate.
	Way inplace.Way
	// Evictable Pods may be evicted, so that their controller creates new ones. A Pod
	// with the way Recreate that is not Evictable is blocked.
	Evictable bool
	// Resize is the state of a resize of the Pod for this SidecarSet.
	Resize inplace.ResizeState
	// Reason is why a Pod with any other Way, except Current, is not updated.
	Reason inplace.Reason

	UID       types.UID
	Namespace podstate.Namespace
	Name      string
	Labels    podstate.LabelSet
}

// Take is one Pod that may be written now, or evicted if its Way is Recreate, with the
// content that was current when Next returned it: a later content may need a first
// batch of its own. The Pod is reserved until the caller returns the Take with Written,
// Hold or Retry, exactly one of them, once. Other queues ignore it. It is comparable.
type Take struct {
	UID       types.UID
	Namespace podstate.Namespace
	Name      string
	Way       inplace.Way
	// Charged: the Pod counts against the budget, because it is available or was when
	// the operator updated it. A Pod that was taken without a charge must not be
	// written if it has become available; return it with Retry.
	Charged bool
	// InFlight is Pod.InFlight at the time of Next.
	InFlight bool
	// Over is that of the Pod.
	Over bool

	queue  *Queue
	ticket uint64
}
