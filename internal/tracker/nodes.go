package tracker

import (
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// node is a Node that exists, or that has Pods.
type node struct {
	name   podstate.Name
	state  inplace.Node
	exists bool
	pods   []*pod
}

// place puts a Pod on the node of that name; zero for none.
func (t *Tracker) place(p *pod, name podstate.Name) {
	if p.node != nil && p.node.name == name || p.node == nil && name == 0 {
		return
	}
	if n := p.node; n != nil {
		last := n.pods[len(n.pods)-1]
		n.pods[p.place], last.place = last, p.place
		n.pods[len(n.pods)-1] = nil
		n.pods = n.pods[:len(n.pods)-1]
		t.prune(n)
	}
	if p.node = nil; name != 0 {
		p.node = t.node(name)
		p.place = int32(len(p.node.pods))
		p.node.pods = append(p.node.pods, p)
	}
}

func (t *Tracker) node(name podstate.Name) *node {
	n := t.nodes[name]
	if n == nil {
		n = &node{name: name}
		t.nodes[name] = n
	}
	return n
}

// prune forgets a Node that neither exists nor has Pods.
func (t *Tracker) prune(n *node) {
	if !n.exists && len(n.pods) == 0 {
		delete(t.nodes, n.name)
	}
}

// SetNodes makes the given Nodes the only ones, and SetNode sets one; nil is a Node that is gone.
// Before SetNodes is called, no Node counts as gone.
func (t *Tracker) SetNodes(nodes map[podstate.Name]inplace.Node) {
	first := !t.listed
	t.listed = true
	for name, state := range nodes {
		t.SetNode(name, &state)
	}
	for name, n := range t.nodes {
		if _, exists := nodes[name]; !exists && (n.exists || first) {
			t.removeNode(n)
		}
	}
}

// SetNode sets one Node; nil is a Node that is gone.
func (t *Tracker) SetNode(name podstate.Name, state *inplace.Node) {
	if !t.listed {
		return
	}
	n := t.node(name)
	if state == nil {
		t.removeNode(n)
		return
	}
	if before := n.state; !n.exists || before != *state {
		n.exists, n.state = true, *state
		t.nodeChanged(n, before.TooOld != state.TooOld)
	}
}

func (t *Tracker) removeNode(n *node) {
	tooOld := n.state.TooOld
	n.exists, n.state = false, inplace.Node{}
	t.nodeChanged(n, tooOld)
	t.prune(n)
}

// nodeChanged looks again at the Pods of a node. Whether it is ready matters to Pods that are not
// Ready, and what its kubelet can do to all.
func (t *Tracker) nodeChanged(n *node, kubelet bool) {
	for _, p := range n.pods {
		switch {
		case kubelet:
			t.judge(p)
			fallthrough
		case !p.record.Ready:
			for _, m := range p.members {
				t.markDirty(m.set)
			}
		}
	}
}

// nodeState is the state of the Pod's node; the zero value if there is none.
func (p *pod) nodeState() inplace.Node {
	if p.node == nil {
		return inplace.Node{}
	}
	return p.node.state
}

// isDead reports whether a Pod is not Ready, and its node is not ready or gone.
func (p *pod) isDead(t *Tracker) bool {
	return !p.record.Ready && p.node != nil && t.listed && (!p.node.exists || p.node.state.NotReady)
}
