package podwebhook

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Decision is what the leader does with a dependency that no SidecarSet of its snapshot has.
type Decision struct {
	// Drop removes the dependency. Otherwise it stays, in generation Lower if that is not 0.
	Drop  bool
	Lower int64
}

// Plan is what Reconcile returns.
type Plan struct {
	// Next is nil if nothing has to be written. Its resourceVersion has to be a precondition of
	// the write.
	Next *admissionregistrationv1.MutatingWebhookConfiguration
	// Refused are the wanted webhooks that have no place, by name, with the reason.
	Refused map[string]error
	// Foreign are the webhooks that another program has added, and that Next does not have.
	Foreign []string
}

// Reconcile returns the object as the stored SidecarSets need it. wanted are the webhooks of this
// shard; see Combine. decisions are about the dependencies of Doubts. With rewrite, the object is written although nothing differs.
//
// A shard without webhooks has its probe webhook, so that it has a bundle that API servers know when
// the first webhook comes.
//
// The dependencies in wanted stay, and are raised to what is stored. A webhook without dependencies goes. An
// webhook of which only dependencies of reviews are left is not changed.
func (s *Shard) Reconcile(wanted []Webhook, decisions Decisions, rewrite bool, settings *Settings) (p Plan) {
	w := s.write(settings, settings.excluded())
	exclude(w.object.Webhooks, s.Excluded, w.record.Excluded)
	kept := make([]*Webhook, len(wanted))
	byName := make(map[string]*Webhook, len(wanted))
	for i := range wanted {
		kept[i], byName[wanted[i].Name] = &wanted[i], &wanted[i]
	}
	for name, dependencies := range s.Dependencies {
		w.record.Dependencies[name] = remaining(dependencies, byName[name], func(n Dependency) Decision { return decisions[Doubtful{name, n}] })
	}
	p.Refused = w.want(kept)
	p.Foreign = w.clear()
	for i := range w.object.Webhooks {
		w.object.Webhooks[i].ClientConfig.CABundle = settings.Bundle
	}
	if w.raised || rewrite || !sameObject(w.rendered(s.Serial), s.Object) {
		p.Next = w.next()
	}
	return p
}

// RemoveAll returns the object without webhooks and dependencies; nil if it has none. Its owner stays.
func (s *Shard) RemoveAll() *admissionregistrationv1.MutatingWebhookConfiguration {
	if s.IsEmpty() && len(s.Dependencies) == 0 {
		return nil
	}
	w := s.write(&Settings{Ownerless: true}, s.Excluded)
	w.object.Webhooks, w.record.Dependencies = nil, nil
	return w.next()
}

// remaining returns the dependencies of a webhook that stay. e is the wanted webhook; nil if it is not wanted.
func remaining(dependencies []Dependency, e *Webhook, decision func(Dependency) Decision) (stay []Dependency) {
	for _, n := range dependencies {
		stored := e.dependency(n)
		isStored := stored.Name != ""
		if isStored && n.Generation <= stored.Generation {
			stay = append(stay, n)
			continue
		}
		v := decision(n)
		if v.Drop && !isStored {
			continue
		}
		if v.Lower > 0 {
			n.Generation = max(v.Lower, stored.Generation)
		}
		stay = append(stay, n)
	}
	return stay
}

// want adds or repairs the wanted webhooks. It returns the webhooks that have no place, and those with
// a dependency that has none. What is present keeps its place.
func (w *writing) want(wanted []*Webhook) (refused map[string]error) {
	refused = map[string]error{}
	// What is left. Of what is not wanted, and may be leaving, only so much counts as an object can have.
	leaving, dependenciesLeaving := w.unwanted(wanted)
	webhooks, bytes, dependenciesBytes := MaxWebhooks, min(maxBytes, maxObjectBytes-leaving), min(maxDependenciesBytes, maxRecordBytes-dependenciesLeaving)
	for _, e := range wanted {
		if at := find(w.object, e.Name); at >= 0 {
			webhook := w.settings.webhook(e, w.record.Excluded)
			carry(&w.object.Webhooks[at], &webhook)
			w.object.Webhooks[at] = webhook
			webhooks, bytes = webhooks-1, bytes-webhook.Size()
		}
		for _, n := range e.Dependencies {
			if slices.ContainsFunc(w.record.Dependencies[e.Name], n.Is) {
				w.raise(e.Name, n)
				dependenciesBytes -= n.bytes()
			}
		}
	}
	for _, e := range wanted {
		var added []admissionregistrationv1.MutatingWebhook // the webhook, if it is absent
		if find(w.object, e.Name) < 0 {
			webhook := w.settings.webhook(e, w.record.Excluded)
			size := webhook.Size()
			if webhooks <= 0 || size > bytes {
				refused[e.Name] = nil
				continue
			}
			webhooks, bytes, added = webhooks-1, bytes-size, append(added, webhook)
		}
		for _, n := range e.Dependencies {
			switch {
			case slices.ContainsFunc(w.record.Dependencies[e.Name], n.Is):
			case n.bytes() > dependenciesBytes:
				refused[e.Name] = nil
			default:
				w.raise(e.Name, n)
				dependenciesBytes -= n.bytes()
			}
		}
		if len(w.record.Dependencies[e.Name]) > 0 {
			w.object.Webhooks = append(w.object.Webhooks, added...)
		}
	}
	if len(refused) > 0 {
		full := w.full()
		for name := range refused {
			refused[name] = full
		}
	}
	return refused
}

