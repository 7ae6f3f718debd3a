package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tracker"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apps.kruise.io,resources=sidecarsets/status,verbs=patch

// SidecarSetReconciler records the revisions of SidecarSets, has their Pods written, and writes their
// status. The object, a revision, the Pods and readiness announce their changes. A lost announcement
// only costs time: each reconcile looks at everything, and requests the next one.
type SidecarSetReconciler struct {
	reader    client.Reader // the manager's cache
	status    client.SubResourceWriter
	sets      SidecarSets
	pods      *podTracker
	readiness Readiness // nil if nothing is known of any
	revisions *revisionKeeper
	debounce  *debounce
	wake      *waker
	// write has Pods written. It does not wait.
	write    func(...tracker.WorkItem)
	event    func(events.Event)
	m        *collectors
	required *requiredPolicy
	// unrecorded has, by name, the failure of each SidecarSet whose revision cannot be recorded.
	unrecorded sync.Map
}

const (
	// recheckWait is when to look again at a SidecarSet that waits for another
	// part: for the list of Pods, the snapshot, or an object that compiles. That
	// part announces itself, usually within milliseconds.
	recheckWait = 5 * time.Second
	// recheck is when to look again at any SidecarSet. A look costs no request.
	recheck = time.Minute
	// unrecordedAfter is the time after which the status reports that a revision cannot be
	// recorded. A reason that ends sooner by itself, such as a cache that is behind, is not
	// reported.
	unrecordedAfter = time.Second
)

// changed enqueues a SidecarSet: immediately if it is urgent, because a user may wait for it.
func (r *SidecarSetReconciler) changed(sidecarSet string, urgent bool) {
	if urgent {
		r.debounce.expedite(sidecarSet)
	}
	r.wake.after(sidecarSet, r.debounce.next(sidecarSet, time.Now()))
}

// pass is one look at a SidecarSet. The steps of Reconcile read and extend it. The object is
// the cache's: it is not changed.
type pass struct {
	name     string
	object   *unstructured.Unstructured
	before   appsv1beta1.SidecarSetStatus
	compiled *inject.Compiled // of the object; nil if it cannot be used
	history  revision.History
	pods     tracker.Pass
	seen     status.Observation
	// complete says that seen may be written.
	complete bool
}

// Reconcile is one pass over a SidecarSet and all of its Pods.
func (r *SidecarSetReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	p := &pass{name: req.Name}
	// 1. What is there: the SidecarSet, and what the snapshot has compiled from it.
	if wait, err := r.look(ctx, p); err != nil || wait > 0 || p.object == nil {
		return ctrl.Result{RequeueAfter: wait}, err
	}
	// 2. What is current: the ControllerRevision of what it injects.
	unrecorded := r.recordRevision(ctx, p)
	// 3. What is decided: how its Pods count, and which of them are to be written.
	wait, undecided := r.decide(ctx, p)
	// 4. What is written: the Pods. The executor announces each that it has written.
	r.write(p.pods.Write...)
	if wait > 0 || undecided != nil {
		return ctrl.Result{RequeueAfter: wait}, errors.Join(unrecorded, undecided)
	}
	untidy := r.truncate(ctx, p)
	// 5. What is said: the status.
	wait, unsaid := r.patchStatus(ctx, p)
	if err := errors.Join(unrecorded, untidy, unsaid); err != nil {
		return ctrl.Result{}, err // the queue decides when to retry
	}
	return ctrl.Result{RequeueAfter: r.again(p, wait)}, nil
}

// again is when to look again at a SidecarSet if nothing happens.
func (r *SidecarSetReconciler) again(p *pass, wait time.Duration) time.Duration {
	again := recheck
	if in, ok := p.seen.LooksAgainIn(); ok {
		again = min(again, max(in, time.Second))
	}
	if p.compiled == nil {
		// The problem may be that of an earlier generation, because the snapshot does not
		// announce an object that it cannot hold. So look again soon.
		again = recheckWait
	}
	if wait > 0 {
		again = min(again, wait)
	}
	return again
}

// look reads the SidecarSet and its status, and forgets one that is gone: then there is no object. It
// waits until the next pass is due, all Pods are known, and the snapshot is about the generation that
// the cache holds.
func (r *SidecarSetReconciler) look(ctx context.Context, p *pass) (wait time.Duration, err error) {
	object := newSidecarSet()
	err = r.reader.Get(ctx, client.ObjectKey{Name: p.name}, object, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		r.debounce.forget(p.name)
		r.unrecorded.Delete(p.name)
		r.m.forget(p.name)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading SidecarSet %s: %w", p.name, err)
	}
	if p.before, err = statusOf(object); err != nil {
		return 0, err
	}
	p.object = object
	if !r.pods.synced.Load() {
		return waitFor(ctx, "the list of all Pods")
	}
	p.seen = status.Observation{Name: p.name, Generation: object.GetGeneration(), Problem: r.sets.Problem(p.name), Now: time.Now()}
	if snapshot := r.sets.Current(); snapshot != nil {
		p.compiled, _ = snapshot.Get(p.name)
	}
	switch {
	case p.compiled != nil && !describes(p.compiled, object):
		return waitFor(ctx, "the snapshot and the cache to hold the same generation")
	case p.compiled == nil && p.seen.Problem == nil:
		return waitFor(ctx, "the snapshot to hold the SidecarSet")
	}
	if wait := r.debounce.begin(p.name, object.GetUID(), p.seen.Generation, p.seen.Now); wait > 0 {
		return wait, nil
	}
	if object.GetDeletionTimestamp() != nil {
		p.seen.Finalizers = append([]string{}, object.GetFinalizers()...)
	}
	if p.compiled != nil {
		p.seen.InjectionPaused = p.compiled.Set.Spec.InjectionStrategy.Paused
	} else {
		p.seen.Plan = &rollout.Plan{Status: rollout.Begun} // that of an object which cannot be used
	}
	if r.readiness != nil {
		p.seen.Readiness = r.readiness.Of(p.name, object.GetUID(), p.seen.Generation)
	}
	p.complete = true
	return 0, nil
}

// waitFor ends a pass until another part announces itself.
func waitFor(ctx context.Context, what string) (time.Duration, error) {
	log.FromContext(ctx).V(1).Info("Waiting", "for", what)
	return recheckWait, nil
}

// describes reports whether what is known of a compiled SidecarSet may be written to an object: both must be
// about the same generation of the same object.
func describes(compiled *inject.Compiled, object *unstructured.Unstructured) bool {
	return compiled.Set.UID == object.GetUID() && compiled.Set.Generation == object.GetGeneration()
}

// recordRevision records the revision of the compiled SidecarSet. A status with a generation promises that a
// revision records this generation. So without a revision, no status with a new generation is written.
func (r *SidecarSetReconciler) recordRevision(ctx context.Context, p *pass) error {
	if p.compiled == nil || p.object.GetDeletionTimestamp() != nil {
		return nil
	}
	var err error
	if p.seen.Revision, err = r.record(ctx, p); err != nil {
		p.complete = p.before.ObservedGeneration == p.seen.Generation
		r.explainFailure(p, err)
		return err
	}
	r.unrecorded.Delete(p.name)
	p.seen.Since = p.seen.Revision.Since
	return nil
}

// failure says since when the revision of an object cannot be recorded.
type failure struct {
	uid   types.UID
	since time.Time
}

// explainFailure says why the revision is not recorded: in an Event, and in the condition Degraded
// if that lasts. A write conflict is none: the cache was behind.
func (r *SidecarSetReconciler) explainFailure(p *pass, err error) {
	if !apierrors.IsConflict(err) {
		r.event(events.RevisionNotRecorded(events.Of(p.compiled.Set), err))
	}
	this := failure{p.object.GetUID(), p.seen.Now}
	if known, ok := r.unrecorded.Load(p.name); ok && known.(failure).uid == this.uid {
		this = known.(failure)
	}
	r.unrecorded.Store(p.name, this)
	if p.seen.Now.Sub(this.since) >= unrecordedAfter {
		p.seen.Unrecorded = err
	}
}

// decide counts the Pods, and decides which of them to write if the revision is recorded. If Pods
// record revisions that were not compared with the current one yet, it does that first.
func (r *SidecarSetReconciler) decide(ctx context.Context, p *pass) (wait time.Duration, err error) {
	if p.compiled == nil {
		return 0, nil
	}
	current := tracker.Current{Compiled: p.compiled}
	if recorded := p.seen.Revision; recorded != nil {
		current.Revision, current.Since = recorded.Name, recorded.Since
		current.Status, current.NewPods = status.RolloutOf(p.before, recorded.Name), recorded.NewPods
		current.Unstable = p.before.StableRevision != "" && p.before.StableRevision != recorded.Name
	}
	for {
		pods, took, ok, err := r.pods.pass(ctx, current)
		if err != nil {
			return 0, fmt.Errorf("counting Pods of SidecarSet %s: %w", p.name, err)
		}
		if !ok {
			return waitFor(ctx, "the Pods to be compared with the snapshot")
		}
		p.pods = pods
		r.debounce.passed(p.name, pods.Busy, took)
		if !pods.Differs || p.seen.Revision == nil {
			break
		}
		if err := r.compareRevisions(ctx, p); err != nil {
			return 0, err
		}
		if !pods.Undecided {
			break
		}
	}
	p.seen.Counters, p.seen.Uninjected, p.seen.Plan = status.Counters(p.pods.Counters), p.pods.Uninjected, p.pods.Plan
	if p.seen.Revision != nil {
		p.seen.Revisions = status.ByRevision(p.seen.Revision.All, func(name string) (pods, ready int32) {
			n := p.pods.Revisions[podstate.MakeName(name)]
			return n.Pods, n.Ready
		}, p.seen.Counters)
		p.seen.Hold = p.pods.Plan == nil || rollout.Hold(rollout.Revisions{
			Latest: p.seen.Revision.Name, Planned: p.compiled.Revision(),
			Stable: p.before.StableRevision, Recorded: slices.Contains(p.seen.Revision.All, p.before.StableRevision),
		}, p.pods.Plan.Evidence)
		r.m.observe(p.name, p.seen)
	}
	return 0, nil
}

// compareRevisions passes the differences between the recorded revisions of a SidecarSet and the
// current one to the tracker. Each pair of revisions is compared once.
func (r *SidecarSetReconciler) compareRevisions(ctx context.Context, p *pass) error {
	known := p.pods.Revision.Differences()
	spec, err := inject.SpecOf(p.object.Object)
	if err != nil {
		return err
	}
	differences, err := known.With(p.history, spec, p.compiled.HashWithoutImage)
	if err != nil {
		return fmt.Errorf("comparing SidecarSet %s with its revisions: %w", p.name, err)
	}
	if known != nil && len(differences) == len(known) {
		return nil
	}
	return r.pods.do(ctx, func(t *tracker.Tracker) { t.SetDifferences(p.name, p.compiled.HashWithoutImage, differences) })
}
