package podwebhook

import (
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/selectors"
)

// Review returns the object with the dependencies of SidecarSets that are being admitted. It adds or
// raises these dependencies and touches no other. A new webhook is added with the policy Ignore. Of
// webhooks that are present, it changes nothing but the path: an unauthenticated client can send a review.
//
// The object always has another serial, also if nothing else differs. So a leader that is about
// to remove a dependency fails.
//
// stored reports whether the caller knows a dependency's SidecarSet as stored with the selectors of the
// webhook, in any generation. With other selectors it does not count: an unauthenticated client can make up a
// review that names any SidecarSet. elsewhere is the number of webhooks of other shards of which no
// SidecarSet is stored. refused has the webhooks that got no dependency, by name, with the reason. The
// object is nil if no dependency was written. The leader alone decides about bundles: a new webhook takes that
// of the probe webhook.
func (s *Shard) Review(webhooks []Webhook, stored func(webhook string, n Dependency) bool, elsewhere int, settings *Settings) (next *admissionregistrationv1.MutatingWebhookConfiguration, refused map[string]error) {
	own := *settings
	if own.Bundle = s.Bundle(); len(own.Bundle) == 0 {
		refused = map[string]error{}
		for i := range webhooks {
			refused[webhooks[i].Name] = errNoBundle
		}
		return nil, refused
	}
	settings = &own
	excluded := s.Excluded // as the leader rendered the other webhooks
	if len(excluded) == 0 {
		excluded = settings.excluded()
	}
	r := &review{writing: s.write(settings, excluded), stored: stored, unstored: elsewhere + len(s.Unstored(stored))}
	for name, dependencies := range s.Dependencies {
		for _, n := range dependencies {
			r.count(name, n)
		}
	}
	refused = map[string]error{}
	for i := range webhooks {
		e := &webhooks[i]
		if err := r.makeRoom(e); err != nil {
			refused[e.Name] = err
			continue
		}
		for _, n := range e.Dependencies {
			n.Review = s.Version
			r.raise(e.Name, n)
		}
	}
	if len(refused) == len(webhooks) {
		return nil, refused
	}
	return r.next(), refused
}

// review is a version that is written for a review.
type review struct {
	*writing
	stored               func(webhook string, n Dependency) bool
	unstored             int // webhooks of all shards
	dependencies         int // bytes
	unstoredDependencies int // bytes
}

func (r *review) count(webhook string, n Dependency) {
	r.dependencies += n.bytes()
	if !r.stored(webhook, n) {
		r.unstoredDependencies += n.bytes()
	}
}

// makeRoom adds a webhook unless it is present. It fails if there is no room for the webhook or its
// needs, and then has changed nothing.
func (r *review) makeRoom(e *Webhook) error {
	after, has, unstored := *r, r.record.Dependencies[e.Name], 0
	for _, n := range e.Dependencies {
		if !slices.ContainsFunc(has, n.Is) {
			after.count(e.Name, n)
			if !r.stored(e.Name, n) {
				unstored++
			}
		}
	}
	for _, n := range has {
		if unstored > 0 && !r.stored(e.Name, n) {
			unstored++
		}
	}
	switch {
	case unstored > maxUnstoredDependencies, after.unstoredDependencies > max(r.unstoredDependencies, maxUnstoredDependenciesBytes):
		return errBusy
	case after.dependencies > max(r.dependencies, maxDependenciesBytes):
		return r.full()
	}
	webhook := r.settings.webhook(e, r.record.Excluded)
	if at := find(r.object, e.Name); at < 0 {
		webhook.FailurePolicy, webhook.TimeoutSeconds = new(admissionregistrationv1.Ignore), new(int32(unstoredTimeoutSeconds))
		if err := after.place(e, &webhook); err != nil {
			return err
		}
	} else if !asRendered(&r.object.Webhooks[at], webhook) {
		return errLost
	}
	*r = after
	return nil
}

// place adds a webhook.
func (r *review) place(e *Webhook, webhook *admissionregistrationv1.MutatingWebhook) error {
	size := webhook.Size()
	if len((&Shard{Object: r.object}).Webhooks()) >= MaxWebhooks || r.object.Size()+size > maxBytes {
		return r.full()
	}
	if !slices.ContainsFunc(e.Dependencies, func(n Dependency) bool { return r.stored(e.Name, n) }) {
		switch {
		case r.unstored >= MaxUnstored:
			return errBusy
		case e.selectorBytes() > selectors.MaxBytes:
			return errLarge
		}
		r.unstored++
	}
	r.object.Webhooks = append(r.object.Webhooks, *webhook)
	return nil
}

// asRendered reports whether API servers call the operator by a webhook for the same Pods as by its
// rendering, but for what another program leaves out. The policy is not compared, and neither is
// how the operator is reached: every write restores that.
func asRendered(present *admissionregistrationv1.MutatingWebhook, w admissionregistrationv1.MutatingWebhook) bool {
	carry(present, &w)
	w.ClientConfig, w.FailurePolicy, w.TimeoutSeconds, w.ReinvocationPolicy = present.ClientConfig, present.FailurePolicy, present.TimeoutSeconds, present.ReinvocationPolicy
	return same(*present, w)
}
