package rollout_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// seen reports whether the status shows that the write was carried out.
func (p *simPod) seen() bool {
	return p.vobs >= p.rgen && p.vcid != p.old && p.vrev == p.rev && p.st != failed
}

// look returns the Pod as the leader sees it.
func (w *world) look(p *simPod) *rollout.Pod {
	r, out := &p.record, &p.out
	if p.has && w.now < p.wrt+w.echo && p.wrt >= w.ledFrom { // the event has not come
		out.Sent = &podstate.Written{At: uint32(p.wrt), StateBefore: p.was}
		return out
	}
	r.Ready, r.Since = p.ready, uint32(p.since+w.skew[p.node])
	out.Sent, out.Written, out.Trouble = nil, podstate.Written{}, 0
	r.Order.Assigned = !p.unassigned
	out.Dead = p.deadAt > 0 && !p.ready && w.now-p.deadAt >= 40
	out.Updated, out.Verdict.Method = p.rev == w.want, inplace.Images
	if out.Updated {
		out.Verdict.Method = inplace.Current
	}
	switch p.st {
	case failed:
		out.Trouble = trouble("ErrImagePull")
	case backoff:
		out.Trouble = trouble("CrashLoopBackOff")
	}
	if w.defaultOrder {
		out.Traits = nil
	}
	if p.has {
		out.Written = podstate.Written{At: uint32(p.wrt), Started: uint32(p.wrt), StateBefore: p.was, Up: p.up && p.vrev == p.rev}
		if p.seen() {
			out.Written.Carried = out.Written.At
			if w.vague && p.node%10 == 0 {
				out.Written.Carried += 40
			}
			if p.restarts == 0 {
				out.Written.Started = uint32(max(p.wrt, p.first+w.skew[p.node]))
			}
		}
	}
	return out
}

// trouble returns the trouble with the kubelet's word.
func trouble(word string) podstate.Trouble {
	for t := range podstate.Troubles {
		if t.String() == word {
			return t
		}
	}
	panic(word)
}

func (w *world) decide() {
	if w.restless {
		w.newLeader()
	}
	w.view = w.view[:0]
	for _, p := range w.pods {
		if !p.gone && !p.term {
			w.view = append(w.view, w.look(p))
		}
	}
	if w.mistake.view != nil {
		w.mistake.view(w)
	}
	w.plan = rollout.Decide(rollout.Input{Strategy: w.strategy(), Status: w.status, Stored: w.status.IsStoredIn(w.saved, int64(w.now)) || w.mistake.noWait, Now: int64(w.now)}, w.view)
	if w.mistake.plan != nil {
		w.mistake.plan(w)
	}
	w.setStatus(w.plan.Status)
	w.next = int(w.plan.Next)
	for _, p := range w.plan.Write {
		w.write(w.of(p), p.StateBefore(int64(w.now)))
	}
	if len(w.plan.Write) > 0 {
		w.next = w.now + 1
	}
}

func (w *world) of(p *rollout.Pod) *simPod {
	id, _ := strconv.Atoi(p.Record.Name)
	return w.born[id]
}

// setStatus sets the status. It is stored two seconds later.
func (w *world) setStatus(s rollout.Status) {
	w.status = s
	if w.saveAt == 0 && s != w.saved {
		w.saveAt = w.now + 2
	}
}

func (w *world) newLeader() {
	w.event, w.ledFrom = true, w.now
	if w.restless {
		return
	}
	if w.mistake.leader != nil {
		w.mistake.leader(&w.saved)
	}
	w.status, w.saveAt = w.saved, 0
}

// leave is called when a Pod disappears, or begins to.
func (w *world) leave(p *simPod, failed bool) {
	if !p.term && !w.mistake.noLoss {
		w.setStatus(w.status.Disappear(w.look(p), w.strategy(), failed, w.plan.Available, int64(w.now)))
	}
}

func (w *world) edit(rev int) {
	w.event, w.want = true, rev
	w.status, w.saved, w.saveAt = rollout.Begun, rollout.Begun, 0
}

func (w *world) write(p *simPod, was podstate.StateBefore) {
	if w.mistake.write != nil {
		was = w.mistake.write(was)
	}
	broken := p.st == running && w.broken(p, p.run)
	serving := (p.st == running || p.st == restarting && p.took) && !p.ownBad && w.now >= p.appFrom && p.deadAt == 0 && !broken
	p.took = serving && p.ready || p.took && (p.st != running || broken)
	p.has, p.was, p.old, p.wrt, p.rev = true, was, p.vcid, w.now, w.want
	p.gen++
	p.rgen = p.gen
	w.lastWrite = w.now
	if c := w.contents[w.want]; c.kind != good && w.hit(p, w.want) {
		if serving {
			w.victims[p.id] = true
		} else if !p.took {
			w.downVictims[p.id] = true
		}
	}
}

