package registration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=sidecarsets.apps.kruise.io,verbs=get

// leader maintains the Pod webhooks that the stored SidecarSets need, and decides
// for each SidecarSet whether the next Pod will be injected. It is level based: a pass
// reads the whole state, and each change requests another pass. Only the goroutine of
// Start uses the fields from replicas on.
type leader struct {
	options   Options
	shards    *Shards
	store     store
	cached    cached
	prober    *prober
	m         *webhookMetrics
	board     *ReadinessCache
	registrar *Registrar // has the settings, and writes shards
	live      client.Reader
	again     chan struct{} // has capacity 1
	ask       chan struct{} // has capacity 1; a shard that SidecarSets need has another serial

	replicas replicaWatch

	namespace      types.UID // of the operator's Namespace, as last read
	sets           storedSets
	enforcing      enforcing
	reviews        podwebhook.Reviews
	states         [podwebhook.Shards]shardState
	pauses         workqueue.TypedRateLimiter[int] // between writes of a shard that others cause
	bundle         []byte                          // the last one that was wanted
	definitionSeen time.Time                       // when the CustomResourceDefinition was last found
}

func newLeader(w *Registrar, live client.Reader) *leader {
	settings := &w.options.Settings
	l := &leader{
		options: w.options, shards: w.shards, store: w.store, cached: w.cached, prober: w.prober, m: w.m, board: &w.cache, registrar: w,
		live: live, again: make(chan struct{}, 1), ask: make(chan struct{}, 1),
		replicas: replicaWatch{live: live, service: settings.Service, assumed: w.options.ServesWebhooks || settings.URL != ""},
		sets:     storedSets{}, reviews: podwebhook.Reviews{}, pauses: workqueue.NewTypedItemExponentialFailureRateLimiter[int](time.Second, longestRest),
	}
	l.shards.Notify(l.again)
	l.store.Notify(l.again)
	l.options.Injectors.Notify(l.again)
	if l.options.BundleChanged != nil {
		l.options.BundleChanged(l.again)
	}
	return l
}

func (l *leader) wake() { snapshot.Signal(l.again) }

// NeedLeaderElection reports true: dependencies are removed by one process only.
func (*leader) NeedLeaderElection() bool { return true }

const (
	// minPassPause paces passes while much changes.
	minPassPause = 5 * time.Millisecond
	// soon is the time until the next pass if something is not done or not ready; later is
	// that time otherwise.
	soon  = 500 * time.Millisecond
	later = 10 * time.Second
	// lookInterval is the time between two questions to all API servers: which serials they use,
	// and whether they get answers.
	lookInterval = 10 * time.Second
	// definitionRecheck is how often the CustomResourceDefinition is read while there
	// are SidecarSets.
	definitionRecheck = 5 * time.Second
)

// Start keeps webhooks and readiness up to date until ctx ends.
func (l *leader) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("pod-webhooks")
	ctx = log.IntoContext(ctx, logger)
	if err := l.awaitUninstalling(ctx); err != nil {
		return err
	}
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { l.look(ctx) })
	problem := ""
	for {
		next, err := l.pass(ctx)
		switch {
		case err != nil && ctx.Err() == nil && err.Error() != problem:
			logger.Info("Failed to reconcile the Pod webhooks", "reason", err.Error())
			problem = err.Error()
		case err == nil:
			problem = ""
		}
		if !l.rest(ctx, next) {
			return nil
		}
	}
}

// awaitUninstalling has a pass begin when the operator's Namespace is being deleted. Then the Pods of
// the operator are, too: the process has a few seconds left. The snapshot tells of labels only.
func (l *leader) awaitUninstalling(ctx context.Context) error {
	namespaces := snapshot.Metadata(corev1.SchemeGroupVersion.WithKind("Namespace"))
	_, err := snapshot.Follow(ctx, l.cached, namespaces, func(name string, now, _ *metav1.PartialObjectMetadata) {
		if name == l.options.Settings.Namespace && now != nil && now.DeletionTimestamp != nil {
			l.wake()
		}
	})
	return err
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

// look asks API servers until ctx ends: about serials that are not propagated, again after pauses that
// grow, and about all shards at intervals. An API server may go back to an older copy of a shard
// after it was known to use a newer one.
func (l *leader) look(ctx context.Context) {
	all := time.Now() // when it asks about all shards
	for pause := firstProbePause; ; {
		propagated, err := l.askUnpropagated(ctx)
		if !time.Now().Before(all) {
			err = errors.Join(err, l.lookAround(ctx))
			all = time.Now().Add(lookInterval)
		}
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).V(1).Info("Failed to ask API servers which Pod webhooks they use", "reason", err.Error())
		}
		l.wake()
		next := time.Until(all)
		if !propagated {
			next = min(next, pause)
		}
		pause = min(2*pause, lookInterval)
		select {
		case <-ctx.Done():
			return
		case <-l.ask:
			pause = firstProbePause
		case <-time.After(next):
		}
	}
}

