package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entries"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/propagation"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/internal/validation"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=sidecarsets.apps.kruise.io,verbs=get

// podWebhookLeader keeps the webhook entries as the stored SidecarSets want them
// and says of each SidecarSet whether the next Pod will be injected. It is level
// based: a pass looks at everything, and whatever changes asks for another one.
// Only the goroutine of Start uses the fields below the line.
type podWebhookLeader struct {
	webhooks *PodWebhooks
	sets     SidecarSets
	live     client.Reader
	writer   client.Client
	board    *readinessBoard
	again    chan struct{} // has capacity 1

	calls    callWatch
	probe    *podProbe // nil if no Pods are tried
	replicas replicaWatch
	planned  map[string]plannedEntry // by SidecarSet
	versions map[string]firstVersion // by SidecarSet
	windows  map[string]window       // by entry
	placed   map[string]placement    // by entry
	refused  map[string]refusal      // by entry
	paces    [entries.MaxConfigurations + 1]flowcontrol.PassiveRateLimiter
	edits    [entries.MaxConfigurations + 1]edits

	provisional provisionalRoom
	events      events.EventRecorder // nil if nobody is told
	missing     string               // why no object can hold entries, as it was told
}

// plannedEntry is what a Program needs, remembered by its identity and that of
// the recorded revision that it injects.
type plannedEntry struct {
	program, history *inject.Program

	entry   entries.Entry
	err     error  // why there is none
	refuse  error  // why no Pod can be injected
	nothing string // why no Pod can be selected
}

// firstVersion is the resourceVersion with which the leader first saw a
// SidecarSet say what it says; 0 if its status tells that everybody knew before.
type firstVersion struct {
	content string
	version uint64
}

// window is since when an entry has been touched as it is, and since when nobody
// has wanted it.
type window struct {
	touched  int64
	since    time.Time
	orphaned time.Time // zero while somebody wants it
}

// refusal is what the API server said of an entry.
type refusal struct {
	message string
	at      time.Time
}

// refusedFor is how long an entry is left out. It may be the bundle that the API
// server refused, or a version of it that is replaced.
const refusedFor = 10 * time.Minute

// placement is the serial since which an entry has been in its object.
type placement struct {
	configuration int
	serial        int64
}

// AddLeader adds the leader's part to the manager, for a process that runs
// controllers. Call it before controllers.Setup.
func (w *PodWebhooks) AddLeader(mgr ctrl.Manager, sets SidecarSets) error {
	l := &podWebhookLeader{
		webhooks: w,
		sets:     sets,
		live:     mgr.GetAPIReader(),
		writer:   mgr.GetClient(),
		board:    newReadinessBoard(),
		events:   mgr.GetEventRecorder("sidecarset-operator"),
		again:    make(chan struct{}, 1),
		replicas: replicaWatch{leases: mgr.GetCache(), namespace: w.options.Settings.Namespace, seen: map[string]seenReplica{}},
		planned:  map[string]plannedEntry{},
		versions: map[string]firstVersion{},
		windows:  map[string]window{},
		placed:   map[string]placement{},
		refused:  map[string]refusal{},
	}
	l.setPaces()
	if w.options.ProbeNamespace != "" {
		l.probe = newPodProbe(w.options.ProbeNamespace, mgr.GetClient(), w.options.Clock, l.wake)
	}
	w.leader = l
	sets.Notify(l.again)
	w.options.Rivals.Notify(l.again)
	return mgr.Add(l)
}

func (l *podWebhookLeader) wake() { signal(l.again) }

func (l *podWebhookLeader) setPaces() {
	for i := range l.paces {
		perSecond := float32(writesPerSecond)
		if i == entries.Provisional {
			perSecond = provisionalWritesPerSecond // each SidecarSet that is stored is one
		}
		l.paces[i] = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(perSecond, writesAtOnce, l.webhooks.options.Clock)
	}
}

