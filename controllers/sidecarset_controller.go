package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tally"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apps.kruise.io,resources=sidecarsets/status,verbs=patch

// SidecarSetReconciler writes the status of SidecarSets and records their revisions. The
// object, a revision, the tally and readiness announce their changes. A lost announcement only
// costs time: each reconcile looks at everything, and requests the next one.
type SidecarSetReconciler struct {
	reader    client.Reader // the manager's cache
	status    client.SubResourceWriter
	sets      SidecarSets
	pods      *podTally
	readiness Readiness // nil if nothing is known of any
	revisions *revisionKeeper
	pace      *pace
	wake      *waker
	event     func(events.Event)
	m         *collectors
	required  *requiredPolicy
	// unrecorded has, by name, the failure of each SidecarSet whose content cannot be recorded.
	unrecorded sync.Map
}

const (
	// recheckWait is when to look again at a SidecarSet that waits for another
	// part: for the list of Pods, the snapshot, or an object that compiles. That
	// part announces itself, usually within milliseconds.
	recheckWait = 5 * time.Second
	// recheck is when to look again at any SidecarSet. A look costs no request.
	recheck = time.Minute
	// unrecordedAfter is the time after which the status reports that a content cannot be
	// recorded. A reason that ends sooner by itself, such as a cache that is behind, is not
	// reported.
	unrecordedAfter = time.Second
)

// countsChanged has a SidecarSet reconciled when its new counters can be written.
func (r *SidecarSetReconciler) countsChanged(sidecarSet string) {
	r.wake.after(sidecarSet, r.pace.counted(sidecarSet, time.Now()))
}

// changed has a SidecarSet reconciled at once: its readiness has changed, or its content,
// which is to be recorded before Pods are updated.
func (r *SidecarSetReconciler) changed(sidecarSet string) { r.wake.after(sidecarSet, 0) }

// pass is one look at a SidecarSet. The steps read and extend it. The object is
// the cache's: it is not changed.
type pass struct {
	name    string
	object  *unstructured.Unstructured
	before  appsv1beta1.SidecarSetStatus
	counted counted
	seen    status.Observation
	// complete says that seen may be written.
	complete bool
}

