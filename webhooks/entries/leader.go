package entries

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/internal/validation"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=sidecarsets.apps.kruise.io,verbs=get

// Snapshots are what the leader decides by.
type Snapshots interface {
	// Current returns the latest snapshot; nil as long as there is none.
	Current() *match.Snapshot
	// Notify makes every later snapshot send on the channel, without waiting for a
	// receiver. It is called before the manager starts.
	Notify(changed chan<- struct{})
	// Problem says why the SidecarSet of that name cannot be used as it is stored; nil if
	// it can.
	Problem(name string) error
}

// leader keeps the webhook entries as the stored SidecarSets want them
// and says of each SidecarSet whether the next Pod will be injected. It is level
// based: a pass looks at everything, and whatever changes asks for another one.
// Only the goroutine of Start uses the fields below the line.
type leader struct {
	webhooks *Keeper
	sets     Snapshots
	live     client.Reader
	writer   client.Client
	board    *Board
	again    chan struct{} // has capacity 1

	calls    callWatch
	probe    *podProbe // nil if no Pods are tried
	replicas replicaWatch
	planned  map[string]plannedEntry // by SidecarSet
	claims   map[string]claim        // by SidecarSet
	windows  entryplan.Windows
	placed   map[string]placement // by entry
	lost     map[string]bool      // entries that another program removed or changed
	refused  map[string]refusal   // by entry
	paces    [entryplan.MaxConfigurations + 1]flowcontrol.PassiveRateLimiter
	edits    [entryplan.MaxConfigurations + 1]edits

	provisional   entryplan.ProvisionalRoom
	unprovenTries int // how often provisional entries have been kept

	// anew says that this leader has recorded that any SidecarSet may be on its way: the one
	// before it may have been of a version that records no names.
	anew bool

	definitionSeen time.Time // when the CustomResourceDefinition was last there
}

// plannedEntry is what a Program needs, remembered by its identity and that of
// the recorded revision that it injects.
type plannedEntry struct {
	program, history *inject.Program

	entry   entryplan.Entry
	err     error  // why there is none
	refuse  error  // why no Pod can be injected
	nothing string // why no Pod can be selected
}

// claim is what the leader knows of one content of a SidecarSet. Ready waits for the
// entry as the leader wrote it for that content: an older serial may be on /pods at an
// API server that is behind, and a leader that was replaced may be about to put it
// there.
type claim struct {
	content content
	since   time.Time // when the leader first saw it
	known   bool      // its status says that an earlier leader found it Ready
	// recorded says that the name was recorded for it, so that replicas look it up.
	recorded bool
	written  placement // where, and with which serial; zero before
}