func (w *world) kill(p *simPod, replace bool) { w.end(p, replace, false) }

// evict lets a Pod fail as a whole; another one replaces it.
func (w *world) evict(p *simPod) { w.end(p, true, true) }

func (w *world) end(p *simPod, replace, failed bool) {
	w.leave(p, failed)
	p.gone, w.event = true, true
	if !p.term {
		w.appSize[p.app]--
	}
	if replace {
		w.add(p.app, false)
	}
}

// ---------- time and measures ----------

func (w *world) step(each func()) {
	w.now++
	if w.leaderEvery > 0 && w.now%w.leaderEvery == 0 {
		w.newLeader()
	}
	for i := 0; i < len(w.pods); i++ { //nolint:intrange // Pods are added meanwhile
		if p := w.pods[i]; !p.gone {
			w.kubelet(p)
		}
	}
	if each != nil {
		each()
	}
	if w.saveAt > 0 && w.now >= w.saveAt {
		w.saved, w.saveAt, w.event = w.status, 0, true
	}
	w.event = w.event || w.echo > 0 && w.now == w.lastWrite+w.echo
	if (w.event || w.next > 0 && w.now >= w.next) && (w.lag == 0 || w.now%w.lag == 0) {
		w.event = false
		w.decide()
	}
	if w.now%64 == 0 {
		kept := w.pods[:0]
		for _, p := range w.pods {
			if !p.gone {
				kept = append(kept, p)
			}
		}
		w.pods = kept
	}
	w.measure()
}

func (w *world) measure() {
	down, ours := 0, 0
	clear(w.ad)
	for _, p := range w.pods {
		if p.gone || p.term || !p.has || p.ownBad || w.now < p.appFrom || p.deadAt > 0 {
			continue
		}
		if p.st == restarting && p.restarted || p.st == failed || p.st == backoff || w.broken(p, p.run) {
			down++
			w.ad[p.app]++
			if p.took {
				ours++
			}
		}
	}
	w.peakDown, w.peakOurs = max(w.peakDown, down), max(w.peakOurs, ours)
	for a, d := range w.ad {
		if d > 0 && w.appSize[a] > 1 {
			w.peakAppDown = max(w.peakAppDown, float64(d)/float64(w.appSize[a]))
		}
	}
}

func (w *world) count(is func(*simPod) bool) (n int) {
	for _, p := range w.pods {
		if !p.gone && !p.term && p.deadAt == 0 && is(p) {
			n++
		}
	}
	return n
}

func (w *world) outdated() int {
	return w.count(func(p *simPod) bool { return p.rev != w.want })
}

// isHurt reports whether a Pod is down because of its content.
func (w *world) isHurt(p *simPod) bool {
	return !p.ownNoStart && (p.st == failed || p.st == backoff || w.broken(p, p.run))
}

func (w *world) hurt() int { return w.count(w.isHurt) }

// lie returns what is wrong with the reason that the plan gives; "" if nothing is.
func (w *world) lie() string {
	who := w.plan.Who
	w.event = true
	switch rule := w.plan.Rule; {
	case rule == rollout.NoRule:
		return "no reason is given"
	case rule == rollout.Paused, rule == rollout.Partition, who == nil && w.status.Disappeared > 0:
		return ""
	case who == nil:
		return fmt.Sprintf("rule %d names no Pod", rule)
	case (rule == rollout.Budget || rule == rollout.SlowStart || rule == rollout.WorkloadShare) && (who.Written.At == 0 || who.Written.StateBefore == podstate.WasNotReady):
		return fmt.Sprintf("Pod %s does not hold up others by rule %d", who.Record.Name, rule)
	case rule == rollout.MinReadySeconds:
		return ""
	}
	p := w.of(who)
	switch {
	case p.gone, p.term:
		return fmt.Sprintf("Pod %d does not exist", p.id)
	case p.ready && p.seen() && p.run == p.rev && p.since+w.skew[p.node] < w.now-900 && p.first < w.now-900:
		return fmt.Sprintf("Pod %d is well", p.id)
	}
	return ""
}

func checked(t *testing.T, got, most []int) {
	t.Helper()
	for i := range most {
		if got[i] > most[i] {
			t.Errorf("got %d, want at most %d", got, most)
			return
		}
	}
	t.Logf("%d of %d", got, most)
}