func (l *leader) askUnpropagated(ctx context.Context) (propagated bool, err error) {
	if l.options.Static {
		return true, nil
	}
	shards := l.shards.All()
	return l.prober.askUnpropagated(ctx, newest(&shards, false))
}

func (l *leader) lookAround(ctx context.Context) error {
	if l.options.Static {
		return l.prober.look(ctx, [podwebhook.Shards]*podwebhook.Shard{}, l.options.Injectors.HasStaticProbe())
	}
	return l.prober.look(ctx, l.shards.All(), false)
}

// pass reads the whole state once, writes what differs, and returns the time until the
// next pass if nothing changes. Its phases are observe, keep, prove and judge.
func (l *leader) pass(ctx context.Context) (next time.Duration, err error) {
	v := l.observe(ctx)
	if v == nil {
		return soon, nil
	}
	if !l.options.Static {
		v.problem = l.keep(ctx, v)
		l.prove(v)
	}
	l.judge(ctx, v)
	return v.next, v.problem
}

// view is the state that one pass has read.
type view struct {
	now      time.Time
	snapshot *match.Snapshot
	shards   [podwebhook.Shards]*podwebhook.Shard // as they are after the writes of this pass
	absent   [podwebhook.Shards]error             // why there is no version of a shard that has to have webhooks
	base     *podwebhook.Settings                 // settings, but for the bundle; nil if there are none
	settings *podwebhook.Settings                 // nil if there are none
	inUse    map[string]bool                      // the webhooks that SidecarSets need
	served   bool                                 // some replica can answer
	other    *injectors.Injector
	reads    int   // of SidecarSets
	problem  error // why a write has failed

	unsettled error // why there are no base settings

	next time.Duration // when the next pass begins at the latest
}

// wakeAfter has the next pass begin after a time at the latest.
func (v *view) wakeAfter(d time.Duration) { v.next = min(v.next, max(d, time.Millisecond)) }

// observe finds out which webhooks SidecarSets need. It returns nil while there is no snapshot, or
// while Injectors has not looked for another injector yet.
func (l *leader) observe(ctx context.Context) *view {
	store := l.store.Current()
	if store == nil || l.options.Injectors.Ready(nil) != nil {
		return nil
	}
	v := &view{now: time.Now(), snapshot: store, other: l.options.Injectors.Injector(), shards: l.shards.All(), next: later}
	v.served = l.replicas.any(ctx, v.now)
	l.reviews.Observe(&v.shards, v.now)
	l.observeEnforcing(v)
	if v.base, v.unsettled = l.registrar.settings(ctx); v.base != nil {
		l.namespace = v.base.NamespaceUID
	}
	wanted := podwebhook.Combine(l.namespace, l.sets.observe(store, l.options.Settings.ExcludedNamespaces, v.now))
	webhooks, unstored := 0, 0
	v.inUse = map[string]bool{}
	for i := range wanted {
		for at := range wanted[i] {
			v.inUse[wanted[i][at].Name] = true
		}
		st := &l.states[i]
		if !reflect.DeepEqual(st.want.webhooks, wanted[i]) {
			st.want.webhooks, st.want.changed, st.want.done = wanted[i], true, nil
		}
		webhooks += len(st.want.webhooks)
		if s := v.shards[i]; s != nil {
			for _, name := range s.Webhooks() {
				if !slices.ContainsFunc(st.want.webhooks, func(e podwebhook.Webhook) bool { return e.Name == name }) {
					unstored++
				}
			}
		}
	}
	l.m.webhooks.Set(float64(webhooks))
	l.m.unstored.Set(float64(unstored))
	return v
}

// keepTimeout bounds the reads and writes of one pass. After them, the pass proves and judges:
// an API server that accepts requests and does not answer must not delay a change of Ready.
const keepTimeout = 5 * time.Second

