package rollout_test

import (
	"slices"
	"testing"

	"github.com/sidecarset/operator/internal/podstate"
)

// never is the time of what does not happen.
const never = 1 << 30

func flat(parts ...[]int) []int { return slices.Concat(parts...) }

// rows is the table in docs/design/0009-running-pods.md. The figures are those of the model with
// which the rules were chosen.
var rows = []row{
	{"does not start, 1 % of 2,000 Pods down for a minute, six hours", true, []int{1, 1}, func(m setup) []int {
		return harm(m, 2000, 200, 1, doesNotStart, .01, 60, 6*anHour, 31)
	}},
	{"does not start, 1 % down for ten minutes, for a day", true, []int{1, 1, 1, 1}, func(m setup) []int {
		return flat(harm(m, 2000, 200, 1, doesNotStart, .01, 600, 6*anHour, 31), harm(m, 2000, 200, 1, doesNotStart, .01, 86400, 6*anHour, 31))
	}},
	{"does not start, second rollout after an hour, after two minutes", true, []int{1, 1, 1, 2}, func(m setup) []int {
		return flat(harm(after(3600, m), 2000, 200, 1, doesNotStart, .01, 60, twoHours, 31), harm(after(120, m), 2000, 200, 1, doesNotStart, .01, 60, anHour, 31))
	}},
	{"an outage of 75 %, and in a second rollout", true, []int{1, 1, 1, 1}, func(m setup) []int {
		return flat(outage(m), outage(after(3600, m)))
	}},
	{"breaks after a minute, 20 Pods", false, []int{2, 0}, func(m setup) []int { return harm(m, 20, 4, 1, breaksAfter(60), 0, 0, anHour, 1) }},
	{"breaks after a minute, 2,000 Pods at 5 %", false, []int{2, 0}, func(m setup) []int { return harm(m, 2000, 200, .05, breaksAfter(60), 0, 0, anHour, 1) }},
	{"breaks after a minute, 10,000 Pods at 10 %", true, []int{2, 0}, func(m setup) []int { return harm(m, 10000, 500, .1, breaksAfter(60), 0, 0, anHour/2, 1) }},
	{"crash loops of 10, 25 and 45 s, 2,000 Pods at 5 %", true, []int{1, 0, 1, 0, 2, 0}, func(m setup) (all []int) {
		for _, d := range []int{10, 25, 45} {
			all = append(all, harm(m, 2000, 200, .05, content{kind: crashes, delay: d}, 0, 0, anHour, 1)...)
		}
		return all
	}},
	{"readiness flaps every 30 s, every minute", true, []int{1, 0, 2, 0}, func(m setup) []int {
		return flat(harm(m, 2000, 200, .05, content{kind: flaps, delay: 10, period: 30, duty: .5}, 0, 0, anHour, 1),
			harm(m, 2000, 200, .05, content{kind: flaps, delay: 10, period: 60, duty: .9}, 0, 0, anHour, 1))
	}},
	{"breaks after five minutes, 20 and 300 Pods", false, []int{20, 0, 45, 0}, func(m setup) []int {
		return flat(harm(m, 20, 4, 1, breaksAfter(300), 0, 0, twoHours, 1), harm(m, 300, 30, 1, breaksAfter(300), 0, 0, 2*twoHours, 1))
	}},
	{"breaks after five minutes, 2,000 Pods, 10 at a time", true, []int{392, 0}, func(m setup) []int { return harm(m, 2000, 200, 10, breaksAfter(300), 0, 0, twoHours, 1) }},
	{"breaks after nine minutes, ready for five: 1, 10, 5 %; a good image", true, []int{2, 0, 2, 0, 2, 0, 10847, 3778, 3387}, func(m setup) (all []int) {
		for _, mu := range []float64{1, 10, .05} {
			all = append(all, harm(needs(300, m), 2000, 200, mu, breaksAfter(540), 0, 0, 4*anHour, 41)...)
		}
		for _, mu := range []float64{1, 10, .05} {
			all = append(all, ends(needs(300, m), 2000, 200, mu, 0, 0, 41))
		}
		return all
	}},
	{"breaks after eleven minutes, 300 and 2,000 Pods", true, []int{130, 0, 125, 0}, func(m setup) []int {
		return flat(harm(m, 300, 30, 1, breaksAfter(660), 0, 0, 4*anHour, 1), harm(m, 2000, 200, 1, breaksAfter(660), 0, 0, 4*anHour, 1))
	}},
	{"a bad edit overtakes a good rollout at 10 %: does not start, 20 s, a slow pull before", true, []int{2, 3, 2}, func(m setup) []int {
		slow := both(m, func(w *world) {
			w.restLo, w.restHi = 8, 20
		})
		return []int{overtaken(slow, content{}, doesNotStart, 0), overtaken(slow, content{}, breaksAfter(20), 0), overtaken(m, content{pull: 60}, doesNotStart, 35)}
	}},
	{"five bad edits, a minute apart: most down; cured", false, []int{1, 5}, func(m setup) []int {
		w := edited(m, 1, 200, 20, 1, doesNotStart, doesNotStart, doesNotStart, doesNotStart, doesNotStart, content{})
		for k := 1; k <= 5; k++ {
			w.edit(k)
			w.pass(60, nil)
		}
		most, cured := w.peakDown, never
		w.edit(6)
		for t := 1; t < 7200 && cured == never; t++ {
			if w.pass(1, nil).count(func(p *simPod) bool { return p.st == failed || p.run > 0 && p.run < 6 }) == 0 {
				cured = t
			}
		}
		return []int{most, cured}
	}},
	{"five edits that break after a minute, one Pod and 10 %: most down", false, []int{6, 6}, func(m setup) (all []int) {
		for _, mu := range []float64{1, .1} {
			w := edited(m, 1, 200, 20, mu, breaksAfter(60), breaksAfter(60), breaksAfter(60), breaksAfter(60), breaksAfter(60))
			for k := 1; k <= 5; k++ {
				w.edit(k)
				w.pass(180, nil)
			}
			all = append(all, w.peakDown)
		}
		return all
	}},
	{"40 good edits, three seconds apart, five at a time: most down; done", false, []int{5, 766}, func(m setup) []int {
		w := edited(both(m, func(w *world) {
			w.restLo, w.restHi = 8, 20
		}), 1, 200, 20, 5, make([]content, 40)...)
		for k := 1; k <= 40; k++ {
			w.edit(k)
			w.pass(3, nil)
		}
		done := w.finish(7200, nil)
		return []int{w.peakDown, done}
	}},
	{"victims are deleted each minute: does not start, breaks after 10 s, a minute", false, []int{3, 3, 6}, func(m setup) (all []int) {
		for _, c := range []content{doesNotStart, breaksAfter(10), breaksAfter(60)} {
			w := edited(m, 1, 200, 20, 1, c)
			w.pass(1800, w.deletes(60))
			all = append(all, len(w.victims))
		}
		return all
	}},
	{"victims are deleted every two minutes, a new leader each minute, two hours", true, []int{11}, func(m setup) []int {
		w := edited(m, 1, 2000, 200, 5, breaksAfter(20))
		w.leaderEvery = 60
		w.pass(7200, w.deletes(120))
		return []int{len(w.victims)}
	}},
	{"an app without its pull secret rolls itself out", true, []int{1114}, func(m setup) []int {
		w := edited(both(m, func(w *world) {
			for i := range w.appHit {
				w.appHit[i] = float64(min(i, 1))
			}
		}), 1, 2000, 200, 10, content{kind: noStart, share: .5})
		for _, p := range slices.Clone(w.pods) {
			if p.app == 0 {
				w.kill(p, true)
			}
		}
		return []int{w.finish(20000, nil)}
	}},
	{"an autoscaler adds Pods while some are down", false, []int{1}, func(m setup) []int {
		w := edited(m, 1, 300, 1, .1, breaksAfter(10))
		w.pass(3600, func(t int) {
			if n := len(w.pods); t%30 == 0 && n < 1500 && t > 60 {
				for range n / 10 {
					w.add(0, false)
				}
			}
		})
		return []int{len(w.victims)}
	}},
	{"a canary is rolled back: does not start, breaks after a minute: victims; cured", false, []int{1, 2, 2, 12}, func(m setup) (all []int) {
		for _, c := range []content{doesNotStart, breaksAfter(60)} {
			w := edited(m, 1, 100, 10, 10, c)
			w.part = .9
			w.pass(300, nil)
			w.edit(0)
			all = append(all, len(w.victims), w.repaired(3600))
		}
		return all
	}},
	{"a canary stays as small as it is", true, []int{200}, func(m setup) []int {
		w := edited(func(w *world) {
			w.background(.01, 60)
			after(3600, m)(w)
			w.part = .9
		}, 1, 2000, 200, 10, content{})
		return []int{2000 - w.pass(6*anHour, nil).outdated()}
	}},
	{"one silent node of 200 Pods: ignores the write, acknowledges it", false, []int{1581, 1581}, func(m setup) []int {
		return []int{silent(m, 200, 20, 1, false), silent(m, 200, 20, 1, true)}
	}},
	{"one silent node of five Pods", false, []int{675, 675}, func(m setup) []int {
		return []int{silent(m, 5, 2, 1, false), silent(m, 5, 2, 1, true)}
	}},
	{"all Pods are down, and the first stays so: its sidecar runs, does not start", false, []int{97, 663}, func(m setup) (all []int) {
		for _, noStart := range []bool{false, true} {
			w := allBroken(m, 200, 20, breaksAfter(0))
			w.pass(100, nil)
			w.chronic(w.pods[0], 0, 1)
			w.pods[0].ownNoStart = noStart
			w.edit(2)
			all = append(all, w.finish(86400, nil))
		}
		return all
	}},
	{"a chronic crasher, and the Pod that is updated is deleted", false, []int{783}, func(m setup) []int {
		w, killed := edited(both(m, func(w *world) {
			w.chronic(w.pods[0], 0, 1)
		}), 1, 20, 2, 1, content{}), false
		return []int{w.finish(86400, func(int) {
			for _, p := range w.pods {
				if !killed && !p.gone && p.has && p.was != podstate.WasNotReady && p.st == restarting && p.app == 0 {
					w.kill(p, true)
					killed = true
				}
			}
		})}
	}},
	{"three nodes die for ever", false, []int{2052}, func(m setup) []int {
		w := edited(both(m, func(w *world) {
			w.daemons = 10
		}), 1, 300, 30, 1, content{})
		return []int{w.finish(86400, func(t int) {
			if t%60 == 0 && t <= 180 {
				for _, p := range w.pods {
					if !p.gone && p.st == restarting && p.has && p.deadAt == 0 {
						w.killNode(p.node, 0)
						return
					}
				}
			}
		})}
	}},
	{"30 apps, five with a broken replica: most of one app down in percent; done", false, []int{33, 500}, func(m setup) []int {
		w := newWorld(1, 0, 30, .1)
		for a := range 30 {
			size := 3
			if sizes := []int{200, 80, 40, 20, 20, 10, 10, 10}; a < len(sizes) {
				size = sizes[a]
			}
			for i := range size {
				p := w.add(a, true)
				p.ownBad = a > 24 && i == 0
				p.ready = !p.ownBad
			}
		}
		w.restLo, w.restHi = 10, 20
		w.contents = append(w.contents, content{})
		w.start(m)
		w.peakAppDown = 0
		w.edit(1)
		done := w.finish(7200, nil)
		return []int{int(100 * w.peakAppDown), done}
	}},
	{"good: 20 Pods, 300 at 10 %, 2,000 at 5 %", false, []int{195, 310, 418}, func(m setup) []int {
		return []int{ends(m, 20, 4, 1, 0, 0, 1), ends(m, 300, 30, .1, 0, 0, 1), ends(m, 2000, 200, .05, 0, 0, 1)}
	}},
	{"good: 10,000 Pods at 10 %; 2,000 one by one", true, []int{499, 9132}, func(m setup) []int {
		return []int{ends(m, 10000, 500, .1, 0, 0, 1), ends(m, 2000, 200, 1, 0, 0, 1)}
	}},
	{"good, 1 % down for an hour: one and ten at a time", true, []int{8931, 1098}, func(m setup) []int {
		return []int{ends(m, 2000, 200, 1, .01, 3600, 1), ends(m, 2000, 200, 10, .01, 3600, 1)}
	}},
	{"good, 1 % down for ever, and their sidecars do not start", true, []int{9040}, func(m setup) []int {
		w := newWorld(1, 2000, 200, 1)
		for i := 0; i < 2000; i += 100 {
			w.chronic(w.pods[i], 0, 1)
			w.pods[i].ownNoStart = true
		}
		w.contents = append(w.contents, content{})
		w.start(m)
		w.edit(1)
		return []int{w.finish(86400, nil)}
	}},
	{"good, a pull takes three, eight minutes: most down; done", false, []int{1, 3571, 1, 9271}, func(m setup) (all []int) {
		for _, pull := range []int{180, 480} {
			w := edited(m, 1, 20, 4, 1, content{pull: pull})
			done := w.finish(43200, nil)
			all = append(all, w.peakDown, done)
		}
		return all
	}},
	{"good, 20 Pods, 5 % down for an hour, 100 seeds: median, 95 %, worst", true, []int{184, 194, 7322}, func(m setup) []int { return often(m, 20, 4, .05, 3600) }},
	{"good, 60 Pods, 5 % down for an hour, 100 seeds", true, []int{353, 369, 381}, func(m setup) []int { return often(m, 60, 10, .05, 3600) }},
	{"a cure after fifteen minutes: broken after a minute, a fifth of the apps at once: victims; cured", true, []int{2, 10, 41, 28}, func(m setup) (all []int) {
		for _, c := range []content{breaksAfter(60), {kind: breaksApp, delay: 1, share: .2}} {
			w := edited(m, 1, 2000, 200, .05, c, content{})
			n := w.pass(900, nil).hurt()
			w.edit(2)
			all = append(all, n, w.repaired(20000))
		}
		return all
	}},
	{"a cure for 97 Pods that were created with the image", true, []int{97, 37}, func(m setup) []int {
		w := edited(m, 1, 2000, 200, 1, breaksAfter(10), content{})
		w.pass(600, func(t int) {
			if t <= 100 {
				if p := w.pods[w.rng.Intn(2000)]; !p.gone {
					w.kill(p, true)
				}
			}
		})
		n := w.hurt()
		w.edit(2)
		return []int{n, w.repaired(20000)}
	}},
	{"a cure for all 2,000 Pods, broken two hours after the rollout", true, []int{85}, func(m setup) []int {
		w := allBroken(m, 2000, 200, content{})
		w.earlier(7200)
		w.contents[1] = breaksAfter(7200)
		w.pass(100, nil)
		w.edit(2)
		return []int{w.repaired(80000)}
	}},
}

// TestTheTable runs each row in the order of Pods that the model has: with one leader, with a new one
// each minute, and with a new one before each decision. It runs the long rows with changing leaders
// if -rollout.seeds is given, because they take minutes.
func TestTheTable(t *testing.T) {
	for _, r := range rows {
		for name, leaders := range map[string]setup{"": nil, ", a new leader each minute": func(w *world) { w.leaderEvery = 60 }, ", many leaders": func(w *world) { w.restless = true }} {
			if r.long && leaders != nil && *seedsFlag == 0 {
				continue
			}
			t.Run(r.name+name, func(t *testing.T) {
				if testing.Short() && (r.long || leaders != nil) {
					t.Skip("SKIP: it takes long; make test-long runs it")
				}
				t.Parallel()
				checked(t, r.run(leaders), r.most)
			})
		}
	}
}
