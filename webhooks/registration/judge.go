package registration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/internal/readiness"
	"github.com/sidecarset/operator/internal/status"
)

// judge writes on the board whether the next Pod of each SidecarSet will be injected.
func (l *leader) judge(ctx context.Context, v *view) {
	installation := l.installation(ctx, v)
	obstacle := installation.Obstacle()
	if obstacle != nil || v.problem != nil {
		v.wakeAfter(soon)
	}
	sidecarSets := v.snapshot.SidecarSets()
	next := make(map[string]cachedReadiness, len(sidecarSets))
	for _, compiled := range sidecarSets {
		var judged status.Readiness
		if obstacle != nil {
			judged = *obstacle
		} else {
			judged = installation.Complete(readiness.Of(l.facts(v, l.sets[compiled.Name()])))
		}
		if !judged.Ready {
			v.wakeAfter(soon)
		}
		next[compiled.Name()] = cachedReadiness{compiled.Set.UID, compiled.Set.Generation, judged}
	}
	l.board.replace(next)
}

// installation are the facts that concern every SidecarSet.
func (l *leader) installation(ctx context.Context, v *view) readiness.Installation {
	i := readiness.Installation{
		Namespace: l.options.Settings.Namespace, OtherInjector: v.other.Message(), Served: v.served,
		Calls: l.prober.problem(l.options.Settings.Namespace, v.now), LeftOut: l.prober.leftOut(v.now),
	}
	// If other processes serve the webhooks, a call that was answered proves more than the
	// certificate of this one.
	if err := l.options.Certificate(ctx); l.options.ServesWebhooks || !l.prober.answered(v.now) {
		i.Certificate = err
	}
	return i
}

// facts are the facts that concern one SidecarSet.
func (l *leader) facts(v *view, one *storedSet) readiness.SidecarSet {
	facts := readiness.SidecarSet{
		Selectors: one.err, Nothing: one.nothing,
		Paused: one.compiled.Set.Spec.InjectionStrategy.Paused, Invalid: one.refuse, Conflict: one.conflict,
		PodSecurity: l.podSecurity(one),
	}
	switch {
	case l.options.Static:
		facts.Static = l.staticWebhook(v, one)
	case one.err == nil:
		facts.Webhook = l.webhookFacts(v, one)
	}
	return facts
}

// propagationTime is how long replicas take at most to see a SidecarSet, if their watches are healthy.
const propagationTime = 5 * time.Second

// staticWebhook has the facts about the one webhook that an administrator keeps. Its calls do not
// say what must be known, so replicas answer from what they know.
func (l *leader) staticWebhook(v *view, one *storedSet) *readiness.Static {
	left := propagationTime - v.now.Sub(one.since)
	if left > 0 {
		v.wakeAfter(left)
	}
	return &readiness.Static{Present: l.options.Injectors.StaticWebhook(), PropagationTime: left > 0}
}

// webhookFacts has the facts about the webhook of a SidecarSet.
func (l *leader) webhookFacts(v *view, one *storedSet) (facts readiness.Webhook) {
	i := one.webhook.Shard(l.namespace)
	s, st := v.shards[i], &l.states[i]
	facts.Problem = v.problem
	if s == nil {
		facts.NoObject = whyAbsent(podwebhook.ConfigurationName(i), v.absent[i])
		return facts
	}
	if st.edited {
		facts.Modified, facts.By = s.Object.Name, st.editor
	}
	if v.settings == nil {
		return facts
	}
	e := st.want.webhooks[slices.IndexFunc(st.want.webhooks, func(e podwebhook.Webhook) bool { return e.Name == one.webhook.Name })]
	e.Dependencies = one.webhook.Dependencies
	facts.Written = s.Has(&e, v.settings)
	if !facts.Written {
		facts.NoPlace = st.noPlace[e.Name]
	}
	if n := s.Restriction(&e); n.By != "" {
		facts.Restricted, facts.ExcludesAll = n.By, leavesAllOut(v.snapshot, n)
	}
	facts.Propagated = s.Serial > 0 && l.prober.passed(i, s.Serial)
	if st.proof.unpropagated != nil && !facts.Propagated {
		facts.Problem = st.proof.unpropagated
		_, facts.Unasked = errors.AsType[refusedError](st.proof.unpropagated)
	}
	return facts
}

// leavesAllOut reports whether another program leaves out every Namespace that a webhook selects.
func leavesAllOut(store *match.Snapshot, n podwebhook.Restriction) bool {
	some := func(selector *metav1.LabelSelector) bool {
		compiled, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return true
		}
		for range store.NamespacesWith(compiled) {
			return true
		}
		return false
	}
	return !some(n.To) && some(n.From)
}

const (
	// restoreCommand brings back the objects for webhooks, and changes nothing else. The
	// file is the one that the operator was installed from, as a release has it.
	restoreCommand = "kubectl apply --server-side -f install.yaml -l " + podwebhook.LabelConfiguration
	// unlockCommand makes this version of the operator use an object that a newer one wrote.
	unlockCommand = "kubectl annotate mutatingwebhookconfigurations %s " + podwebhook.AnnotationFormat + "-"
)

// whyAbsent says why there is no version of an object that has to have webhooks, and what to do;
// "" if the error is not about the object itself.
func whyAbsent(name string, err error) string {
	switch {
	case errors.Is(err, podwebhook.ErrFormat):
		return fmt.Sprintf("A newer version of the operator has written MutatingWebhookConfiguration %s, in a format that this version cannot read. "+
			"Run that version again; or, to stay with this one, have it write the object again: "+unlockCommand, name, name)
	case errors.Is(err, errNoShard):
		return fmt.Sprintf("MutatingWebhookConfiguration %s does not exist. It has to hold the Pod webhook, and the operator has no right to create it. "+
			"Apply it again, from the file that the operator was installed with: %s", name, restoreCommand)
	}
	return ""
}
