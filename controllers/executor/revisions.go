package executor

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
)

// maxRevisions is the largest number of revisions that are remembered: a rollout updates
// Pods of a few revisions.
const maxRevisions = 100

// revisions knows the revisions that Pods record.
type revisions struct {
	// read returns the ControllerRevision of that name, or that it is not found.
	read  func(ctx context.Context, name string) (*appsv1.ControllerRevision, error)
	known *lru.Cache // *inject.Compiled by the UID of the ControllerRevision
}

func newRevisions(read func(context.Context, string) (*appsv1.ControllerRevision, error)) *revisions {
	return &revisions{read, lru.New(maxRevisions)}
}

// previous returns the revision that the Pod records, as inplace.Previous does.
func (r *revisions) previous(ctx context.Context, current *inject.Compiled, pod *corev1.Pod) (*inject.Compiled, error) {
	return inplace.Previous(current.Name(), pod, func(name string) (*inject.Compiled, error) { return r.compiled(ctx, current, name) })
}

// compiled returns the revision that a ControllerRevision records; nil if it is deleted, unreadable or of
// another SidecarSet.
func (r *revisions) compiled(ctx context.Context, current *inject.Compiled, name string) (*inject.Compiled, error) {
	recorded, err := r.read(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading ControllerRevision %s: %w", name, err)
	case !metav1.IsControlledBy(recorded, current.Set):
		return nil, nil
	}
	if known, ok := r.known.Get(recorded.UID); ok {
		return known.(*inject.Compiled), nil
	}
	compiled, err := inject.CompileRevision(current, recorded)
	if err != nil {
		compiled = nil // remembered: the data of a ControllerRevision never changes
	}
	r.known.Add(recorded.UID, compiled)
	return compiled, nil
}
