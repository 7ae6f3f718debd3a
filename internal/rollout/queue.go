package rollout

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
)

// Queue knows the Pods of one SidecarSet that are outdated, or were disturbed and
// are not back. It belongs to one goroutine: no method may run at the same time as
// another. A method costs what it changes, at most the logarithm of the Pods that
// wait; SetStrategy, and with scatterStrategy Next, pass over all of them.
type Queue struct{}

// NewQueue returns a Queue without Pods and without a Strategy, which gives out
// nothing.
func NewQueue() *Queue { return &Queue{} }

// SetStrategy makes a Strategy the one in force. If it returns true, the caller
// then calls Set for all matched Pods once more: the Strategy looks at Pods that
// the queue does not keep without it.
func (q *Queue) SetStrategy(s *Strategy) (again bool) { return false }

// SetContent says which content the Pods are to have; any text that differs between
// contents will do, such as the hash. If it changed, Pods that were held are not
// held any more. The caller then calls Set for the Pods whose Way has changed,
// before Next.
func (q *Queue) SetContent(content string) {}

// SetCounts says how many Pods the SidecarSet matches, and how many of them carry
// the wanted content, are ready and are not in flight. The first is what
// percentages are of; the second is what first-batch waits for.
func (q *Queue) SetCounts(matched, back int) {}

// Set says what the watch says about a matched Pod. A Pod that is current, not in
// flight and not reserved is not kept.
func (q *Queue) Set(p Pod) {}

// Remove says that a Pod is not matched any more: it is gone, finished, or has
// other labels. A Pod that is not known is no error.
func (q *Queue) Remove(uid types.UID) {}

// Next reserves up to max Pods that may be written now, and returns them in the
// order in which they are to be written.
//
// The Pod watch has delivered everything up to the resourceVersion watched, and the
// caller has called Set and Remove for it. The API server delivers the changes of
// all Pods in the order of their resourceVersions, so that one number tells which
// writes are part of what Set said.
func (q *Queue) Next(max int, watched uint64) []Take { return nil }

// Written says that a Pod was written. The version is the resourceVersion that the
// API server returned; the Pod stays reserved until the watch has come that far. If disturbed is false, the Pod was not
// available or its containers were not touched, and its place of the budget is free
// again.
func (q *Queue) Written(t Take, version uint64, disturbed bool) {}

// Hold gives back a Pod that was not written and must not be taken again as it is:
// it is held until its labels or its Way changes, the wanted content changes, or
// Release. It blocks no other Pod. If the wanted content has changed since the Pod
// was taken, Hold is Retry. The message of one held Pod of each reason is shown.
func (q *Queue) Hold(t Take, reason inplace.Reason, message string) {}

// Retry gives back a Pod that was not written and may be taken again at once. To
// wait between attempts, use Hold and Release.
func (q *Queue) Retry(t Take) {}

// Release lets a Pod that is held wait for its turn again.
func (q *Queue) Release(uid types.UID) {}
