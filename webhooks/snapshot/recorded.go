package snapshot

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/revision"
)

// RecordedRevisions finds the ControllerRevisions of SidecarSets in a namespace. It
// reads them live, because one may have been recorded a moment ago.
type RecordedRevisions struct {
	Reader    client.Reader
	Namespace string
}

// Named returns the revision that a SidecarSet injects in place of its spec; nil
// if it names none, or one that is not recorded.
func (r RecordedRevisions) Named(ctx context.Context, set *appsv1beta1.SidecarSet) (*appsv1.ControllerRevision, error) {
	ref, named := revision.ReferenceOf(set.Spec.InjectionStrategy.Revision)
	if !named {
		return nil, nil
	}
	return r.find(ctx, set, ref)
}

// Referred returns the revision that a compiled SidecarSet refers to; nil if it refers to none, or to one that is not
// recorded.
func (r RecordedRevisions) Referred(ctx context.Context, compiled *inject.Compiled) (*appsv1.ControllerRevision, error) {
	ref, refers := compiled.Refers()
	if !refers {
		return nil, nil
	}
	return r.find(ctx, compiled.Set, ref)
}

func (r RecordedRevisions) find(ctx context.Context, set *appsv1beta1.SidecarSet, ref revision.Reference) (*appsv1.ControllerRevision, error) {
	var list appsv1.ControllerRevisionList
	if err := r.Reader.List(ctx, &list, client.InNamespace(r.Namespace), client.MatchingLabels{appsv1beta1.LabelSidecarSetName: set.Name}); err != nil {
		return nil, err // callers say whose they are
	}
	revisions := make([]*appsv1.ControllerRevision, len(list.Items))
	for i := range list.Items {
		revisions[i] = &list.Items[i]
	}
	return revision.NewHistory(revisions, revision.Owner{Name: set.Name, UID: set.UID}).Choose(ref), nil
}
