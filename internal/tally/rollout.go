package tally

import (
	"time"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Kind is what is to be written to a Pod.
type Kind uint8

// The kinds of Tasks.
const (
	// Update: the Pod gets the current content.
	Update Kind = iota
	// Reset: the hot upgrade of the Pod is ended.
	Reset
	// Label: the Pod's condition SidecarSetUpgradable gets its value.
	Label
)

// Task is one write of a Pod. No other Task of the Pod for the SidecarSet is due before Return is
// called for it, and the watch has delivered the write.
type Task struct {
	Kind   Kind
	Record *podstate.Record
	// Was is how the Pod was when the Task became due. A Pod that is another way by now must not be
	// updated: return it as stale.
	Was podstate.Was
	// Node is the state of the Pod's node.
	Node inplace.Node

	member *membership
	sent   *sent
}

// Result is what became of a Task.
type Result struct {
	// Version is the resourceVersion of the Pod that was written; 0 if none was.
	Version uint64
	// Reason is why the Pod was not written, and Message explains it to users; the caller bounds it.
	// Without a Reason, the live Pod is not what the Task was decided from, or needs no write.
	Reason  inplace.Reason
	Message string
}

// sent is a write that is under way, or whose event has not come yet.
type sent struct {
	kind    Kind
	written podstate.Written
	content podstate.Name // that the Pod gets; 0 if its record does not show it
	of      contentID     // that was current
	version uint64        // 0: it is under way
}

// Due has the Tasks of a SidecarSet.
type Due struct {
	// Program is the content that the Pods are to get, and Content what they are compared with.
	Program *inject.Program
	Content *inplace.Content
	// Since is the first second after the content became current.
	Since int64
	Tasks []Task
	// Again is when more may be due without an event; zero for never.
	Again time.Time
}

// Due takes up to most Tasks. There are none for a SidecarSet that the snapshot does not have, and
// none before SetCurrent.
func (t *Tally) Due(sidecarSet string, most int) Due {
	s, ok := t.sets[sidecarSet]
	if !ok || !s.isRecorded() || s.since == 0 || s.tasks == 0 {
		return Due{}
	}
	plan := t.plan(s)
	due := Due{Program: s.program, Content: s.content, Since: s.since}
	if plan.Next != 0 {
		due.Again = time.Unix(plan.Next, 0)
	}
	for _, p := range plan.Reset {
		t.take(s, &due, p, Reset, most)
	}
	for _, p := range plan.Write {
		t.take(s, &due, p, Update, most)
	}
	if len(due.Tasks) > 0 {
		s.status = plan.Status
		t.touch(s)
		return due
	}
	for _, m := range s.members { // conditions are not urgent
		if m.mislabelled {
			t.take(s, &due, &m.Pod, Label, most)
		}
	}
	return due
}

// take makes a Task of a Pod, unless a write of it is under way.
func (t *Tally) take(s *sidecarSet, due *Due, p *rollout.Pod, kind Kind, most int) {
	m := t.pod(p.Record.Namespace, p.Record.Name).member(s)
	switch {
	case len(due.Tasks) >= most || m.sent != nil:
		return
	case m.Rest != nil && t.now < m.Rest.Until: // a Pod that rests is in no plan to be updated
		if again := time.Unix(m.Rest.Until, 0); due.Again.IsZero() || again.Before(due.Again) {
			due.Again = again
		}
		return
	}
	m.sent = &sent{kind: kind, of: contentIDOf(s.program), written: podstate.Written{At: uint32(t.now), Was: p.Was(t.now)}}
	task := Task{Kind: kind, Record: p.Record, Was: m.sent.written.Was, Node: t.nodes[p.Record.Node], member: m, sent: m.sent}
	switch kind {
	case Update:
		if m.Verdict.Way == inplace.Images {
			m.sent.content = podstate.MakeName(s.program.Hash)
		}
		m.Sent = &m.sent.written
	case Reset:
		if m.Written.At != 0 {
			m.sent.written.Was = m.Written.Was
		}
		m.Sent = &m.sent.written
	}
	due.Tasks = append(due.Tasks, task)
}

// Return ends a Task. More may be due afterwards. Why a Pod did not get an earlier content says
// nothing about the current one.
func (t *Tally) Return(task Task, result Result) {
	m := task.member
	if m.sent != task.sent || task.sent.version != 0 || m.set.removed {
		return
	}
	switch {
	case result.Version != 0:
		m.sent.version = result.Version
		t.deliver(m)
	case m.sent.of != contentIDOf(m.set.program):
		t.rest(m, "", "")
	default:
		t.rest(m, result.Reason, result.Message)
	}
	t.markDue(m.set)
	t.touch(m.set)
}

// How long a Pod rests, in seconds: after a write that was refused or undone, twice as long each
// time, and until the watch has shown a Pod that was not as the Task had it.
const (
	refusedRest, longestRest, staleRest = 30, 300, 1
)

// rest keeps a Pod from being written for a while.
func (t *Tally) rest(m *membership, reason inplace.Reason, message string) {
	m.sent, m.Sent = nil, nil
	if reason == "" {
		m.Rest = &rollout.Rest{Until: t.now + staleRest}
		return
	}
	m.Rest = &rollout.Rest{Until: t.now + int64(min(refusedRest<<m.refusals, longestRest)), Reason: reason, Message: message}
	m.refusals = min(m.refusals+1, 10)
}

// deliver ends a write whose event has come. The write is undone if the Pod has neither what was
// written nor the current content, or if its hot upgrade has not ended.
func (t *Tally) deliver(m *membership) {
	sent := m.sent
	if sent == nil || sent.version == 0 || sent.version > t.watched {
		return
	}
	in, _ := m.Record.Injection(m.set.name)
	if sent.kind == Update && sent.content != 0 && in.Hash != sent.content && !m.Carries || sent.kind == Reset && m.Resets {
		t.rest(m, inplace.WriteUndone, "another program has taken the update back")
		return
	}
	m.sent, m.Sent, m.Rest, m.refusals = nil, nil, nil, 0
	if sent.kind == Label { // again only after an event
		m.mislabelled = false
	}
}

// Watched is called when the Pod watch has delivered all events up to a
// resourceVersion, and Set or Delete was called for each.
func (t *Tally) Watched(version uint64) { t.watched = max(t.watched, version) }

// SetNodes makes the given Nodes the only ones, and SetNode sets one; nil is a Node that is gone.
// Before SetNodes is called, no Node counts as gone.
func (t *Tally) SetNodes(nodes map[podstate.Name]inplace.Node) {
	t.nodes = nodes
	t.nodesChanged(func(podstate.Name) bool { return true })
}

// SetNode sets one Node; nil is a Node that is gone.
func (t *Tally) SetNode(name podstate.Name, node *inplace.Node) {
	before, known := t.nodes[name]
	switch {
	case t.nodes == nil || node != nil && known && before == *node:
		return
	case node == nil:
		delete(t.nodes, name)
	default:
		t.nodes[name] = *node
	}
	t.nodesChanged(func(of podstate.Name) bool { return of == name && (node == nil || before.TooOld != node.TooOld) })
}

// nodesChanged looks again at all SidecarSets, and counts the Pods again whose Nodes are chosen.
func (t *Tally) nodesChanged(recount func(podstate.Name) bool) {
	for _, ns := range t.namespaces {
		for _, p := range ns.pods {
			if p.record.Node != 0 && recount(p.record.Node) {
				t.recount(p)
			}
		}
	}
	for _, s := range t.sets {
		t.markDue(s)
		t.touch(s)
	}
}

// isDead reports whether a Pod is not Ready, and its node is not ready or gone.
func (t *Tally) isDead(r *podstate.Record) bool {
	if r.Ready || r.Node == 0 || t.nodes == nil {
		return false
	}
	node, known := t.nodes[r.Node]
	return !known || node.NotReady
}

// DueChanged calls report with the name of each SidecarSet for which more Pods may be
// due than at the last call.
func (t *Tally) DueChanged(report func(sidecarSet string)) {
	for i, s := range t.dueChanged {
		t.dueChanged[i] = nil
		s.due = false
		if !s.removed && s.tasks > 0 {
			report(s.label)
		}
	}
	t.dueChanged = t.dueChanged[:0]
}

// Unrecorded calls report with the name of each SidecarSet that has got another content since
// the last call, so that the caller calls SetCurrent for it.
func (t *Tally) Unrecorded(report func(sidecarSet string)) {
	for _, s := range t.unrecorded {
		if !s.removed && !(s.isRecorded() && s.since != 0) {
			report(s.label)
		}
	}
	t.unrecorded = nil
}

func (t *Tally) markDue(s *sidecarSet) {
	if !s.due {
		s.due = true
		t.dueChanged = append(t.dueChanged, s)
	}
}

// Settle tells the time, and counts the Pods again that have changed by now without an event.
func (t *Tally) Settle(now time.Time) {
	t.now = now.Unix()
	for p, at := range t.settling {
		if t.now >= at {
			t.recount(p)
		}
	}
}

// isMislabelled reports whether the condition SidecarSetUpgradable of a Pod is to be written. A
// Pod that is current needs none until it has been updated in place, and gets it when the update is
// over, so that no update waits for another write.
func (s *sidecarSet) isMislabelled(m *membership, now int64) bool {
	if s.labelled == nil || m.part.count&inplace.Matched == 0 {
		return false
	}
	in, _ := m.Record.Injection(s.name)
	switch m.Verdict.Way {
	case inplace.Current:
		return in.Upgradable == podstate.NotUpgradable || in.Upgradable == podstate.Unsaid && m.Record.Ready && m.Written.IsCarriedOut(now)
	case inplace.Recreate:
		return in.Upgradable != podstate.NotUpgradable && s.labelled.Matches(m.Record.Labels.Labels())
	}
	return false
}
