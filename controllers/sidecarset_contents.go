package controllers

import (
	"context"
	"fmt"

	"github.com/sidecarset/operator/internal/inject"
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
	differences, err := known.With(history, spec, n.Program.HashWithoutImage)
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
