package rollout_test

import (
	"fmt"
	"testing"
)

// runsFor are the Pods that run the second content for that many seconds.
func (w *world) runsFor(seconds int) (pods []*simPod) {
	for _, p := range w.pods {
		if !p.gone && !p.term && p.deadAt == 0 && p.cid > 1 && p.run == 1 && p.st == running && w.now-p.startAt >= seconds {
			pods = append(pods, p)
		}
	}
	return pods
}

// An image fills the disk of its Pod, say, so that the kubelet evicts the Pod some seconds after the start:
// it is Ready, and then Failed, in one event. Or the image takes its node down. figures are the model's.
func TestImagesThatEvictOrKillNodes(t *testing.T) {
	for _, tc := range []struct {
		delay         int
		mu            float64
		evicted, dead int
	}{{5, 1, 6, 4}, {20, 1, 6, 4}, {55, 1, 12, 8}, {5, .1, 6, 4}, {20, .1, 6, 4}, {55, .1, 12, 14}} {
		t.Run(fmt.Sprint(tc.delay, " s, ", tc.mu), func(t *testing.T) {
			served := func(w *world) func(p *simPod) int { // Pods that were updated while they served
				victims := map[int]bool{}
				return func(p *simPod) int {
					if p.took && p.has && p.rev == 1 {
						victims[p.id] = true
					}
					return len(victims)
				}
			}
			evicted, victims := 0, 0
			w := edited(nil, 1, 300, 30, tc.mu, content{})
			count := served(w)
			w.pass(3600, func(int) {
				for _, p := range w.runsFor(tc.delay) {
					evicted = count(p)
					w.evict(p)
				}
			})
			w = edited(nil, 1, 300, 30, tc.mu, content{})
			count = served(w)
			w.pass(3600, func(int) {
				for _, p := range w.runsFor(tc.delay) {
					victims = count(p)
					w.killNode(p.node, 0)
					for node := range w.dead { // a new node has its name
						if len(w.dead) > 90 {
							delete(w.dead, node)
						}
					}
				}
			})
			checked(t, []int{evicted, victims}, []int{tc.evicted + 2, tc.dead + 2})
		})
	}
}

// Pods without a node hold up no cure.
func TestACureBesidePodsWithoutANode(t *testing.T) {
	for _, n := range []int{0, 1, 20, 1000} {
		w := allBroken(nil, 200, 20, breaksAfter(0))
		w.pass(1500, nil) // so that no rollout answers for them any more
		for range n {
			p := w.add(0, false)
			p.unassigned, p.ready = true, false
		}
		w.edit(2)
		checked(t, []int{w.finish(86400, nil)}, []int{75})
	}
}

// Clocks are four hours ahead: of the first Pod's node, of a node with a Pod that has just become Ready, of
// the leader before.
func TestClocksAreAhead(t *testing.T) {
	const ahead = 4 * 3600
	w := edited(nil, 1, 20, 4, 1, content{})
	w.skew[w.pods[0].node] = ahead
	first := w.finish(86400, nil)
	w = newWorld(1, 20, 4, 1)
	w.contents = append(w.contents, content{})
	w.start(nil)
	w.skew[w.pods[0].node], w.pods[0].since = ahead, w.now-60
	w.edit(1)
	second := w.finish(86400, nil)
	w = edited(nil, 1, 20, 4, 1, content{})
	w.pass(1, nil)
	for _, p := range w.pods {
		if p.has {
			p.wrt += ahead
		}
	}
	w.newLeader()
	checked(t, []int{first, second, w.finish(86400, nil)}, []int{900, 900, 300})
}

// A rollout of 300 Pods that were never Ready.
func TestPodsThatAreNeverReady(t *testing.T) {
	w := newWorld(1, 300, 30, 10)
	for _, p := range w.pods {
		w.chronic(p, 0, 1)
	}
	w.contents = append(w.contents, content{})
	w.start(nil)
	w.edit(1)
	checked(t, []int{w.finish(86400, nil)}, []int{23 * 66})
}