// NeedLeaderElection reports true: entries are removed by one process only.
func (*podWebhookLeader) NeedLeaderElection() bool { return true }

const (
	// minPassPause paces passes while much changes.
	minPassPause = 5 * time.Millisecond
	// soon is when to look again while something is left to wait for, later
	// while nothing is.
	soon  = 500 * time.Millisecond
	later = 10 * time.Second
	// An object is written twice for each of its entries when all of them are new.
	// Whoever goes on to change what was restored is not followed faster than this.
	writesAtOnce    = 2 * entries.MaxEntries
	writesPerSecond = 1

	provisionalWritesPerSecond = 20
)

// Start keeps entries and readiness true until ctx ends.
func (l *podWebhookLeader) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("pod-webhooks")
	ctx = log.IntoContext(ctx, logger)
	leases, err := l.webhooks.cached.GetInformer(ctx, &coordinationv1.Lease{}, cache.BlockUntilSynced(true))
	if err != nil {
		return fmt.Errorf("watching kind Lease: %w", err)
	}
	wake := func(any) { l.wake() }
	if _, err := leases.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, _ any) { l.wake() }, DeleteFunc: wake}); err != nil {
		return fmt.Errorf("watching kind Lease: %w", err)
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() { l.calls.run(ctx, l.webhooks.barrier, clock.RealClock{}, l.wake) })
	if l.probe != nil {
		asking.Go(func() { l.probe.run(ctx) })
	}
	problem := ""
	for {
		next, err := l.pass(ctx)
		switch {
		case err != nil && ctx.Err() == nil && err.Error() != problem:
			logger.Info("Could not bring the webhook entries up to date", "reason", err.Error())
			problem = err.Error()
		case err == nil:
			problem = ""
		}
		if !l.rest(ctx, next) {
			return nil
		}
	}
}

// rest waits until a pass is due; false if ctx ends first.
func (l *podWebhookLeader) rest(ctx context.Context, next time.Duration) bool {
	pause := time.NewTimer(minPassPause)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-pause.C:
	}
	timer := time.NewTimer(next)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-l.again:
	case <-timer.C:
	}
	return true
}

// pass looks at everything once, writes what differs, and tells how soon to look
// again if nothing happens.
func (l *podWebhookLeader) pass(ctx context.Context) (time.Duration, error) {
	catalog := l.sets.Current()
	if catalog == nil {
		return soon, nil
	}
	now := l.webhooks.options.Clock.Now()
	live, dead, err := l.replicas.live(ctx, now)
	if err != nil {
		return soon, err
	}
	l.forgetReplicas(ctx, dead)
	view := &podWebhookView{catalog: catalog, programs: catalog.Programs(), replicas: live, rival: l.webhooks.options.Rivals.Injector(), unproven: map[int]string{}, paced: map[int]bool{}, now: now}
	l.plan(view)
	if !view.rival.ClaimsEntries() && !l.webhooks.options.Static {
		err = l.write(ctx, view)
		view.problem = err
		l.tellMissing(view)
		l.prove(ctx, view)
	}
	next := later
	if unsettled := l.judge(ctx, view); err != nil || unsettled {
		next = soon
	}
	if view.due > 0 {
		next = min(next, view.due)
	}
	return next, err
}

// podWebhookView is what one pass knows.
type podWebhookView struct {
	catalog  *match.Snapshot
	programs []*inject.Program
	wanted   []entries.Entry
	replicas []propagation.Replica
	rival    *rival.Injector
	overflow *entries.Entry
	layout   entries.Layout
	settings *entries.Settings // nil if there are none
	now      time.Time
	unproven map[int]string // what API servers say, by configuration
	paced    map[int]bool   // configurations that are not written now
	problem  error          // why something could not be written
	waiting  bool           // something changes by time alone
	due      time.Duration  // something changes after it; 0 if that is not known
	homeless []string       // SidecarSets whose entries stand nowhere, since no object can be written
}