// Reconcile brings one SidecarSet's revisions and status up to date.
func (r *SidecarSetReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	p := &pass{name: req.Name}
	defer func() {
		again, failed := r.patchStatus(ctx, p)
		if err = errors.Join(err, failed); err != nil {
			result = ctrl.Result{} // the queue decides when to retry
		} else if again > 0 {
			result.RequeueAfter = again
		}
	}()
	exists, err := r.readObject(ctx, p)
	if err != nil || !exists {
		return ctrl.Result{}, err
	}
	if result, err = r.countPods(ctx, p); err != nil || !result.IsZero() {
		return result, err
	}
	if err = errors.Join(r.recordRevision(ctx, p), r.allowUpdates(ctx, p)); err != nil {
		return ctrl.Result{}, err
	}
	if !p.counted.Known {
		// The problem may be that of an earlier generation, because the snapshot does not
		// announce an object that it cannot hold. So look again soon.
		return ctrl.Result{RequeueAfter: recheckWait}, nil
	}
	again := recheck
	if in, ok := p.seen.LooksAgainIn(); ok {
		again = min(again, max(in, time.Second))
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// readObject reads the SidecarSet and its status. It forgets a SidecarSet that is gone.
func (r *SidecarSetReconciler) readObject(ctx context.Context, p *pass) (exists bool, err error) {
	p.object = newSidecarSet()
	err = r.reader.Get(ctx, client.ObjectKey{Name: p.name}, p.object, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		r.pace.forget(p.name)
		r.unrecorded.Delete(p.name)
		r.m.forget(p.name)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading SidecarSet %s: %w", p.name, err)
	}
	p.before, err = statusOf(p.object)
	return err == nil, err
}

// countPods gathers what the tally and the snapshot know of the object, and what is known
// of the next Pod. It waits until both are about the generation that the cache holds.
func (r *SidecarSetReconciler) countPods(ctx context.Context, p *pass) (ctrl.Result, error) {
	var err error
	if p.counted, err = r.pods.count(ctx, p.name); err != nil {
		return ctrl.Result{}, fmt.Errorf("counting Pods of SidecarSet %s: %w", p.name, err)
	}
	if err := r.compareContents(ctx, p); err != nil {
		return ctrl.Result{}, err
	}
	n := p.counted
	p.seen = status.Observation{
		Generation: p.object.GetGeneration(), Counters: status.Counters(n.Counters), Uninjected: n.Uninjected,
		Problem: r.sets.Problem(p.name), Now: time.Now(),
	}
	if p.object.GetDeletionTimestamp() != nil {
		p.seen.Finalizers = append([]string{}, p.object.GetFinalizers()...)
	}
	switch {
	case !n.Synced:
		return waitFor(ctx, "the list of all Pods")
	case n.Known && !describes(n.Program, p.object):
		return waitFor(ctx, "the snapshot and the cache to hold the same generation")
	case !n.Known && p.seen.Problem == nil:
		return waitFor(ctx, "the snapshot to hold the SidecarSet")
	}
	if n.Known {
		p.seen.InjectionPaused = n.Program.Set.Spec.InjectionStrategy.Paused
	} else {
		p.seen.Plan = &rollout.Plan{Status: rollout.Begun} // that of an object which cannot be used
	}
	if r.readiness != nil {
		p.seen.Readiness = r.readiness.Of(p.name, p.object.GetUID(), p.seen.Generation)
	}
	p.complete = true
	return ctrl.Result{}, nil
}

// waitFor ends a pass until another part announces itself.
func waitFor(ctx context.Context, what string) (ctrl.Result, error) {
	log.FromContext(ctx).V(1).Info("Waiting", "for", what)
	return ctrl.Result{RequeueAfter: recheckWait}, nil
}

// describes reports whether counters of a Program may be written to an object: both must be
// about the same generation of the same object.
func describes(program *inject.Program, object *unstructured.Unstructured) bool {
	return program.Set.UID == object.GetUID() && program.Set.Generation == object.GetGeneration()
}

// recordRevision records the content that the Pods were counted with. A status with a
// generation promises that a revision records this generation. So without a revision, no
// status with a new generation is written.
func (r *SidecarSetReconciler) recordRevision(ctx context.Context, p *pass) error {
	if !p.counted.Known || p.object.GetDeletionTimestamp() != nil {
		return nil
	}
	var err error
	p.seen.Revision, err = r.record(ctx, p)
	if p.seen.Revision == nil {
		p.complete = p.before.ObservedGeneration == p.seen.Generation
		r.explainFailure(p, err)
		return err
	}
	r.unrecorded.Delete(p.name)
	recorded := func(name string) (pods, ready int32) {
		n := p.counted.Revisions[podstate.MakeName(name)]
		return n.Pods, n.Ready
	}
	p.seen.Revisions = status.ByRevision(p.seen.Revision.All, recorded, p.seen.Counters)
	return err
}

// failure says since when the content of an object cannot be recorded.
type failure struct {
	uid   types.UID
	since time.Time
}

// explainFailure says why the content is not recorded: in an Event, and in the condition Degraded
// if that lasts.
func (r *SidecarSetReconciler) explainFailure(p *pass, err error) {
	r.event(events.RevisionNotRecorded(events.Of(p.counted.Program.Set), err))
	this := failure{p.object.GetUID(), p.seen.Now}
	if known, ok := r.unrecorded.Load(p.name); ok && known.(failure).uid == this.uid {
		this = known.(failure)
	}
	r.unrecorded.Store(p.name, this)
	if p.seen.Now.Sub(this.since) >= unrecordedAfter {
		p.seen.Unrecorded = err
	}
}

// allowUpdates tells the tally what it has to know before Pods are updated, and gets the plan of the
// rollout. Without a recorded revision it does neither.
func (r *SidecarSetReconciler) allowUpdates(ctx context.Context, p *pass) error {
	if p.seen.Revision == nil {
		return nil
	}
	current := tally.Current{
		Program: p.counted.Program, Revision: p.seen.Revision.Name, Since: p.seen.Revision.Since,
		Status: status.RolloutOf(p.before, p.seen.Revision.Name),
	}
	var plan *rollout.Plan
	err := r.pods.ask(ctx, func(t *tally.Tally) {
		t.Settle(time.Now()) // a plan of a second ago would name a next change that is over
		if now, ok := t.SetCurrent(p.name, current); ok {
			plan = &now
		}
	})
	if err != nil {
		return err
	}
	p.seen.Plan, p.seen.Since = plan, current.Since
	r.m.observe(p.name, p.seen)
	return nil
}