// content identifies what a SidecarSet says about new Pods.
type content struct {
	uid           types.UID
	generation    int64
	annotations   string
	customVersion string
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
func (w *Keeper) AddLeader(mgr ctrl.Manager, sets Snapshots) error {
	l := &leader{
		webhooks: w,
		sets:     sets,
		live:     mgr.GetAPIReader(),
		writer:   mgr.GetClient(),
		board:    newBoard(),
		again:    make(chan struct{}, 1),
		replicas: replicaWatch{live: mgr.GetAPIReader(), service: w.options.Settings.Service, assumed: w.options.ServesWebhooks || w.options.Settings.URL != ""},
		planned:  map[string]plannedEntry{},
		claims:   map[string]claim{},
		windows:  entryplan.Windows{},
		placed:   map[string]placement{},
		lost:     map[string]bool{},
		refused:  map[string]refusal{},
	}
	l.setPaces()
	if w.options.ProbeNamespace != "" {
		l.probe = newPodProbe(w.options.ProbeNamespace, mgr.GetClient(), l.wake)
	}
	w.leader = l
	sets.Notify(l.again)
	w.options.Rivals.Notify(l.again)
	return mgr.Add(l)
}

func (l *leader) wake() { signal(l.again) }

func (l *leader) setPaces() {
	for i := range l.paces {
		perSecond := float32(writesPerSecond)
		if i == entryplan.Provisional {
			perSecond = provisionalWritesPerSecond // each SidecarSet that is stored is two
		}
		l.paces[i] = flowcontrol.NewTokenBucketPassiveRateLimiter(perSecond, writesAtOnce)
	}
}

// NeedLeaderElection reports true: entries are removed by one process only.
func (*leader) NeedLeaderElection() bool { return true }

const (
	// minPassPause paces passes while much changes.
	minPassPause = 5 * time.Millisecond
	// soon is when to look again while something is left to wait for, later
	// while nothing is.
	soon  = 500 * time.Millisecond
	later = 10 * time.Second
	// definitionRecheck is how often the CustomResourceDefinition is read while there
	// are SidecarSets.
	definitionRecheck = 5 * time.Second
	// An object is written twice for each of its entries when all of them are new.
	// Whoever goes on to change what was restored is not followed faster than this.
	writesAtOnce    = 2 * entryplan.MaxEntries
	writesPerSecond = 1

	provisionalWritesPerSecond = 40
)

// Start keeps entries and readiness true until ctx ends.
func (l *leader) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("pod-webhooks")
	ctx = log.IntoContext(ctx, logger)
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() { l.calls.run(ctx, l.webhooks.barrier, l.wake) })
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
func (l *leader) rest(ctx context.Context, next time.Duration) bool {
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

// pass looks at everything once, writes what differs, and returns how soon to look again
// if nothing happens. Its phases are observe, plan, apply, prove and judge.
func (l *leader) pass(ctx context.Context) (next time.Duration, err error) {
	v := l.observe(ctx)
	if v == nil {
		return soon, nil
	}
	if !v.rival.ClaimsEntries() && !l.webhooks.options.Static {
		v.problem = errors.Join(v.problem, l.write(ctx, v))
		l.prove(ctx, v)
	}
	next = later
	if unsettled := l.judge(ctx, v); v.problem != nil || unsettled {
		next = soon
	}
	if v.due > 0 {
		next = min(next, v.due)
	}
	return next, v.problem
}

// writeTimeout bounds what one pass asks of API servers before it proves and judges: one
// that accepts requests and does not answer must not keep Ready as it is.
const writeTimeout = 5 * time.Second

// write plans and applies.
func (l *leader) write(ctx context.Context, v *view) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	plan, err := l.plan(ctx, v)
	if err != nil {
		return err
	}
	return l.apply(ctx, v, plan)
}

// view is what one pass knows.
type view struct {
	catalog  *match.Snapshot
	programs []*inject.Program
	wanted   []entryplan.Entry
	served   bool // some replica can answer
	rival    *rival.Injector
	overflow *entryplan.Entry
	layout   entryplan.Layout
	settings *entryplan.Settings // nil if there are none
	now      time.Time
	unproven map[int]string // what API servers say, by configuration
	paced    map[int]bool   // configurations that are not written now
	problem  error          // why something could not be written
	complete *bool          // a live list showed that programs are all that is stored; nil if not asked
	waiting  bool           // something changes by time alone
	due      time.Duration  // something changes after it; 0 if that is not known
}

