package rollout

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Pod is what the queue knows of a matched Pod. It is comparable, so that a Pod
// that did not change costs a comparison.
type Pod struct {
	ID     types.UID
	Labels podstate.LabelSet
	// Generation is the metadata.generation that these values were read from.
	Generation int64
	// Way is how the Pod can follow; the queue writes Images and Resize only.
	Way inplace.Way
	// Reason says why a Pod with another Way does not follow.
	Reason inplace.Reason
	// Ready Pods cost budget.
	Ready bool
	// InFlight Pods were disturbed by the operator while they were available, and
	// are not back.
	InFlight bool
	// InTransition Pods wait for the kubelet to act on an earlier change that the
	// operator has no record of. They are skipped.
	InTransition bool
	Rank         Rank
}

// Rank holds what the order looks at before priority and scatter (C §10.2).
type Rank struct {
	Assigned   bool
	Phase      uint8 // Pending 0, Unknown 1, Running 2
	ReadySince int64 // seconds; 0 if unknown
	Restarts   int32 // of the container that restarted most
	Created    int64 // seconds; 0 if unknown
}

// Take is one Pod that may be written now.
type Take struct {
	ID  types.UID
	Way inplace.Way
	// Charged: the Pod is available and its update takes a place of the budget. A
	// Pod that was taken without a charge must not be written once it is available.
	Charged bool
}