// keep brings the shards up to date.
func (l *leader) keep(ctx context.Context, v *view) error {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	going, err := l.uninstalling(ctx, v)
	if err != nil {
		return err
	}
	var errs []error
	for i := range v.shards {
		if going {
			errs = append(errs, l.removeAll(ctx, v, i))
		} else {
			errs = append(errs, l.keepShard(ctx, v, i))
		}
	}
	return errors.Join(errs...)
}

// uninstalling reports whether the operator is being uninstalled: its Namespace is being
// deleted, or the CustomResourceDefinition is deleted with all SidecarSets. If the operator's
// webhooks stayed, API servers would refuse Pods, because no replica could answer.
func (l *leader) uninstalling(ctx context.Context, v *view) (bool, error) {
	if errors.Is(v.unsettled, errUninstalling) {
		return true, nil
	}
	if v.unsettled != nil {
		return false, v.unsettled
	}
	if err := l.isOurs(ctx, v); err != nil {
		return false, err
	}
	settings := v.base
	if settings.Bundle = l.options.Bundle(); len(settings.Bundle) == 0 {
		return false, errors.New("there is no CA bundle yet")
	}
	if !bytes.Equal(settings.Bundle, l.bundle) {
		l.bundle = settings.Bundle
		for i := range l.states {
			l.states[i].want.changed, l.states[i].want.done = true, nil
		}
	}
	v.settings = settings
	return l.definitionIsGone(ctx, v)
}

// isOurs is an error if the operator's Namespace was recreated, and this process has not noticed. Then it
// would have webhooks in other shards than the processes that have. It asks if another process has found
// shards in another way.
func (l *leader) isOurs(ctx context.Context, v *view) error {
	own := v.base.NamespaceUID
	if !slices.ContainsFunc(v.shards[:], func(s *podwebhook.Shard) bool { return s != nil && s.Namespace != podwebhook.ShortUID(own) }) {
		return nil
	}
	namespaces := &metav1.PartialObjectMetadataList{} // the leader may list them
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := l.live.List(ctx, namespaces, client.MatchingFields{"metadata.name": v.base.Namespace}); err != nil {
		return fmt.Errorf("reading Namespace %s: %w", v.base.Namespace, err)
	}
	if !slices.ContainsFunc(namespaces.Items, func(n metav1.PartialObjectMetadata) bool { return n.UID == own }) {
		return fmt.Errorf("Namespace %s was created again; waiting for its watch", v.base.Namespace)
	}
	return nil
}

// definitionIsGone reports whether SidecarSets have no CustomResourceDefinition. The
// snapshot cannot tell: an API server may end the watch of SidecarSets before it has
// sent all deletions, and the last SidecarSets that the snapshot has observed then stay in it.
func (l *leader) definitionIsGone(ctx context.Context, v *view) (bool, error) {
	recheck := definitionRecheck
	if len(v.snapshot.SidecarSets()) == 0 {
		recheck = later // shards have a probe webhook even so
	}
	if v.now.Sub(l.definitionSeen) < recheck {
		return false, nil
	}
	crd := snapshot.Metadata(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	switch err := l.live.Get(ctx, client.ObjectKey{Name: appsv1beta1.Resource.GroupResource().String()}, crd); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading the CustomResourceDefinition: %w", err)
	}
	l.definitionSeen = v.now
	return false, nil
}

// removeAll empties a shard.
func (l *leader) removeAll(ctx context.Context, v *view, i int) error {
	if v.shards[i] == nil {
		return nil
	}
	next := v.shards[i].RemoveAll()
	if next == nil {
		return nil
	}
	return l.writePlan(ctx, v, i, podwebhook.Plan{Next: next}, write)
}

// prove notes which shards are not propagated, and makes look ask API servers about those that have another
// serial than before.
func (l *leader) prove(v *view) {
	for i, s := range v.shards {
		st := &l.states[i]
		st.proof.unpropagated = nil
		if s == nil || s.Serial == 0 || !v.served {
			continue
		}
		if st.proof.unpropagated = l.prober.unpropagated(i, s.Serial); st.proof.unpropagated == nil {
			st.proof.last = s.Serial
		}
		if st.proof.serial != s.Serial {
			st.proof.serial, st.proof.since = s.Serial, v.now
			snapshot.Signal(l.ask)
		}
	}
}
