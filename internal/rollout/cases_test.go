package rollout_test

import (
	"slices"
)

// setup changes a world before its first second.
type setup func(*world)

// row is one row of the table of the rules: what happens in a simulated cluster. Figures are Pods
// that got a bad image while they served, and while they were down already; or seconds.
type row struct {
	name string
	long bool // it is skipped with -short
	most []int
	run  func(setup) []int
}

// both makes a change before another one, if there is any.
func both(second, first setup) setup {
	return func(w *world) {
		first(w)
		if second != nil {
			second(w)
		}
	}
}

// start runs five seconds, which come before the edit.
func (w *world) start(mod setup) *world {
	if mod != nil {
		mod(w)
	}
	w.pass(5, nil)
	return w
}

func (w *world) pass(seconds int, each func(t int)) *world {
	for t := 1; t <= seconds; t++ {
		w.step(func() {
			if each != nil {
				each(t)
			}
		})
	}
	return w
}

// earlier gives all Pods the record of an earlier rollout that is over.
func (w *world) earlier(ago int) {
	for _, p := range w.pods {
		p.has, p.wrt, p.rgen, p.old = true, w.now-ago, p.gen, -1
		p.first, p.startAt = w.now-ago+3, w.now-ago+3
	}
}

// hits is how many Pods got the bad image.
func (w *world) hits() []int { return []int{len(w.victims), len(w.downVictims)} }

// finish runs until no Pod is outdated, and returns how long that took.
func (w *world) finish(horizon int, each func(t int)) int {
	for t := 1; t <= horizon; t++ {
		w.pass(1, func(int) {
			if each != nil {
				each(t)
			}
		})
		if w.outdated() == 0 {
			return t
		}
	}
	return never
}

// repaired is how long it takes until no Pod is down because of an image.
func (w *world) repaired(horizon int) int {
	for t := range horizon {
		if w.hurt() == 0 {
			return t
		}
		w.step(nil)
	}
	return never
}

// edited returns a world whose SidecarSet has just got the first of these contents.
func edited(mod setup, seed int64, n, apps int, mu float64, contents ...content) *world {
	w := newWorld(seed, n, apps, mu)
	w.contents = append(w.contents, contents...)
	w.start(mod)
	w.edit(1)
	return w
}

// harm spreads a bad image. share of the Pods is down at any time, for down seconds.
func harm(mod setup, n, apps int, mu float64, c content, share, down float64, horizon int, seed int64) []int {
	w := edited(both(mod, func(w *world) {
		w.background(share, down)
	}), seed, n, apps, mu, c)
	for t := 1; t <= horizon; t++ {
		w.step(nil)
		if w.outdated() == 0 && t > c.delay+c.jitter+60 && w.now%600 == 0 {
			break
		}
	}
	return w.hits()
}

// after has all Pods updated already, some seconds ago.
func after(ago int, mod setup) setup {
	return both(mod, func(w *world) {
		w.earlier(ago)
	})
}

func needs(seconds int, mod setup) setup {
	return both(mod, func(w *world) {
		w.minReady = seconds
	})
}

// ends is how long a good rollout takes.
func ends(mod setup, n, apps int, mu, share, down float64, seed int64) int {
	return edited(both(mod, func(w *world) {
		w.background(share, down)
	}), seed, n, apps, mu, content{}).finish(86400, nil)
}

// often is the median, the 95 % and the worst of the times that a good rollout takes, one Pod at a time.
func often(mod setup, n, apps int, share, down float64) []int {
	var all []int
	for seed := range int64(100) {
		all = append(all, ends(mod, n, apps, 1, share, down, seed+1))
	}
	slices.Sort(all)
	return []int{all[50], all[95], all[99]}
}

// deletes deletes one Pod that the image broke, every so many seconds.
func (w *world) deletes(every int) func(int) {
	return func(t int) {
		if t%every == 0 {
			w.deleteVictim()
		}
	}
}

func (w *world) deleteVictim() bool {
	for _, p := range w.pods {
		if !p.gone && !p.term && p.has && p.rev == w.want && !p.ready && p.st != restarting && !p.ownBad {
			w.kill(p, true)
			return true
		}
	}
	return false
}

// outage has three of four Pods down for five minutes when an image comes that breaks after 20 s.
func outage(mod setup) []int {
	w := newWorld(1, 2000, 200, 10)
	w.contents = append(w.contents, breaksAfter(20))
	w.start(mod)
	for _, p := range w.pods {
		if p.id%4 != 0 {
			p.ownBad, p.ownNext, p.idle = true, w.now+300, false
		}
	}
	w.bgShare, w.bgDown = 1e-9, 1e-3
	w.step(nil)
	w.edit(1)
	return w.pass(3600, nil).hits()
}

// silent is how long a good rollout takes if k Pods are on nodes that do not act.
func silent(mod setup, n, apps, k int, stuck bool) int {
	return edited(both(mod, func(w *world) {
		for i := range k {
			w.pods[i*(n/k)].ignores, w.pods[i*(n/k)].stuck = !stuck, stuck
		}
	}), 1, n, apps, 1, content{}).finish(86400, nil)
}

// overtaken: an edit to a bad image comes when a good rollout, at its full speed, has 100 Pods
// restarting.
func overtaken(mod setup, first, second content, later int) int {
	w, since := edited(mod, 1, 2000, 200, .1, first, second), 0
	w.finish(3000, func(t int) {
		if since == 0 && w.count(func(p *simPod) bool { return p.st == restarting }) >= 100 {
			since = t
		}
		if since > 0 && t == since+later {
			w.edit(2)
		}
	})
	return len(w.victims)
}

// allBroken: all Pods have the content 1, which is broken; content 2 is good.
func allBroken(mod setup, n, apps int, c content) *world {
	w := newWorld(1, n, apps, 1)
	w.contents = append(w.contents, c, content{})
	w.start(mod)
	w.edit(1)
	for _, p := range w.pods {
		p.rev, p.run, p.vrev, p.idle = 1, 1, 1, false
	}
	return w
}

func breaksAfter(seconds int) content { return content{kind: breaksApp, delay: seconds} }

var (
	doesNotStart = content{kind: noStart}
	anHour       = 3600
	twoHours     = 7200
)
