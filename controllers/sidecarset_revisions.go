package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tracker"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apps,resources=controllerrevisions,namespace=sidecarset-system,verbs=get;create;patch;delete
//
// An API server that checks who may set blockOwnerDeletion requires this right.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apps.kruise.io,resources=sidecarsets/finalizers,verbs=update

// revisionKeeper records SidecarSets in ControllerRevisions of one namespace.
type revisionKeeper struct {
	cached    client.Reader // may be behind
	live      client.Reader
	writer    client.Writer
	namespace string
}

// record makes the revision of a SidecarSet the newest one of its history.
func (r *SidecarSetReconciler) record(ctx context.Context, p *pass) (*status.Revision, error) {
	collisions := int32(0)
	if p.before.CollisionCount != nil {
		collisions = *p.before.CollisionCount
	}
	spec, err := inject.SpecOf(p.object.Object)
	if err != nil {
		return nil, err
	}
	recorded, history, err := r.revisions.keep(ctx, p.compiled, spec, collisions)
	if err != nil {
		return nil, fmt.Errorf("recording SidecarSet %s: %w", p.name, err)
	}
	p.history = history
	return recorded, nil
}

// truncate deletes revisions of a SidecarSet beyond the limit that no Pod runs, no SidecarSet
// names, and that are not the stable one.
func (r *SidecarSetReconciler) truncate(ctx context.Context, p *pass) error {
	if p.seen.Revision == nil {
		return nil
	}
	if err := r.revisions.truncate(ctx, p.compiled, p.history, p.before.StableRevision, p.pods.Revisions); err != nil {
		return fmt.Errorf("recording SidecarSet %s: %w", p.name, err)
	}
	return nil
}

// keep makes the revision of a compiled SidecarSet, whose spec is given, the newest one. It returns it with
// the whole history.
func (k *revisionKeeper) keep(ctx context.Context, compiled *inject.Compiled, spec map[string]any, collisions int32) (*status.Revision, revision.History, error) {
	data, err := revision.Data(spec)
	if err != nil {
		return nil, nil, err
	}
	owner := ownerOf(compiled)
	history, err := k.history(ctx, owner)
	if err != nil {
		return nil, nil, err
	}
	latest, number := history.Find(data)
	if latest != nil {
		latest, err = k.refresh(ctx, latest, owner, number)
	} else {
		latest, collisions, err = k.create(ctx, owner, data, collisions, number)
	}
	if err != nil {
		return nil, nil, err
	}
	history = history.With(latest)
	recorded := &status.Revision{Name: latest.Name, CollisionCount: collisions, Since: revision.CurrentSince(latest)}
	for _, r := range history {
		recorded.All = append(recorded.All, r.Name)
	}
	if reference, ok := compiled.Refers(); ok && (compiled.Bypassed() || compiled.IsHeld()) {
		r := history.Choose(reference)
		same := r == nil || r.Name == latest.Name || compiled.IsHeld() && r.Annotations[appsv1beta1.AnnotationHash] == compiled.Hash
		if !same {
			recorded.NewPods, recorded.Held = r.Name, compiled.IsHeld()
		}
	}
	return recorded, history, nil
}

func ownerOf(compiled *inject.Compiled) revision.Owner {
	set := compiled.Set
	return revision.Owner{
		Name: set.Name, UID: set.UID, Labels: set.Labels, Annotations: set.Annotations,
		CustomVersion: set.Spec.CustomVersion, Hash: compiled.Hash, HashWithoutImage: compiled.HashWithoutImage, Now: time.Now(),
	}
}

func (k *revisionKeeper) history(ctx context.Context, owner revision.Owner) (revision.History, error) {
	var list appsv1.ControllerRevisionList
	err := k.cached.List(ctx, &list, client.InNamespace(k.namespace), client.MatchingLabels{appsv1beta1.LabelSidecarSetName: owner.Name})
	if err != nil {
		return nil, fmt.Errorf("listing ControllerRevisions: %w", err)
	}
	all := make([]*appsv1.ControllerRevision, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	return revision.NewHistory(all, owner), nil
}

// maxCollisions bounds the names that one reconcile tries. If it finds no name, the next
// reconcile tries the same names again. So in a namespace full of foreign revisions, each
// reconcile costs this many requests.
const maxCollisions = 10

// create makes a new revision under the first name that is not taken. If the cache is behind,
// the object with the name may be the revision itself.
func (k *revisionKeeper) create(ctx context.Context, owner revision.Owner, data []byte, collisions int32, number int64) (*appsv1.ControllerRevision, int32, error) {
	for range maxCollisions {
		candidate := revision.New(owner, k.namespace, data, collisions, number)
		err := k.writer.Create(ctx, candidate)
		if err == nil {
			log.FromContext(ctx).Info("Recorded a revision", "ControllerRevision", klog.KObj(candidate), "revision", number)
			return candidate, collisions, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, 0, fmt.Errorf("creating ControllerRevision %s/%s: %w", k.namespace, candidate.Name, err)
		}
		existing := &appsv1.ControllerRevision{}
		if err := k.live.Get(ctx, client.ObjectKeyFromObject(candidate), existing); err != nil {
			return nil, 0, fmt.Errorf("reading ControllerRevision %s/%s: %w", k.namespace, candidate.Name, err)
		}
		if revision.Adopts(existing, candidate, owner) {
			existing, err := k.refresh(ctx, existing, owner, max(number, existing.Revision))
			return existing, collisions, err
		}
		collisions++
	}
	return nil, 0, errors.New("all names tried for a new ControllerRevision are taken by others")
}

// refresh writes the parts of a revision that may change while it stays the same revision. If
// the history comes from a cache that is behind, or if this process is no longer the leader,
// the precondition makes the write fail.
func (k *revisionKeeper) refresh(ctx context.Context, r *appsv1.ControllerRevision, owner revision.Owner, number int64) (*appsv1.ControllerRevision, error) {
	next, differs := revision.Refresh(r, owner, number)
	if !differs {
		return r, nil
	}
	patch := client.MergeFromWithOptions(r, client.MergeFromWithOptimisticLock{})
	if err := k.writer.Patch(ctx, next, patch); err != nil {
		return nil, fmt.Errorf("updating ControllerRevision %s/%s: %w", r.Namespace, r.Name, err)
	}
	log.FromContext(ctx).Info("Updated a revision", "ControllerRevision", klog.KObj(next), "revision", number)
	return next, nil
}

// truncate deletes old revisions. It is not an error if more are left than the limit
// allows because all of them are needed.
func (k *revisionKeeper) truncate(ctx context.Context, compiled *inject.Compiled, history revision.History, stable string, inUse map[podstate.Name]tracker.RevisionCount) error {
	surplus, tooMany := history.Surplus(&compiled.Set.Spec, func(name string) bool {
		_, used := inUse[podstate.MakeName(name)]
		return used || name == stable
	})
	var errs []error
	for _, r := range surplus {
		err := k.writer.Delete(ctx, r, client.Preconditions{UID: &r.UID})
		if err != nil && !isGone(err) {
			errs = append(errs, fmt.Errorf("deleting ControllerRevision %s/%s: %w", r.Namespace, r.Name, err))
			continue
		}
		log.FromContext(ctx).V(1).Info("Deleted an old revision", "ControllerRevision", klog.KObj(r))
	}
	if tooMany > 0 {
		log.FromContext(ctx).V(1).Info("Kept more revisions than the limit because they are in use", "tooMany", tooMany)
	}
	return errors.Join(errs...)
}

// isGone reports whether the object to delete does not exist any more. Another
// object may have its name.
func isGone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }
