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
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/status"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apps.kruise.io,resources=sidecarsets/status,verbs=patch

// SidecarSetReconciler writes the status of SidecarSets. It is called when a
// SidecarSet changed and when its counters did.
type SidecarSetReconciler struct {
	reader    client.Reader // the manager's cache
	status    client.SubResourceWriter
	sets      SidecarSets
	pods      *podTally
	readiness Readiness // nil if nothing is known of any
	revisions *revisionKeeper
	pace      *pace
	clock     clock.PassiveClock
	m         *collectors
}

// recheckProblem is how soon an object is looked at again that does not even
// compile. Its problem may be that of its previous generation, and the snapshot
// that knows better does not announce an object it cannot hold.
const recheckProblem = 5 * time.Second

// Reconcile brings one SidecarSet's status up to date, at most once per
// writeInterval.
func (r *SidecarSetReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object := newSidecarSet()
	err := r.reader.Get(ctx, client.ObjectKey{Name: req.Name}, object)
	if err != nil && !apierrors.IsNotFound(err) {
		return ctrl.Result{}, fmt.Errorf("reading SidecarSet %s: %w", req.Name, err)
	}
	exists := err == nil
	if exists {
		if rest := r.pace.rest(req.Name, object.GetUID(), r.clock.Now()); rest > 0 && !r.becameReady(object) {
			return ctrl.Result{RequeueAfter: rest}, nil
		}
	}
	n, err := r.pods.count(ctx, req.Name)
	switch {
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("counting Pods of SidecarSet %s: %w", req.Name, err)
	case !exists:
		r.forget(req.Name)
		return ctrl.Result{}, nil
	case !n.Synced:
		return ctrl.Result{}, nil
	}
	seen := status.Observation{Counters: n.Counters, Problem: r.sets.Problem(req.Name), Now: r.clock.Now()}
	switch {
	case n.Known && !describes(n.Program, object):
		log.FromContext(ctx).V(1).Info("Waiting for the snapshot and the object to agree")
		return ctrl.Result{}, nil // the one that is behind announces itself when it catches up
	case n.Known:
		seen.Generation = n.Program.Set.Generation
		r.m.observe(req.Name, n.Counters)
	case seen.Problem == nil:
		return ctrl.Result{}, nil // not in the snapshot yet
	default:
		seen.Generation = object.GetGeneration()
	}
	var recording error
	if n.Known && object.GetDeletionTimestamp() == nil {
		seen.Revision, recording = r.record(ctx, object, n)
		if seen.Revision == nil && !observed(object, seen.Generation) {
			return ctrl.Result{}, recording // an observed generation is a recorded one
		}
	}
	seen.Readiness = r.readinessOf(object, seen.Generation)
	result, err := r.writeStatus(ctx, object, seen)
	err = errors.Join(err, recording)
	if err == nil && !n.Known && result.IsZero() {
		result.RequeueAfter = recheckProblem
	}
	return result, err
}

// becameReady says whether a SidecarSet is ready whose status has not been told.
// Somebody may be waiting for that, so it is written at once; it happens once per
// generation.
func (r *SidecarSetReconciler) becameReady(object *unstructured.Unstructured) bool {
	generation := object.GetGeneration()
	known := r.readinessOf(object, generation)
	return known != nil && known.Ready && r.pace.tellsReadyOf(object.GetName(), object.GetUID()) < generation
}

func (r *SidecarSetReconciler) readinessOf(object *unstructured.Unstructured, generation int64) *status.Readiness {
	if r.readiness == nil {
		return nil
	}
	return r.readiness.Of(object.GetName(), object.GetUID(), generation)
}

// describes says whether what was counted with a Program may be written to an
// object: it must be about the same generation of the same object.
func describes(program *inject.Program, object *unstructured.Unstructured) bool {
	return program.Set.UID == object.GetUID() && program.Set.Generation == object.GetGeneration()
}

// observed says whether the status already speaks of a generation.
func observed(object *unstructured.Unstructured, generation int64) bool {
	got, _, err := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	return err == nil && got == generation
}

func (r *SidecarSetReconciler) forget(sidecarSet string) {
	r.pace.forget(sidecarSet)
	r.m.forget(sidecarSet)
}

// pace remembers when each SidecarSet was last written. It is safe for
// concurrent use.
type pace struct {
	interval time.Duration

	mu    sync.Mutex
	known map[string]paced
}

// paced is about one object: one that is deleted and created again under its
// name owes nothing to the first.
type paced struct {
	uid     types.UID
	written time.Time
	ready   int64 // the newest generation that was said to be ready
}

func newPace(interval time.Duration) *pace {
	return &pace{interval: interval, known: make(map[string]paced)}
}

// rest is how long it is until the next write may happen.
func (p *pace) rest(sidecarSet string, uid types.UID, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.known[sidecarSet]
	if !ok || last.uid != uid {
		return 0
	}
	// A clock that was set back must not stop the writing.
	return min(p.interval, last.written.Add(p.interval).Sub(now))
}

func (p *pace) wrote(sidecarSet string, uid types.UID, now time.Time) {
	p.note(sidecarSet, uid, func(known *paced) { known.written = now })
}

// saysReady notes that the status says of a generation that it is ready.
func (p *pace) saysReady(sidecarSet string, uid types.UID, generation int64) {
	p.note(sidecarSet, uid, func(known *paced) { known.ready = generation })
}

func (p *pace) note(sidecarSet string, uid types.UID, change func(*paced)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[sidecarSet]
	if known.uid != uid {
		known = paced{uid: uid}
	}
	change(&known)
	p.known[sidecarSet] = known
}

func (p *pace) tellsReadyOf(sidecarSet string, uid types.UID) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[sidecarSet]; known.uid == uid {
		return known.ready
	}
	return 0
}

func (p *pace) forget(sidecarSet string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, sidecarSet)
}
