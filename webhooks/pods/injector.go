package pods

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/internal/review"
	"github.com/sidecarset/operator/webhooks/server"
)

// Options is what an Injector needs.
type Options struct {
	// Snapshot returns the newest snapshot; nil until there is one.
	Snapshot func() *match.Snapshot
	// Ensure returns nil once Snapshot has observed what a call with that number of a shard requires
	// for a Pod with these labels, and otherwise the reason why it cannot.
	Ensure func(ctx context.Context, shard int, number uint64, pod labels.Labels) error
	// Know returns nil once Snapshot has observed these SidecarSets as they were stored at some moment
	// after the call.
	Know func(ctx context.Context, names []string) error
	// Namespaces reads Namespaces from the API server, not from a cache.
	Namespaces client.Reader
	// Revision asks the API server, not a cache, for the revision that a SidecarSet refers to.
	// It returns nil if that revision is not recorded.
	Revision func(context.Context, *inject.Compiled) (*appsv1.ControllerRevision, error)
	// KeepsPodResources reports whether API servers keep spec.resources of Pods. It is called
	// before a Pod is denied because of them. If it is nil, they do.
	KeepsPodResources func(context.Context) bool
	// ExcludedNamespaces are left alone even if the API server sends their Pods.
	ExcludedNamespaces []string
	// Clock gives the times of injection that Pods record; the real clock if nil.
	Clock clock.PassiveClock
	// Draw returns a random number in [0,1) for the choice between a SidecarSet and its
	// recorded revision. By default, no client can foresee it.
	Draw func() float64
	// OtherInjector returns another injector that is live; nil if there is none. The Injector
	// leaves the Pods of another injector alone.
	OtherInjector func() *injectors.Injector
	// RecordEvent writes an Event about a conflict, or about what a Pod does not get, at a
	// limited rate. It does not wait.
	RecordEvent func(events.Event)
	// Registry takes the metrics; they are not exposed if nil.
	Registry prometheus.Registerer
}

// Injector answers the AdmissionReviews of Pods that are being created. It is safe
// for concurrent use, has no side effects but Events, and answers every request
// exactly once.
//
// It allows a Pod that no SidecarSet selects. Errors are of two kinds. A conflict
// that the owner of a SidecarSet or of the Pod has to resolve is a denial with a
// message for them. If the request cannot be understood, or this replica cannot
// tell which SidecarSets select the Pod or what they inject, the answer is an HTTP
// error, to which the API server applies the failure policy.
type Injector struct {
	options    Options
	namespaces *liveNamespaces
	revisions  *liveRevisions
	metrics    *podMetrics
}

// NewInjector returns an Injector.
func NewInjector(options Options) *Injector {
	options.Clock = cmp.Or[clock.PassiveClock](options.Clock, clock.RealClock{})
	if options.Draw == nil {
		options.Draw = rand.Float64
	}
	if options.KeepsPodResources == nil {
		options.KeepsPodResources = func(context.Context) bool { return true }
	}
	options.ExcludedNamespaces = slices.Clone(options.ExcludedNamespaces)
	return &Injector{
		options, newLiveNamespaces(options.Namespaces), newLiveRevisions(options.Revision, options.Clock), newPodMetrics(options.Registry, options.Snapshot),
	}
}

// call is what the path of a request says.
type call struct {
	// static: the call came by an administrator's webhook, which does not say what must be known.
	static bool
	shard  int
	number uint64
}

// Handle is the server.Handler of podwebhook.PathPods and of the paths that podwebhook.PodsPath makes.
func (i *Injector) Handle(ctx context.Context, w http.ResponseWriter, r server.Request) error {
	start := i.options.Clock.Now()
	c := call{static: r.Path == podwebhook.PathPods}
	if !c.static {
		var ok bool
		if c.shard, c.number, ok = podwebhook.ParsePodsPath(r.Path); !ok {
			i.metrics.observe(resultInvalid, i.options.Clock.Since(start))
			return server.Malformed("path", "", errors.New("no Pod webhook has it"))
		}
	}
	reader := readers.Get().(*review.Reader)
	v := i.decide(ctx, reader, r.Body, c)
	if errors.Is(ctx.Err(), context.Canceled) {
		v = verdict{result: resultAbandoned, head: v.head, err: errAbandoned}
	}
	i.tellWarnings(&v, r.Body)
	err := v.write(ctx, w)
	reader.Release()
	readers.Put(reader)
	i.metrics.observe(v.result, i.options.Clock.Since(start))
	i.metrics.bySet.count(&v)
	return err
}

// decide decides about a Pod, by a snapshot that holds what the call requires. If ctx ends,
// decide ends early.
func (i *Injector) decide(ctx context.Context, reader *review.Reader, document []byte, c call) verdict {
	head, err := reader.ReadHead(document)
	switch {
	case err != nil:
		return verdict{result: resultInvalid, head: head, err: server.Malformed("AdmissionReview", head.UID, err)}
	case !head.CreatesPod() || inject.Exclusions(i.options.ExcludedNamespaces).Namespace(head.Namespace):
		return verdict{result: resultIgnored, head: head}
	}
	if err = ctx.Err(); err == nil && !c.static {
		err = i.options.Ensure(ctx, c.shard, c.number, labels.Set(head.Labels))
	}
	if err != nil {
		return verdict{result: resultError, head: head, err: cannotTell(&head, err)}
	}
	known := i.options.Snapshot()
	v := i.choose(ctx, reader, document, head)
	switch {
	case len(v.plan.Replaces) > 0:
		// By a webhook of another shard, the API server may have called a replica that knows a newer
		// revision of these SidecarSets. That revision must stay.
		if err := i.options.Know(ctx, append(v.plan.HeldBack, v.plan.Replaces...)); err != nil {
			return verdict{result: resultError, head: head, err: cannotTell(&head, err)}
		}
	case len(v.plan.HeldBack) == 0 || !i.knowsSoon(ctx, v.plan.HeldBack) || i.options.Snapshot() == known:
		return v
	}
	return i.choose(ctx, reader, document, head)
}