// observe finds out what each SidecarSet needs, and since when it says so; nil while
// there is no snapshot, or other injectors are not known.
func (l *leader) observe(ctx context.Context) *view {
	catalog := l.sets.Current()
	if catalog == nil || l.webhooks.options.Rivals.Ready(nil) != nil {
		return nil
	}
	v := &view{
		catalog: catalog, programs: catalog.Programs(), layout: l.webhooks.store.current(), rival: l.webhooks.options.Rivals.Injector(),
		unproven: map[int]string{}, paced: map[int]bool{}, now: time.Now(),
	}
	v.served = l.replicas.any(ctx, v.now)
	names := make(map[string]bool, len(v.programs))
	for _, program := range v.programs {
		name := program.Name()
		names[name] = true
		known, ok := l.planned[name]
		if history := v.catalog.History(name); !ok || known.program != program || known.history != history {
			known = plannedEntry{program: program, history: history, refuse: whyRefused(program, history)}
			known.nothing = validation.SelectsNothing(&program.Set.Spec, l.webhooks.options.Settings.ExcludedNamespaces)
			known.entry, known.err = entryplan.Of(program.Set)
			l.planned[name] = known
			l.noteContent(program, v.now)
		}
		if known.err == nil {
			v.wanted = append(v.wanted, known.entry)
		}
	}
	v.wanted = entryplan.Combine(v.wanted)
	l.webhooks.m.entries.Set(float64(len(v.wanted)))
	maps.DeleteFunc(l.planned, func(name string, _ plannedEntry) bool { return !names[name] })
	maps.DeleteFunc(l.claims, func(name string, _ claim) bool { return !names[name] })
	return v
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

// noteContent begins a claim if a SidecarSet says something new. Its status may tell
// that it was Ready under an earlier leader.
func (l *leader) noteContent(program *inject.Program, now time.Time) {
	set := program.Set
	content := content{set.UID, set.Generation, fmt.Sprint(set.Annotations), set.Spec.CustomVersion}
	before, ok := l.claims[set.Name]
	if ok && before.content == content {
		return
	}
	ready := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
	known := !ok && ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == set.Generation
	l.claims[set.Name] = claim{content: content, since: now, known: known}
}

// claimed names the entries to write for SidecarSets whose claim is open.
func (l *leader) claimed() map[string]bool {
	claimed := map[string]bool{}
	for name, c := range l.claims {
		if planned := l.planned[name]; planned.err == nil && !c.known && c.recorded && c.written.serial == 0 {
			claimed[planned.entry.Name] = true
		}
	}
	return claimed
}

// noteClaims ends the claims that a change, which was written, has made good.
func (l *leader) noteClaims(v *view, change entryplan.Change) {
	layout := entryplan.Layout{}
	layout[change.Index] = change.Object
	for name, c := range l.claims {
		if c.known || !c.recorded || c.written.serial != 0 {
			continue
		}
		if _, _, ok := layout.Locate(l.entryOf(v, name)); ok {
			c.written = placement{change.Index, entryplan.Serial(change.Object)}
			l.claims[name] = c
		}
	}
}

// entryOf is the name of the entry that API servers call us by for a SidecarSet.
func (l *leader) entryOf(v *view, sidecarSet string) string {
	if l.coarse(v, sidecarSet) {
		return v.overflow.Name
	}
	return l.planned[sidecarSet].entry.Name
}

// required is the configuration that a SidecarSet needs to be in force, and the least
// serial that API servers have to use; false if that is not written yet.
func (l *leader) required(v *view, sidecarSet string) (placement, bool) {
	placed, ok := l.placed[l.entryOf(v, sidecarSet)]
	claim := l.claims[sidecarSet]
	if !ok || v.layout[placed.configuration] == nil || !claim.known && claim.written.serial == 0 {
		return placed, false
	}
	if claim.written.configuration == placed.configuration {
		placed.serial = max(placed.serial, claim.written.serial)
	}
	return placed, true
}

// proveTimeout bounds how long a pass waits for API servers.
const proveTimeout = 500 * time.Millisecond

// prove asks API servers for the configurations whose entries wait for it.
func (l *leader) prove(ctx context.Context, v *view) {
	ctx, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()
	asked := map[int]bool{}
	for _, program := range v.programs {
		needs, ok := l.required(v, program.Name())
		if !ok || asked[needs.configuration] || !v.served {
			continue
		}
		c := v.layout[needs.configuration]
		if l.webhooks.barrier.passed(c.Name, needs.serial) {
			continue
		}
		asked[needs.configuration] = true
		if err := l.webhooks.barrier.await(ctx, c.Name, entryplan.Serial(c)); err != nil {
			v.unproven[needs.configuration] = err.Error()
		}
	}
}
