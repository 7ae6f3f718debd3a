package registration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podwebhook"
)

// The leader reads a SidecarSet by name before it removes its dependency.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=apps.kruise.io,resources=sidecarsets,verbs=get

// shardState is what the leader remembers of a shard from one pass to the next.
type shardState struct {
	want    want
	noPlace map[string]error // why webhooks have no place in the shard, by their names
	proof   proof
	restsTo time.Time // until then the leader writes nothing that only others have caused
	edited  bool      // another program's edit stays meanwhile
	editor  string    // the field manager of the last edit that was undone; "" if it is not known
}

// want is what the stored SidecarSets need.
type want struct {
	webhooks []podwebhook.Webhook
	changed  bool              // since the last write
	done     *podwebhook.Shard // the version that needs no write for webhooks, and no dependency of which is in doubt
}

// proof is whether API servers use the shard. The leader updates it in one place; see prove.
type proof struct {
	serial       uint64    // the newest one
	since        time.Time // when the leader began to ask about it
	unpropagated error     // why not every API server is known to use it
	last         uint64    // the last one that they all used
}

// isStuck reports whether API servers do not use a version of the shard that they should use. If one
// cannot be asked, it is not known. Nor is it while no call is answered.
func (st *shardState) isStuck(s *podwebhook.Shard, now time.Time) bool {
	if _, unknown := errors.AsType[refusedError](st.proof.unpropagated); unknown {
		return false
	}
	return st.proof.unpropagated != nil && st.proof.serial == s.Serial && (st.proof.last == s.Serial || now.Sub(st.proof.since) >= notUsedSoon)
}

// keepShard brings one shard up to date: it gathers the facts, and does what shardFacts.next says.
func (l *leader) keepShard(ctx context.Context, v *view, i int) error {
	st := &l.states[i]
	if err := l.find(ctx, v, i); err != nil || v.shards[i] == nil {
		return err
	}
	s := v.shards[i]
	f := shardFacts{stuck: l.prober.answered(v.now) && st.isStuck(s, v.now), rest: st.restsTo.Sub(v.now)}
	if f.rest <= -longestRest { // it has stopped
		l.pauses.Forget(i)
	}
	if st.want.done == s && f.next() == idle {
		return nil
	}
	wanted := st.possible(v, s)
	doubts := s.Doubts(wanted, podwebhook.Known{InUse: func(name string) bool { return v.inUse[name] }, Generation: l.sets.generation, Seen: l.store.Seen, Reviews: l.reviews, Now: time.Now()})
	decisions := l.decide(ctx, v, doubts)
	plan := s.Reconcile(wanted, decisions, false, v.settings)
	f.differs, f.ours = plan.Next != nil, st.want.changed || len(decisions) > 0
	action := f.next()
	st.noPlace, st.edited, st.want.done = plan.Refused, action == wait && f.differs, nil
	switch action {
	case idle:
		if v.served {
			st.want.changed = false
			if len(doubts) == 0 {
				st.want.done = s
			}
		}
		return nil
	case wait:
		v.wakeAfter(f.rest)
		return nil
	case mend:
		plan = s.Reconcile(wanted, decisions, true, v.settings)
	}
	return l.writePlan(ctx, v, i, plan, action)
}

// possible are the wanted webhooks that may be written.
func (st *shardState) possible(v *view, s *podwebhook.Shard) []podwebhook.Webhook {
	if v.served {
		return st.want.webhooks
	}
	present := s.Webhooks() // API servers would refuse the Pods of others
	return slices.DeleteFunc(slices.Clone(st.want.webhooks), func(e podwebhook.Webhook) bool { return !slices.Contains(present, e.Name) })
}

// find reads a shard that has to have webhooks and that Shards does not have.
func (l *leader) find(ctx context.Context, v *view, i int) (err error) {
	if v.shards[i] != nil || len(l.states[i].want.webhooks) == 0 {
		return nil
	}
	v.shards[i], v.absent[i] = l.shards.Read(ctx, i)
	if err := v.absent[i]; !errors.Is(err, errNoShard) && !errors.Is(err, podwebhook.ErrFormat) {
		return err
	}
	return nil // the conditions of its SidecarSets have the reason
}

// writePlan writes the next version of a shard.
func (l *leader) writePlan(ctx context.Context, v *view, i int, plan podwebhook.Plan, action shardAction) error {
	s, st, by := v.shards[i], &l.states[i], ""
	if action == undo {
		by = l.shards.editor(ctx, i) // the write may remove it
	}
	left := len(plan.Next.Webhooks)
	rebundled := v.settings != nil && !bytes.Equal(s.Bundle(), v.settings.Bundle)
	if rebundled && l.options.FreshBundle != nil {
		if fresh, err := l.options.FreshBundle(ctx); err != nil || !bytes.Equal(fresh, v.settings.Bundle) {
			l.wake()
			return err
		}
	}
	written, err := l.registrar.write(ctx, s, plan.Next)
	switch {
	case err != nil:
		return err
	case written == nil:
		l.wake()
		_, err := l.shards.Read(ctx, i)
		return err
	}
	if action != write {
		st.restsTo = v.now.Add(l.pauses.When(i))
	}
	if action == undo {
		st.editor = by
		l.m.restored.Inc()
	}
	v.shards[i], st.want.changed = l.shards.At(i), false
	l.tellWrite(ctx, s, left, plan.Foreign)
	return nil
}

// tellWrite logs what was written. Foreign webhooks, which the write removed, may have been
// written by an attacker who has taken over a process of the operator.
func (l *leader) tellWrite(ctx context.Context, before *podwebhook.Shard, left int, foreign []string) {
	logger := log.FromContext(ctx).WithValues("MutatingWebhookConfiguration", before.Object.Name)
	if len(foreign) > 0 {
		l.m.foreign.Add(float64(len(foreign)))
		logger.Info("Removed Pod webhooks that another program had written", "webhooks", foreign)
	}
	switch {
	case left > 0:
		logger.V(1).Info("Wrote Pod webhooks", "webhooks", left-1)
	case !before.IsEmpty():
		logger.Info("Removed Pod webhooks")
	}
}

// maxReads bounds the SidecarSets that a pass reads by name. The next pass reads others.
const maxReads = 64

// decide reads the SidecarSets of the dependencies in doubt that reads can decide about, and judges these dependencies.
// The reads begin after the version of the shard was seen that the leader writes from, and the write
// has that version as a precondition.
func (l *leader) decide(ctx context.Context, v *view, doubts []podwebhook.Doubt) podwebhook.Decisions {
	facts, decisions := map[string]podwebhook.Fact{}, podwebhook.Decisions{}
	for i := range doubts {
		d := &doubts[i]
		if !d.Due {
			v.wakeAfter(d.Wait)
			continue
		}
		for _, name := range append([]string{d.Dependency.Name}, d.Others...) {
			if err := l.fact(ctx, v, name, facts); err != nil {
				log.FromContext(ctx).V(1).Info("Keeping a SidecarSet's dependency", "SidecarSet", d.Dependency.Name, "reason", err.Error())
			}
		}
		c, read := d.Case(facts, l.moved)
		if decision := c.Decide(); read && decision != (podwebhook.Decision{}) {
			decisions[d.Is()] = decision
			continue
		}
		v.wakeAfter(soon)
	}
	return decisions
}

// fact reads a SidecarSet by name, unless it was read for this shard before.
func (l *leader) fact(ctx context.Context, v *view, name string, facts map[string]podwebhook.Fact) error {
	if _, known := facts[name]; known {
		return nil
	}
	if v.reads++; v.reads > maxReads {
		l.wake()
		return errors.New("the next pass reads it")
	}
	fact, err := l.read(ctx, name)
	if err == nil {
		facts[name] = fact
	}
	return err
}

// read reads a SidecarSet by name.
func (l *leader) read(ctx context.Context, name string) (podwebhook.Fact, error) {
	fact := podwebhook.Fact{Began: time.Now()}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(appsv1beta1.Kind)
	switch err := l.live.Get(ctx, client.ObjectKey{Name: name}, object); {
	case apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return fact, nil
	case err != nil:
		return fact, fmt.Errorf("reading SidecarSet %s: %w", name, err)
	}
	fact.Stored, fact.UID, fact.Generation = true, podwebhook.ShortUID(object.GetUID()), object.GetGeneration()
	compiled, err := inject.Compile(object.Object)
	if compiled == nil {
		log.FromContext(ctx).V(1).Info("SidecarSet cannot be used as it is stored", "SidecarSet", name, "reason", err.Error())
		return fact, nil // nor is it in the snapshot
	}
	if e, err := podwebhook.Of(compiled.Set); err == nil {
		fact.Webhook, fact.Shard = e.Name, e.Shard(l.namespace)
	}
	return fact, nil
}

// moved reports whether every reachable API server uses the webhook that a fact names, with a dependency
// of that SidecarSet, and no other process moves it elsewhere.
func (l *leader) moved(fact podwebhook.Fact, n podwebhook.Dependency) bool {
	n.Generation = fact.Generation
	s := l.shards.At(fact.Shard)
	return s != nil && s.Namespace == podwebhook.ShortUID(l.namespace) && s.HasDependency(fact.Webhook, n) && l.prober.passed(fact.Shard, s.Serial)
}
