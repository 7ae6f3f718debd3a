package entry

import (
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/selectors"
)

// Review returns the object with the needs of SidecarSets that are being admitted. It adds or
// raises these needs and touches no other. A new entry is added with the policy Ignore. Of
// entries that are present, it changes nothing but the path: a stranger can send a review.
//
// The object always has another serial, also if nothing else differs. So a leader that is about
// to remove a need fails.
//
// stored reports whether the caller knows a need's SidecarSet as stored with the selectors of the
// entry, in any generation. With other selectors it does not count: a stranger can make up a
// review that names any SidecarSet. elsewhere is the number of entries of other slots of which no
// SidecarSet is stored. refused has the entries that got no need, by name, with the reason. The
// object is nil if no need was written. The leader alone decides about bundles: a new entry takes that
// of the barrier entry.
func (s *Slot) Review(entries []Entry, stored func(entry string, n Need) bool, elsewhere int, settings *Settings) (next *admissionregistrationv1.MutatingWebhookConfiguration, refused map[string]error) {
	own := *settings
	if own.Bundle = s.Bundle(); len(own.Bundle) == 0 {
		refused = map[string]error{}
		for i := range entries {
			refused[entries[i].Name] = errNoBundle
		}
		return nil, refused
	}
	settings = &own
	excluded := s.Excluded // as the leader rendered the other entries
	if len(excluded) == 0 {
		excluded = settings.excluded()
	}
	r := &review{writing: s.write(settings, excluded), stored: stored, unstored: elsewhere + len(s.Unstored(stored))}
	for name, needs := range s.Needs {
		for _, n := range needs {
			r.count(name, n)
		}
	}
	refused = map[string]error{}
	for i := range entries {
		e := &entries[i]
		if err := r.makeRoom(e); err != nil {
			refused[e.Name] = err
			continue
		}
		for _, n := range e.Needs {
			n.Review = s.Version
			r.raise(e.Name, n)
		}
	}
	if len(refused) == len(entries) {
		return nil, refused
	}
	return r.next(), refused
}

// review is a version that is written for a review.
type review struct {
	*writing
	stored        func(entry string, n Need) bool
	unstored      int // entries of all slots
	needs         int // bytes
	unstoredNeeds int // bytes
}

func (r *review) count(entry string, n Need) {
	r.needs += n.bytes()
	if !r.stored(entry, n) {
		r.unstoredNeeds += n.bytes()
	}
}

// makeRoom adds an entry unless it is present. It fails if there is no room for the entry or its
// needs, and then has changed nothing.
func (r *review) makeRoom(e *Entry) error {
	after, has, unstored := *r, r.record.Needs[e.Name], 0
	for _, n := range e.Needs {
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
	case unstored > maxUnstoredNeeds, after.unstoredNeeds > max(r.unstoredNeeds, maxUnstoredNeedsBytes):
		return errBusy
	case after.needs > max(r.needs, maxNeedsBytes):
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

// place adds an entry.
func (r *review) place(e *Entry, webhook *admissionregistrationv1.MutatingWebhook) error {
	size := webhook.Size()
	if len((&Slot{Object: r.object}).Entries()) >= MaxEntries || r.object.Size()+size > maxBytes {
		return r.full()
	}
	if !slices.ContainsFunc(e.Needs, func(n Need) bool { return r.stored(e.Name, n) }) {
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

// asRendered reports whether API servers call the operator by an entry for the same Pods as by its
// rendering, but for what another program leaves out. The policy is not compared, and neither is
// how the operator is reached: every write restores that.
func asRendered(present *admissionregistrationv1.MutatingWebhook, w admissionregistrationv1.MutatingWebhook) bool {
	carry(present, &w)
	w.ClientConfig, w.FailurePolicy, w.TimeoutSeconds, w.ReinvocationPolicy = present.ClientConfig, present.FailurePolicy, present.TimeoutSeconds, present.ReinvocationPolicy
	return same(*present, w)
}
