package entries

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=sidecarsets.apps.kruise.io,verbs=get

// Snapshots are the source of the snapshots that the leader uses.
type Snapshots interface {
	// Current returns the latest snapshot; nil as long as there is none.
	Current() *match.Snapshot
	// Notify makes every later snapshot send on the channel, without waiting for a
	// receiver. It is called before the manager starts.
	Notify(changed chan<- struct{})
}

// leader maintains the webhook entries that the stored SidecarSets need, and decides
// for each SidecarSet whether the next Pod will be injected. It is level based: a pass
// reads the whole state, and each change requests another pass. Only the goroutine of
// Start uses the fields from replicas on.
type leader struct {
	webhooks *Keeper
	sets     Snapshots
	live     client.Reader
	writer   client.Client
	again    chan struct{} // has capacity 1
	began    time.Time

	calls    callWatch
	probe    *podProbe // nil if no Pods are tried
	replicas replicaWatch

	promises promises // observe begins them, plan and apply keep them
	places   places   // of plan and apply
	refused  refusals // of apply
	memory   memory   // of plan
	paces    paces    // of plan and apply
	// unprovenTries is how often apply has kept provisional entries.
	unprovenTries int
}

// paces limit the writes of each configuration.
type paces [entryplan.MaxConfigurations + 1]*rate.Limiter

func newLeader(w *Keeper, sets Snapshots, live client.Reader, writer client.Client) *leader {
	settings := &w.options.Settings
	return &leader{
		webhooks: w, sets: sets, live: live, writer: writer, again: make(chan struct{}, 1), began: time.Now(),
		replicas: replicaWatch{live: live, service: settings.Service, assumed: w.options.ServesWebhooks || settings.URL != ""},
		promises: promises{}, places: places{entries: map[string]place{}}, refused: refusals{}, memory: memory{windows: entryplan.Windows{}}, paces: newPaces(),
	}
}

func (l *leader) wake() { snapshot.Signal(l.again) }

func newPaces() (p paces) {
	for i := range p {
		perSecond := rate.Limit(writesPerSecond)
		if i == entryplan.Provisional {
			perSecond = provisionalWritesPerSecond // each SidecarSet that is stored is two
		}
		p[i] = rate.NewLimiter(perSecond, writesAtOnce)
	}
	return p
}

// NeedLeaderElection reports true: entries are removed by one process only.
func (*leader) NeedLeaderElection() bool { return true }

const (
	// minPassPause paces passes while much changes.
	minPassPause = 5 * time.Millisecond
	// soon is the time until the next pass if something is not done or not ready; later is
	// that time otherwise.
	soon  = 500 * time.Millisecond
	later = 10 * time.Second
	// definitionRecheck is how often the CustomResourceDefinition is read while there
	// are SidecarSets.
	definitionRecheck = 5 * time.Second
	// If all entries of an object are new, the leader writes the object twice for each. See
	// edits for objects that another program keeps editing.
	writesAtOnce    = 2 * entryplan.MaxEntries
	writesPerSecond = 1

	provisionalWritesPerSecond = 40
)

// Start keeps entries and readiness up to date, and guards the manifests' configurations,
// until ctx ends.
func (l *leader) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("pod-webhooks")
	ctx = log.IntoContext(ctx, logger)
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { l.calls.run(ctx, l.webhooks.barrier, l.barrierToAsk, l.wake) })
	others.Go(func() { l.guardManifests(ctx) })
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
	select {
	case <-ctx.Done():
		return false
	case <-time.After(minPassPause):
	}
	select {
	case <-ctx.Done():
		return false
	case <-l.again:
	case <-time.After(next):
	}
	return true
}

// pass reads the whole state once, writes what differs, and returns the time until the
// next pass if nothing changes. Its phases are observe, plan, apply, prove and judge.
func (l *leader) pass(ctx context.Context) (next time.Duration, err error) {
	v := l.observe(ctx)
	if v == nil {
		return soon, nil
	}
	if !v.rival.ClaimsEntries() && !l.webhooks.options.Static {
		err := l.write(ctx, v)
		v.problem = errors.Join(v.problem, err)
		l.prove(ctx, v)
	}
	l.judge(ctx, v)
	return v.next, v.problem
}

// writeTimeout is the timeout of the writes of one pass. After them, the pass proves and
// judges: an API server that accepts requests and does not answer must not delay a change
// of Ready.
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

// view is the state that one pass has read. Each phase adds values that later phases need.
type view struct {
	// Of observe.
	now     time.Time
	catalog *match.Snapshot
	wanted  []entryplan.Entry
	served  bool // some replica can answer
	rival   *rival.Injector

	// Of plan and apply.
	settings *entryplan.Settings // nil if there are none
	overflow *entryplan.Entry
	layout   entryplan.Layout // as it is after the last write
	paced    map[int]bool     // configurations that are not written now
	problem  error            // why a write has failed

	// Of prove.
	unproven map[int]string // what API servers say, by configuration

	next time.Duration // when the next pass begins at the latest
}

// wakeAfter has the next pass begin after a time at the latest.
func (v *view) wakeAfter(d time.Duration) { v.next = min(v.next, max(d, time.Millisecond)) }

// observe finds out which entries SidecarSets need, and since when. It returns nil while
// there is no snapshot, or while Rivals has not looked for another injector yet.
func (l *leader) observe(ctx context.Context) *view {
	catalog, options := l.sets.Current(), &l.webhooks.options
	if catalog == nil || options.Rivals.Ready(nil) != nil {
		return nil
	}
	v := &view{
		now: time.Now(), catalog: catalog, rival: options.Rivals.Injector(), layout: l.webhooks.store.current(),
		paced: map[int]bool{}, unproven: map[int]string{}, next: later,
	}
	v.served = l.replicas.any(ctx, v.now)
	v.wanted = l.promises.observe(catalog, options.Settings.ExcludedNamespaces, v.now)
	l.webhooks.m.entries.Set(float64(len(v.wanted)))
	return v
}

// required returns the configuration with the entry of a SidecarSet, and the lowest serial
// of it that API servers have to use; false if it is not written yet.
func (l *leader) required(v *view, p *promise) (placement, bool) {
	placed, ok := l.places.of(p.servedBy(v.overflow))
	if !ok || v.layout[placed.configuration] == nil || !p.known && p.written.serial == 0 {
		return placed, false
	}
	if p.written.configuration == placed.configuration {
		placed.serial = max(placed.serial, p.written.serial)
	}
	return placed, true
}

// proveTimeout bounds how long a pass waits for API servers.
const proveTimeout = 500 * time.Millisecond

// prove asks API servers whether they use the configurations that SidecarSets need.
func (l *leader) prove(ctx context.Context, v *view) {
	ctx, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()
	asked := map[int]bool{}
	for _, program := range v.catalog.Programs() {
		needs, ok := l.required(v, l.promises[program.Name()])
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