// holdBackWait bounds the read before a revision is held back.
const holdBackWait = time.Second

// knowsSoon reports whether the snapshot has observed SidecarSets as they were stored after the call. It waits for
// half of the call's time at most. The condition Ready says that new Pods get a revision from the moment at
// which it is stable, so a replica whose watch is behind must not hold it back. If that is not known, the
// revision is held back: nothing shows that it works.
func (i *Injector) knowsSoon(ctx context.Context, names []string) bool {
	wait := holdBackWait
	if end, ends := ctx.Deadline(); ends {
		wait = min(wait, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return i.options.Know(ctx, names) == nil
}

// choose decides about a Pod by the newest snapshot.
func (i *Injector) choose(ctx context.Context, reader *review.Reader, document []byte, head review.Head) verdict {
	if err := ctx.Err(); err != nil {
		return verdict{result: resultError, head: head, err: cannotTell(&head, err)}
	}
	selected, err := i.gather(ctx, &head)
	switch {
	case err != nil:
		return verdict{result: resultError, head: head, err: err}
	case len(selected.sidecarSets) == 0:
		return verdict{result: resultNotSelected, head: head}
	case ctx.Err() != nil:
		return verdict{result: resultError, head: head, err: cannotTell(&head, ctx.Err())}
	}
	return i.inject(ctx, reader, document, head, selected)
}

// inject decides what the selected SidecarSets insert into a Pod. Before it denies the Pod
// because the snapshot lacks a revision, it looks up the revision live. Before it denies the Pod
// because of a member that API servers may drop, it asks whether they do. Each turn adds a
// revision or drops the member, so the loop ends.
func (i *Injector) inject(ctx context.Context, reader *review.Reader, document []byte, head review.Head, selected selection) verdict {
	pod, err := reader.ReadPod(document, head.Labels)
	if err != nil {
		return verdict{result: resultInvalid, head: head, err: unreadable(&head, err)}
	}
	if other := i.options.OtherInjector(); other != nil && other.Owns(pod.Annotations, selected.names) {
		return verdict{result: resultOther, head: head}
	}
	candidates := selected.snapshot.Candidates(selected.sidecarSets, i.options.Draw) // draws once, also if the loop repeats
	if err := i.revisions.addStable(ctx, candidates); err != nil {
		return verdict{result: resultError, head: head, err: server.Unavailable(fmt.Sprintf("cannot tell what to inject into Pod %s: %v", head.PodName(), err))}
	}
	for {
		plan, err := inject.Compute(inject.Input{
			Pod: pod, Candidates: candidates, Now: i.options.Clock.Now(), Known: selected.snapshot.Has, Ended: ctx.Err,
		})
		if missing, is := errors.AsType[*inject.RevisionError](err); is {
			added, failure := i.revisions.addMissing(ctx, candidates, missing)
			if failure != nil {
				return verdict{result: resultError, head: head, err: server.Unavailable(fmt.Sprintf("cannot tell what to inject into Pod %s: %v", head.PodName(), failure))}
			}
			if added {
				continue
			}
		}
		if misfit, is := errors.AsType[*inject.FitError](err); is && misfit.PodResources && !i.options.KeepsPodResources(ctx) {
			pod.Spec.Resources = nil
			continue
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return verdict{result: resultError, head: head, err: cannotTell(&head, ctx.Err())}
		case err != nil:
			i.tellConflict(&head, selected, document, err)
			return verdict{result: resultDenied, head: head, err: err}
		case plan.Empty():
			return verdict{result: resultUnchanged, head: head, plan: plan}
		}
		return verdict{result: resultInjected, head: head, plan: plan, by: selected}
	}
}

// unreadable is the denial of a Pod that cannot be read, or that has too long a list.
func unreadable(head *review.Head, err error) error {
	if long := new(review.LongListError); errors.As(err, &long) {
		return &server.Refusal{UID: head.UID, Code: http.StatusRequestEntityTooLarge, Message: long.Error(), Reason: server.ReasonTooLarge}
	}
	return server.Malformed("AdmissionReview", head.UID, err)
}

// dryRun is in the review, as API servers write it, of a request that stores nothing. A
// string in the Pod cannot contain it, because quotes in it have a backslash before them.
var dryRun = []byte(`"dryRun":true`)

// tellConflict records an Event about each SidecarSet that the reason of a refusal names.
// An unauthenticated client may have sent the review. So the namespace of the Pod is in the Event only if the
// Namespace exists, and all else about the Pod is short: names and numbers in the reason.
func (i *Injector) tellConflict(head *review.Head, selected selection, document []byte, err error) {
	refusal, is := errors.AsType[inject.Refusal](err)
	if !is || bytes.Contains(document, dryRun) {
		return
	}
	namespace := selected.namespace(head)
	names := refusal.SidecarSets()
	for _, compiled := range selected.sidecarSets {
		if slices.Contains(names, compiled.Name()) {
			i.options.RecordEvent(events.InjectionConflict(events.Of(compiled.Set), namespace, err))
		}
	}
}

// namespace is that of the Pod if the Namespace exists, "" otherwise.
func (s selection) namespace(head *review.Head) string {
	if _, known := s.snapshot.NamespaceLabels(head.Namespace); !known {
		return ""
	}
	return head.Namespace
}

// readers are reused, because the state of a reader would be most of the garbage of a
// request.
var readers = sync.Pool{New: func() any { return new(review.Reader) }}
