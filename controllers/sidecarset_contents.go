package controllers

import (
	"context"
	"fmt"
	"maps"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/tally"
)

// compareContents passes the differences between the recorded contents of a SidecarSet
// and the current one to the tally, and counts again, if Pods record a content that
// differs in more than images. Each pair of contents is compared once.
func (r *SidecarSetReconciler) compareContents(ctx context.Context, p *pass) error {
	n := p.counted
	if !n.Synced || !n.Known || !n.Differs || !describes(n.Program, p.object) {
		return nil
	}
	known := n.Content.Differences()
	history, err := r.revisions.history(ctx, ownerOf(n.Program))
	if err != nil {
		return err
	}
	spec, err := inject.SpecOf(p.object.Object)
	if err != nil {
		return err
	}
	differences, err := compare(history, spec, n.Program.HashWithoutImage, known)
	if err != nil {
		return fmt.Errorf("comparing SidecarSet %s with its revisions: %w", p.name, err)
	}
	if known != nil && len(differences) == len(known) {
		return nil
	}
	err = r.pods.do(ctx, func(t *tally.Tally) { t.SetDifferences(p.name, n.Program.HashWithoutImage, differences) })
	if err != nil {
		return err
	}
	p.counted, err = r.pods.count(ctx, p.name)
	return err
}

// compare adds the differences of a history that are not known yet.
func compare(history revision.History, spec map[string]any, hashWithoutImage string, known inplace.Differences) (inplace.Differences, error) {
	all := maps.Clone(known)
	if all == nil {
		all = inplace.Differences{}
	}
	var current map[string]any // the spec as ControllerRevisions have it
	for _, r := range history {
		hash := r.Annotations[appsv1beta1.AnnotationHashWithoutImage]
		name := podstate.MakeName(hash)
		if _, is := all[name]; is || hash == "" || hash == hashWithoutImage {
			continue
		}
		if current == nil {
			data, err := revision.Data(spec)
			if err != nil {
				return nil, err
			}
			if current, err = revision.Spec(data); err != nil {
				return nil, err
			}
		}
		if recorded, err := revision.Spec(r.Data.Raw); err != nil {
			all[name] = inplace.Difference{Other: true} // unreadable: anything may differ
		} else {
			all[name] = inplace.Compare(recorded, current)
		}
	}
	return all, nil
}
