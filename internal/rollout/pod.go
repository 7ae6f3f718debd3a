package rollout

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Pod is what the queue knows of a matched Pod. It is comparable. The fields that
// the order compares come first, since comparing is most of what the queue does.
type Pod struct {
	Order podstate.Order
	// Ready Pods are available: to disturb one takes a place of the budget.
	Ready bool
	// InFlight Pods were disturbed by the operator while they were available, and
	// are not back, whatever content they carry. A Pod on a dead node is not in
	// flight.
	InFlight bool
	// InTransition Pods wait for the kubelet to act on an earlier change that the
	// operator has no record of. They are skipped until it has.
	InTransition bool
	// Way is how the Pod can follow; only Pods with Images and Resize are taken, and
	// with Recreate if they are Evictable.
	Way inplace.Way
	// Evictable Pods may be evicted, so that their controller makes new ones. Without
	// it, a Pod with the way Recreate is blocked.
	Evictable bool
	// Resize is how far a resize of the Pod for this SidecarSet is.
	Resize inplace.ResizeState
	// Reason says why a Pod with another Way than these and Current does not follow.
	Reason inplace.Reason

	UID       types.UID
	Namespace podstate.Namespace
	Name      string
	Labels    podstate.LabelSet
}

// Take is one Pod that may be written now, or evicted if its Way is Recreate, with the
// content that was wanted when Next returned it: a later one might need a first batch of
// its own. Its place is reserved until the taker gives it back with Written, Hold or
// Retry, exactly one of them, once. It is comparable.
type Take struct {
	UID       types.UID
	Namespace podstate.Namespace
	Name      string
	Way       inplace.Way
	// Charged: a place of the budget is reserved for the Pod, because it is
	// available or was when the operator disturbed it. A Pod that was taken without a
	// charge must not be written if it is available by then; give it back with Retry.
	Charged bool
	// InFlight is what the Pod was when it was taken.
	InFlight bool

	ticket uint64
}
