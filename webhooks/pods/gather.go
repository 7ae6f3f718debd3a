package pods

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/review"
	"github.com/sidecarset/operator/webhooks/server"
)

// selection has the SidecarSets that select one Pod.
type selection struct {
	snapshot    *match.Snapshot
	sidecarSets []*inject.Compiled // in the order of their names
}

// gather finds the SidecarSets that select a Pod. It uses the labels of the Namespace in the
// snapshot if that selection is certain to be right, and otherwise reads the labels live. It is
// not certain if the snapshot does not know the Namespace, or if only its labels leave a
// SidecarSet out: API servers send the Pods that are selected by the labels that they know, so
// the Namespace may have been labelled a moment ago. A failed look-up is an error, never "not
// selected".
func (i *Injector) gather(ctx context.Context, head *review.Head) (selection, error) {
	snapshot := i.options.Snapshot()
	if snapshot == nil {
		return selection{}, server.Unavailable("this replica of the operator has not read all SidecarSets yet; try again in a moment")
	}
	selected, err := snapshot.Select(head.Namespace, head.Labels, nil)
	if err != nil || selected.LeftOut {
		selected, err = snapshot.Select(head.Namespace, head.Labels, func(name string) (labels.Set, error) {
			_, known := snapshot.NamespaceLabels(name)
			return i.namespaces.labels(ctx, name, known)
		})
	}
	if err != nil {
		return selection{}, cannotTell(head, err)
	}
	return selection{snapshot, selected.SidecarSets}, nil
}

func cannotTell(head *review.Head, err error) error {
	return server.Unavailable(fmt.Sprintf("cannot tell which SidecarSets select Pod %s: %v", head.PodName(), err))
}

// names yields the names of the SidecarSets.
func (s selection) names(yield func(string) bool) {
	for _, compiled := range s.sidecarSets {
		if !yield(compiled.Name()) {
			return
		}
	}
}
