package tracker

import (
	"slices"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Kind is what is to be written to a Pod.
type Kind uint8

// The kinds of WorkItems.
const (
	// Update: the Pod gets the current revision.
	Update Kind = iota
	// Reset: the hot upgrade of the Pod is ended.
	Reset
	// Label: the Pod's condition SidecarSetUpgradable gets its value.
	Label
)

// WorkItem is one write of a Pod. A Pass has no other one of the Pod for the SidecarSet before Done
// is called for it, and the watch has delivered the write.
type WorkItem struct {
	Kind Kind
	// Compiled is the revision that the Pod is to get, and Revision what it is compared with.
	Compiled *inject.Compiled
	Revision *inplace.Revision
	// Since is the first second after the revision became current.
	Since   int64
	Summary *podstate.Summary
	// Was is how the Pod was when it was decided about. A Pod that is another way by now must not be
	// updated: its result is stale.
	Was podstate.StateBefore
	// Node is the state of the Pod's node.
	Node inplace.Node

	member *membership
	sent   *sent
}

// Result is what became of a WorkItem.
type Result struct {
	// Version is the resourceVersion of the Pod that was written; 0 if none was.
	Version uint64
	// Reason is why the Pod was not written, and Message explains it to users; the caller bounds it.
	// Without a Reason, the live Pod is not what was decided about, or needs no write.
	Reason  inplace.Reason
	Message string
}

// sent is a write that is under way, or whose event has not come yet.
type sent struct {
	kind     Kind
	written  podstate.Written
	revision podstate.Name // that the Pod gets; 0 if its record does not show it
	of       revisionID    // that was current
	version  uint64        // 0: it is under way
}

// mostInFlight is the most writes of one SidecarSet that are under way, so that the writes of other
// ones need not wait long.
const mostInFlight = 64

// take makes WorkItems of the Pods of a plan.
func (t *Tracker) take(s *sidecarSet, plan *rollout.Plan) (items []WorkItem) {
	take := func(m *membership, kind Kind) {
		switch {
		case s.inFlight >= mostInFlight || m.sent != nil:
			return
		case m.Backoff != nil && t.now < m.Backoff.Until: // a Pod that backs off is in no plan to be updated
			if plan.Next == 0 || m.Backoff.Until < plan.Next {
				plan.Next = m.Backoff.Until
			}
			return
		}
		items = append(items, t.item(m, kind))
	}
	for _, p := range plan.Reset {
		take(t.memberOf(p, s), Reset)
	}
	for i := 0; i < len(plan.Write) && s.inFlight < mostInFlight; i++ {
		take(t.memberOf(plan.Write[i], s), Update)
	}
	if len(items) == 0 { // conditions are not urgent
		for _, m := range t.mislabelled {
			take(m, Label)
		}
	}
	return items
}

// memberOf returns the membership of a Pod that the SidecarSet selects.
func (t *Tracker) memberOf(p *rollout.Pod, s *sidecarSet) *membership {
	members := t.pod(p.Summary.Namespace, p.Summary.Name).members
	return members[slices.IndexFunc(members, func(m *membership) bool { return m.set == s })]
}

// item begins a write.
func (t *Tracker) item(m *membership, kind Kind) WorkItem {
	s := m.set
	m.sent = &sent{kind: kind, of: revisionIDOf(s.compiled), written: podstate.Written{At: uint32(t.now), StateBefore: m.StateBefore(t.now)}}
	was := m.sent.written.StateBefore
	s.inFlight++
	switch kind {
	case Update:
		if m.Verdict.Method == inplace.Images {
			m.sent.revision = podstate.MakeName(s.compiled.Hash)
		}
		m.Sent = &m.sent.written
	case Reset:
		if m.Written.At != 0 {
			m.sent.written.StateBefore = m.Written.StateBefore
		}
		m.Sent = &m.sent.written
	}
	return WorkItem{
		Kind: kind, Compiled: s.compiled, Revision: s.revision, Since: s.since, Summary: m.Summary, Was: was,
		Node: m.pod.nodeState(), member: m, sent: m.sent,
	}
}

// Done ends a WorkItem. Why a Pod did not get an earlier revision says nothing about the current one.
func (t *Tracker) Done(item WorkItem, result Result) {
	m := item.member
	if m.sent != item.sent || item.sent.version != 0 || m.set.removed {
		return
	}
	switch {
	case result.Version != 0:
		m.set.inFlight--
		m.sent.version = result.Version
		if item.Kind == Label {
			m.labelled, m.mislabelled = item.Compiled.Hash == m.set.compiled.Hash, false
		}
		t.deliver(m)
	case m.sent.of != revisionIDOf(m.set.compiled):
		t.rest(m, "", "")
	default:
		t.rest(m, result.Reason, result.Message)
	}
	t.markDirty(m.set)
}

// end forgets the write of a Pod that is under way.
func (s *sidecarSet) end(m *membership) {
	if m.sent != nil && m.sent.version == 0 {
		s.inFlight--
	}
	m.sent, m.Sent = nil, nil
}

// How long a Pod rests, in seconds: after a write that was refused or undone, twice as long each
// time, and until the watch has shown a Pod that was not as the WorkItem had it.
const (
	refusedRest, longestRest, staleRest = 30, 300, 1
)

// rest keeps a Pod from being written for a while.
func (t *Tracker) rest(m *membership, reason inplace.Reason, message string) {
	m.set.end(m)
	if reason == "" {
		m.Backoff = &rollout.Backoff{Until: t.now + staleRest}
		return
	}
	m.Backoff = &rollout.Backoff{Until: t.now + int64(min(refusedRest<<m.refusals, longestRest)), Reason: reason, Message: message}
	m.refusals = min(m.refusals+1, 10)
}

// deliver ends a write whose event has come. The write is undone if the Pod has neither what was
// written nor the current revision, or if its hot upgrade has not ended.
func (t *Tracker) deliver(m *membership) {
	sent := m.sent
	if sent.version == 0 || sent.version > t.watched {
		return
	}
	in, _ := m.Summary.Injection(m.set.name)
	if sent.kind == Update && sent.revision != 0 && in.Hash != sent.revision && !m.Updated || sent.kind == Reset && m.Resets {
		t.rest(m, inplace.WriteReverted, rollout.UndoneMessage)
		return
	}
	m.sent, m.Sent, m.Backoff, m.refusals = nil, nil, nil, 0
}