// plan finds out what each SidecarSet needs, and since when it says so.
func (l *podWebhookLeader) plan(v *podWebhookView) {
	names := make(map[string]bool, len(v.programs))
	for _, program := range v.programs {
		name := program.Name()
		names[name] = true
		known, ok := l.planned[name]
		if history := v.catalog.History(name); !ok || known.program != program || known.history != history {
			known = plannedEntry{program: program, history: history, refuse: whyRefused(program, history)}
			known.nothing = validation.SelectsNothing(&program.Set.Spec, l.webhooks.options.Settings.ExcludedNamespaces)
			known.entry, known.err = entries.Of(program.Set)
			l.planned[name] = known
			l.noteVersion(program)
		}
		if known.err == nil {
			v.wanted = append(v.wanted, known.entry)
		}
	}
	v.wanted = entries.Combine(v.wanted)
	l.webhooks.m.entries.Set(float64(len(v.wanted)))
	maps.DeleteFunc(l.planned, func(name string, _ plannedEntry) bool { return !names[name] })
	maps.DeleteFunc(l.versions, func(name string, _ firstVersion) bool { return !names[name] })
}

// whyRefused asks the engine why it would refuse every Pod: what it says of one
// in which nothing is, if that cannot be for want of what may be in others.
func whyRefused(program, history *inject.Program) error {
	_, err := inject.Compute(inject.Input{
		Pod:        inject.PodView{Labels: sampleLabels(program.Set.Spec.Selector), Parts: ^inject.Parts(0)},
		Candidates: []inject.Candidate{{Current: program, History: history}},
		Known:      func(string) bool { return true },
	})
	var invalid *inject.InvalidError
	var missing *inject.RevisionError
	var conflict *inject.ConflictError
	if errors.As(err, &invalid) || errors.As(err, &missing) || errors.As(err, &conflict) {
		return err
	}
	return nil
}

// noteVersion remembers since which resourceVersion a SidecarSet says what it
// says. Its status may tell that all replicas knew that under an earlier leader.
func (l *podWebhookLeader) noteVersion(program *inject.Program) {
	set := program.Set
	content := fmt.Sprint(set.UID, set.Generation, set.Annotations, set.Spec.CustomVersion)
	known, ok := l.versions[set.Name]
	if ok && known.content == content {
		return
	}
	version, err := propagation.ParseVersion(set.ResourceVersion)
	if err != nil {
		version = 0 // there is no order to wait for
	}
	if ready := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady); !ok && ready != nil &&
		ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == set.Generation {
		version = 0
	}
	l.versions[set.Name] = firstVersion{content, version}
}

// proveTimeout bounds how long a pass waits for API servers.
const proveTimeout = 500 * time.Millisecond

// prove asks API servers for the configurations whose entries wait for it.
func (l *podWebhookLeader) prove(ctx context.Context, v *podWebhookView) {
	ctx, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()
	asked := map[int]bool{}
	for _, p := range l.placed {
		c := v.layout[p.configuration]
		if c == nil || asked[p.configuration] || len(v.replicas) == 0 || l.webhooks.barrier.passed(c.Name, p.serial) {
			continue
		}
		asked[p.configuration] = true
		if err := l.webhooks.barrier.await(ctx, c.Name, entries.Serial(c)); err != nil {
			v.unproven[p.configuration] = err.Error()
		}
	}
}

// forgetReplicas deletes what replicas that are long gone have left.
func (l *podWebhookLeader) forgetReplicas(ctx context.Context, dead []*coordinationv1.Lease) {
	for _, lease := range dead {
		err := l.writer.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
		if err = client.IgnoreNotFound(err); err != nil {
			log.FromContext(ctx).V(1).Info("Could not delete the Lease of a replica that is gone", "Lease", klog.KObj(lease), "reason", err.Error())
		}
	}
}
