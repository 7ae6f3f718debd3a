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
	history, err := r.revisions.history(ctx, ownerOf(n.Program))
	if err != nil {
		return err
	}
	spec, err := inject.SpecOf(p.object.Object)
	if err != nil {
		return err
	}
	contents, err := compare(history, spec, n.Program.HashWithoutImage, n.Contents)
	if err != nil {
		return fmt.Errorf("comparing SidecarSet %s with its revisions: %w", p.name, err)
	}
	if n.Contents != nil && len(contents) == len(n.Contents) {
		return nil
	}
	err = r.pods.do(ctx, func(t *tally.Tally) { t.SetContents(p.name, n.Program.HashWithoutImage, contents) })
	if err != nil {
		return err
	}
	p.counted, err = r.pods.count(ctx, p.name)
	return err
}

// compare adds the contents of a history that are not known yet.
func compare(history revision.History, spec map[string]any, hashWithoutImage string, known tally.Contents) (tally.Contents, error) {
	contents := maps.Clone(known)
	if contents == nil {
		contents = tally.Contents{}
	}
	var current map[string]any // the spec as ControllerRevisions have it
	for _, r := range history {
		hash := r.Annotations[appsv1beta1.AnnotationHashWithoutImage]
		name := podstate.MakeName(hash)
		if _, is := contents[name]; is || hash == "" || hash == hashWithoutImage {
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
			contents[name] = inplace.Difference{Other: true} // unreadable: anything may differ
		} else {
			contents[name] = inplace.Compare(recorded, current)
		}
	}
	return contents, nil
}