// unwanted is the size of the webhooks that are not wanted and stay, and the size of their dependencies.
func (w *writing) unwanted(wanted []*Webhook) (bytes, dependenciesBytes int) {
	for i := range w.object.Webhooks {
		one := &w.object.Webhooks[i]
		if len(w.record.Dependencies[one.Name]) == 0 || slices.ContainsFunc(wanted, func(e *Webhook) bool { return e.Name == one.Name }) {
			continue
		}
		bytes += one.Size()
		for _, n := range w.record.Dependencies[one.Name] {
			dependenciesBytes += n.bytes()
		}
	}
	return bytes, dependenciesBytes
}

// told is how many webhooks of a full shard an error names.
const told = 5

// full says that the shard has no room for a webhook, and whose webhooks take it.
func (w *writing) full() error {
	type part struct {
		set         string
		sets, bytes int
	}
	var parts []part
	total := 0
	for i := range w.object.Webhooks {
		one := &w.object.Webhooks[i]
		if dependencies := w.record.Dependencies[one.Name]; isPodWebhook(one) && len(dependencies) > 0 {
			size := one.Size()
			parts, total = append(parts, part{dependencies[0].Name, len(dependencies), size}), total+size
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), strings.Compare(a.set, b.set)) })
	var names []string
	for _, p := range parts[:min(len(parts), told)] {
		name := fmt.Sprintf("%s (%d bytes)", p.set, p.bytes)
		if p.sets > 1 {
			name = fmt.Sprintf("%s and %d more that share its selectors (%d bytes)", p.set, p.sets-1, p.bytes)
		}
		names = append(names, name)
	}
	if more := len(parts) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d smaller ones", more))
	}
	return fmt.Errorf("MutatingWebhookConfiguration %s, which follows from its selectors, is full: %d webhooks (at most %d) have %d bytes (at most %d). They are for SidecarSets %s. "+
		"Let SidecarSets share selectors, shorten long selectors, or delete SidecarSets", w.object.Name, len(parts), MaxWebhooks, total, maxBytes, strings.Join(names, ", "))
}

// clear removes the webhooks without dependencies, and the dependencies without webhooks. It returns the webhooks
// that another program has added.
func (w *writing) clear() (foreign []string) {
	probe := w.object.Name + probeSuffix
	w.object.Webhooks = slices.DeleteFunc(w.object.Webhooks, func(one admissionregistrationv1.MutatingWebhook) bool {
		switch _, ours := w.shard.Dependencies[one.Name]; {
		case one.Name == probe:
			return false
		case len(w.record.Dependencies[one.Name]) > 0:
			return false
		case !ours:
			foreign = append(foreign, one.Name)
		}
		return true
	})
	maps.DeleteFunc(w.record.Dependencies, func(name string, dependencies []Dependency) bool {
		return len(dependencies) == 0 || find(w.object, name) < 0
	})
	return foreign
}

// sameObject reports whether two versions of an object do not differ in what Reconcile writes.
func sameObject(a, b *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return slices.EqualFunc(a.Webhooks, b.Webhooks, same) && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

// Has reports whether the shard has a webhook as it is wanted, with its policy, its timeout and its
// needs, but for what another program leaves out. It only asks whether there is a bundle.
func (s *Shard) Has(e *Webhook, settings *Settings) bool {
	at := find(s.Object, e.Name)
	if at < 0 || slices.ContainsFunc(e.Dependencies, func(n Dependency) bool { return !s.HasDependency(e.Name, n) }) {
		return false
	}
	present := s.Object.Webhooks[at]
	webhook := settings.webhook(e, settings.excluded())
	webhook.ClientConfig = settings.clientConfig(PodsPath(s.Index, s.RequiredSerial))
	carry(&present, &webhook)
	webhook.ClientConfig.CABundle = present.ClientConfig.CABundle
	return len(present.ClientConfig.CABundle) > 0 && same(present, webhook)
}
