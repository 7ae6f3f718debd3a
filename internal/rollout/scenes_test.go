package rollout_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/fixtures/cluster"
)

// row is a scene, and what it comes to in the model with which the rules were chosen.
type row struct {
	name  string
	scene scene
	model figures
	long  bool // it is skipped with -short
}

// TestTheTable runs each row, in the order of Pods that the model has.
func TestTheTable(t *testing.T) {
	for _, r := range allRows() {
		t.Run(r.name, func(t *testing.T) {
			if r.long && testing.Short() {
				t.Skip("SKIP: it takes long; make test-long runs it")
			}
			t.Parallel()
			r.scene.run(t, r.model, nil).check(t, r.model)
		})
	}
}

// TestLeadersChange runs rows with a new leader each minute, and with a new one before each pass.
func TestLeadersChange(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP: it takes long; make test-long runs it")
	}
	for _, r := range slices.Concat(badImages, edits, cures, goodImages) {
		for name, change := range leaders {
			if small := r.scene.pods > 0 && r.scene.pods <= 300; small && !r.long && change != nil {
				t.Run(r.name+name, func(t *testing.T) {
					t.Parallel()
					r.scene.run(t, r.model, change).check(t, r.model)
				})
			}
		}
	}
}

var badImages = []row{
	{"does not start, 1 % of 2,000 Pods down for a minute", scene{pods: 2000, apps: 200, share: .01, down: 60, images: only(noStart), seconds: 6 * anHour, seed: 31}, figures{victims: 1, down: 1}, true},
	{"does not start, 1 % down for ten minutes", scene{pods: 2000, apps: 200, share: .01, down: 600, images: only(noStart), seconds: 6 * anHour, seed: 31}, figures{victims: 1, down: 1}, true},
	{"does not start, 1 % down for a day", scene{pods: 2000, apps: 200, share: .01, down: aDay, images: only(noStart), seconds: 6 * anHour, seed: 31}, figures{victims: 1, down: 1}, true},
	{"does not start, an hour after another rollout", scene{pods: 2000, apps: 200, share: .01, down: 60, updated: 3600, images: only(noStart), seconds: 2 * anHour, seed: 31}, figures{victims: 1, down: 1}, true},
	{"does not start, two minutes after another rollout", scene{pods: 2000, apps: 200, share: .01, down: 60, updated: 120, images: only(noStart), seconds: anHour, seed: 31}, figures{victims: 1, down: 2}, true},
	{"an outage of 75 %", scene{pods: 2000, apps: 200, max: 10, before: outage, images: only(breaksAfter(20)), seconds: anHour}, figures{victims: 1, down: 1}, true},
	{"an outage of 75 %, an hour after another rollout", scene{pods: 2000, apps: 200, max: 10, updated: 3600, before: outage, images: only(breaksAfter(20)), seconds: anHour}, figures{victims: 1, down: 1}, true},
	{"breaks after a minute, 20 Pods", scene{pods: 20, apps: 4, images: only(breaksAfter(60)), seconds: anHour}, figures{victims: 2}, false},
	{"breaks after a minute, 2,000 Pods at 5 %", scene{pods: 2000, apps: 200, max: .05, images: only(breaksAfter(60)), seconds: anHour}, figures{victims: 2}, true},
	{"breaks after a minute, 10,000 Pods at 10 %", scene{pods: 10000, apps: 500, max: .1, images: only(breaksAfter(60)), seconds: anHour / 2}, figures{victims: 2}, true},
	{"a crash loop of 10 s", scene{pods: 2000, apps: 200, max: .05, images: only(cluster.Image{Does: cluster.Crashes, Delay: 10}), seconds: anHour}, figures{victims: 1}, true},
	{"a crash loop of 25 s", scene{pods: 2000, apps: 200, max: .05, images: only(cluster.Image{Does: cluster.Crashes, Delay: 25}), seconds: anHour}, figures{victims: 1}, true},
	{"a crash loop of 45 s", scene{pods: 2000, apps: 200, max: .05, images: only(cluster.Image{Does: cluster.Crashes, Delay: 45}), seconds: anHour}, figures{victims: 2}, true},
	{"readiness flaps every 30 s", scene{pods: 2000, apps: 200, max: .05, images: only(cluster.Image{Does: cluster.Flaps, Delay: 10, Period: 30, Duty: .5}), seconds: anHour}, figures{victims: 1}, true},
	{"readiness flaps every minute", scene{pods: 2000, apps: 200, max: .05, images: only(cluster.Image{Does: cluster.Flaps, Delay: 10, Period: 60, Duty: .9}), seconds: anHour}, figures{victims: 2}, true},
	{"breaks after five minutes, 20 Pods", scene{pods: 20, apps: 4, images: only(breaksAfter(300)), seconds: 2 * anHour}, figures{victims: 20}, false},
	{"breaks after five minutes, 300 Pods", scene{pods: 300, apps: 30, images: only(breaksAfter(300)), seconds: 4 * anHour}, figures{victims: 45}, true},
	{"breaks after five minutes, 2,000 Pods, 10 at a time", scene{pods: 2000, apps: 200, max: 10, images: only(breaksAfter(300)), seconds: anHour}, figures{victims: 392}, true},
	{"the same beside 1,000 Pods without a node", scene{pods: 2000, apps: 200, max: 10, images: only(breaksAfter(300)), seconds: anHour, setup: queue(1000)}, figures{victims: 388, new: 1000}, true},
	{"breaks after nine minutes, ready for five, one at a time", scene{pods: 2000, apps: 200, minReady: 300, images: only(breaksAfter(540)), seconds: 4 * anHour, seed: 41}, figures{victims: 2}, true},
	{"breaks after nine minutes, ready for five, 5 %", scene{pods: 2000, apps: 200, max: .05, minReady: 300, images: only(breaksAfter(540)), seconds: 4 * anHour, seed: 41}, figures{victims: 2}, true},
	{"breaks after eleven minutes, 300 Pods", scene{pods: 300, apps: 30, images: only(breaksAfter(660)), seconds: 4 * anHour}, figures{victims: 130}, true},
	{"breaks after eleven minutes, 2,000 Pods", scene{pods: 2000, apps: 200, images: only(breaksAfter(660)), seconds: 4 * anHour}, figures{victims: 125}, true},
}

var edits = []row{
	{"a good rollout at its full speed is overtaken by an image that does not start", scene{pods: 2000, apps: 200, max: .1, restart: [2]int{8, 20}, images: only(good, noStart), edits: []int{1}, happens: overtaken(0), seconds: 3000}, figures{victims: 2}, true},
	{"by one that breaks after 20 s", scene{pods: 2000, apps: 200, max: .1, restart: [2]int{8, 20}, images: only(good, breaksAfter(20)), edits: []int{1}, happens: overtaken(0), seconds: 3000}, figures{victims: 3}, true},
	{"during a slow pull", scene{pods: 2000, apps: 200, max: .1, images: only(cluster.Image{Pull: 60}, noStart), edits: []int{1}, happens: overtaken(35), seconds: 3000}, figures{victims: 2}, true},
	{"five bad edits, a minute apart", scene{pods: 200, apps: 20, images: only(noStart, noStart, noStart, noStart, noStart, good), every: 60}, figures{victims: 1, peak: 1, cured: 5}, false},
	{"five edits that break after a minute, one Pod at a time", scene{pods: 200, apps: 20, images: slices.Repeat(only(breaksAfter(60)), 5), every: 180, seconds: 180}, figures{victims: 6, peak: 6}, false},
	{"five edits that break after a minute, 10 %", scene{pods: 200, apps: 20, max: .1, images: slices.Repeat(only(breaksAfter(60)), 5), every: 180, seconds: 180}, figures{victims: 6, peak: 6}, false},
	{"40 good edits, three seconds apart, five at a time", scene{pods: 200, apps: 20, max: 5, restart: [2]int{8, 20}, images: make([]cluster.Image, 40), every: 3}, figures{peak: 5, done: 766}, false},
	{"a canary that does not start is rolled back", scene{pods: 100, apps: 10, max: 10, partition: .9, images: only(noStart), edits: []int{1, 0}, every: 300, seconds: anHour}, figures{victims: 1, cured: 2}, false},
	{"a canary that breaks after a minute is rolled back", scene{pods: 100, apps: 10, max: 10, partition: .9, images: only(breaksAfter(60)), edits: []int{1, 0}, every: 300, seconds: anHour}, figures{victims: 2, cured: 12}, false},
	{"a canary stays as small as it is", scene{pods: 2000, apps: 200, max: 10, partition: .9, share: .01, down: 60, updated: 3600, images: only(good), seconds: 6 * anHour, end: reached}, figures{other: 200}, true},
	{"a canary of 90 %, and a zone with it goes down", scene{pods: 100, apps: 10, partition: .9, setup: zones, images: only(good), seconds: 5400, happens: at(1800, zoneFails), end: reached}, figures{other: 10}, false},
}

var disappearing = []row{
	{"victims of an image that does not start are deleted each minute", scene{pods: 200, apps: 20, images: only(noStart), seconds: 1800, happens: deletes(60)}, figures{victims: 3}, false},
	{"of one that breaks after 10 s", scene{pods: 200, apps: 20, images: only(breaksAfter(10)), seconds: 1800, happens: deletes(60)}, figures{victims: 3}, false},
	{"of one that breaks after a minute", scene{pods: 200, apps: 20, images: only(breaksAfter(60)), seconds: 1800, happens: deletes(60)}, figures{victims: 6}, false},
	{"victims are deleted every 10 s", scene{pods: 200, apps: 20, images: only(noStart), seconds: anHour, happens: deletes(10)}, figures{victims: 6}, false},
	{"victims are deleted every five minutes", scene{pods: 200, apps: 20, images: only(breaksAfter(20)), seconds: anHour, happens: deletes(300)}, figures{victims: 5}, false},
	{"victims are deleted every two minutes, a new leader each minute", scene{pods: 2000, apps: 200, max: 5, setup: func(c *cluster.Cluster) { c.LeaderEvery = 60 }, images: only(breaksAfter(20)), seconds: 2 * anHour, happens: deletes(120)}, figures{victims: 11}, true},
	{"what is not Ready 3 s after its update is deleted; does not start", scene{pods: 200, apps: 20, setup: loud, images: only(noStart), seconds: anHour, happens: fastDeleter}, figures{victims: 10}, false},
	{"breaks after a second", scene{pods: 200, apps: 20, setup: loud, images: only(breaksAfter(1)), seconds: anHour, happens: fastDeleter}, figures{victims: 10}, false},
	{"breaks a fifth of the apps after a second", scene{pods: 200, apps: 20, setup: loud, images: only(cluster.Image{Does: cluster.BreaksApp, Delay: 1, Share: .2}), seconds: anHour, happens: fastDeleter}, figures{victims: 3}, false},
	{"a good image, and what is not Ready 3 s after its update is deleted", scene{pods: 200, apps: 20, images: only(good), happens: fastDeleter}, figures{done: 48 * 60}, false},
	{"does not start, an autoscaler takes Pods that are not Ready every 30 s", scene{pods: 200, apps: 4, images: only(noStart), seconds: anHour, happens: scaler(30)}, figures{victims: 6}, false},
	{"breaks after 20 s, an autoscaler takes Pods that are not Ready every three minutes", scene{pods: 200, apps: 4, images: only(breaksAfter(20)), seconds: anHour, happens: scaler(180)}, figures{victims: 4}, false},
	{"an autoscaler adds Pods while some are down", scene{pods: 300, apps: 1, max: .1, images: only(breaksAfter(10)), seconds: anHour, happens: func(c *cluster.Cluster, t int) {
		if n := len(c.Pods); t%30 == 0 && n < 1500 && t > 60 {
			for range n / 10 {
				c.Add(0, false)
			}
		}
	}}, figures{victims: 1}, false},
	{"the Pod that is updating is taken every 30 s, 20 Pods", scene{pods: 20, apps: 1, images: only(good), happens: scaler(30)}, figures{done: 294}, false},
	{"every three minutes", scene{pods: 20, apps: 1, images: only(good), happens: scaler(180)}, figures{done: 216}, false},
	{"every three minutes, 300 Pods", scene{pods: 300, apps: 15, images: only(good), happens: scaler(180)}, figures{done: 26 * 60}, false},
	{"every three minutes, 300 Pods, 10 %", scene{pods: 300, apps: 15, max: .1, images: only(good), happens: scaler(180)}, figures{done: 348}, false},
	{"every 30 s, 300 Pods that take a minute", scene{pods: 300, apps: 15, images: only(cluster.Image{Pull: 60}), happens: scaler(30)}, figures{done: 3 * anHour}, true},
	{"every five minutes, 300 Pods that take a minute", scene{pods: 300, apps: 15, images: only(cluster.Image{Pull: 60}), happens: scaler(300)}, figures{done: 5 * anHour}, true},
	{"a Pod a minute is replaced", scene{pods: 2000, apps: 200, images: only(good), happens: churn(1)}, figures{done: 8640}, true},
	{"20 Pods a minute are replaced", scene{pods: 2000, apps: 200, images: only(good), happens: churn(20)}, figures{done: 94 * 60}, true},
	{"100 Pods a minute are replaced", scene{pods: 2000, apps: 200, images: only(good), happens: churn(100)}, figures{done: 2664}, true},
	{"a chronic crasher, and the Pod that is updated is deleted", scene{pods: 20, apps: 2, setup: crasher, images: only(good), happens: deletesOne}, figures{done: 783}, false},
	{"the app is deployed as soon as one of six Pods is updated: Complete", scene{pods: 6, apps: 1, minReady: 5, images: only(good), happens: deployedMeanwhile, cured: isComplete}, figures{done: 50, cured: 50}, false},
	{"three nodes die for ever", scene{pods: 300, apps: 30, setup: func(c *cluster.Cluster) { c.Daemons = 10 }, images: only(good), happens: nodesDie}, figures{done: 2052}, false},
}

var cures = []row{
	{"a cure fifteen minutes after an image broke Pods after a minute", scene{pods: 2000, apps: 200, max: .05, images: only(breaksAfter(60), good), every: 900, seconds: 100}, figures{victims: 2, cured: 10}, true},
	{"a fifth of the apps at once", scene{pods: 2000, apps: 200, max: .05, images: only(cluster.Image{Does: cluster.BreaksApp, Delay: 1, Share: .2}, good), every: 900, seconds: 100}, figures{victims: 41, cured: 28}, true},
	{"a cure for 97 Pods that were created with the image", scene{pods: 2000, apps: 200, images: only(breaksAfter(10), good), every: 600, seconds: 300, happens: func(c *cluster.Cluster, t int) {
		if t <= 100 {
			if p := c.Pods[c.Rand.Intn(2000)]; !p.Gone {
				c.Kill(p, true)
			}
		}
	}}, figures{victims: 1, cured: 37}, true},
	{"a cure for all 2,000 Pods, broken two hours after the rollout", scene{pods: 2000, apps: 200, images: only(good, good), broken: true, before: func(c *cluster.Cluster) {
		c.Updated(7200)
		c.Contents[1] = breaksAfter(7200)
		pass(c, 100, nil)
	}, seconds: 1000}, figures{cured: 85}, true},
	{"all Pods are down, and the first stays so: its sidecar runs", scene{pods: 200, apps: 20, images: only(breaksAfter(0), good), broken: true, before: staysDown(false)}, figures{done: 97}, false},
	{"its sidecar does not start", scene{pods: 200, apps: 20, images: only(breaksAfter(0), good), broken: true, before: staysDown(true)}, figures{done: 663}, false},
	{"a cure of 200 Pods", scene{apps: 20, images: only(breaksAfter(0), good), broken: true, setup: behind(0), before: waits(100)}, figures{cured: 68, done: 69}, false},
	{"six Pods, and a queue of eight without a node", scene{pods: 6, apps: 1, minReady: 5, setup: queue(8), images: only(good)}, figures{done: 50}, false},
	{"behind one Pod without a node", scene{apps: 20, images: only(breaksAfter(0), good), broken: true, setup: behind(1), before: waits(100)}, figures{cured: 68, done: 69}, false},
	{"behind 20", scene{apps: 20, images: only(breaksAfter(0), good), broken: true, setup: behind(20), before: waits(100)}, figures{cured: 67, done: 68}, false},
	{"behind 1,000", scene{apps: 20, images: only(breaksAfter(0), good), broken: true, setup: behind(1000), before: waits(100)}, figures{cured: 40, done: 41}, true},
}

var goodImages = []row{
	{"good: 20 Pods", scene{pods: 20, apps: 4, images: only(good)}, figures{done: 195}, false},
	{"good: 300 at 10 %", scene{pods: 300, apps: 30, max: .1, images: only(good)}, figures{done: 310}, false},
	{"good: 2,000 at 5 %", scene{pods: 2000, apps: 200, max: .05, images: only(good)}, figures{done: 418}, true},
	{"good: 10,000 at 10 %", scene{pods: 10000, apps: 500, max: .1, images: only(good)}, figures{done: 499}, true},
	{"good: 2,000 one by one", scene{pods: 2000, apps: 200, images: only(good)}, figures{done: 9132}, true},
	{"good, ready for five minutes: 5 %", scene{pods: 2000, apps: 200, max: .05, minReady: 300, images: only(good), seed: 41}, figures{done: 3387}, true},
	{"good, 1 % down for an hour: one at a time", scene{pods: 2000, apps: 200, share: .01, down: 3600, images: only(good)}, figures{done: 8931}, true},
	{"good, 1 % down for an hour: ten at a time", scene{pods: 2000, apps: 200, max: 10, share: .01, down: 3600, images: only(good)}, figures{done: 1098}, true},
	{"good, 1 % down for ever, and their sidecars do not start", scene{pods: 2000, apps: 200, setup: func(c *cluster.Cluster) {
		for i := 0; i < 2000; i += 100 {
			c.Chronic(c.Pods[i], 0, 1)
			c.Pods[i].OwnNoStart = true
		}
	}, images: only(good)}, figures{done: 9040}, true},
	{"good, a pull takes three minutes", scene{pods: 20, apps: 4, images: only(cluster.Image{Pull: 180})}, figures{peak: 1, done: 3571}, false},
	{"good, a pull takes eight minutes", scene{pods: 20, apps: 4, images: only(cluster.Image{Pull: 480})}, figures{peak: 1, done: 9271}, true},
	{"one silent node of 200 Pods ignores the write", scene{pods: 200, apps: 20, setup: func(c *cluster.Cluster) { c.Pods[0].Ignores = true }, images: only(good)}, figures{done: 1581}, false},
	{"one silent node of 200 Pods acknowledges it", scene{pods: 200, apps: 20, setup: func(c *cluster.Cluster) { c.Pods[0].Stuck = true }, images: only(good)}, figures{done: 1581}, false},
	{"one silent node of five Pods", scene{pods: 5, apps: 2, setup: func(c *cluster.Cluster) { c.Pods[0].Ignores = true }, images: only(good)}, figures{done: 675}, false},
	{"30 apps, five with a broken replica", scene{apps: 30, max: .1, restart: [2]int{10, 20}, setup: manyApps, before: func(c *cluster.Cluster) { c.PeakAppDown = 0 }, images: only(good), end: func(c *cluster.Cluster) int { return int(100 * c.PeakAppDown) }}, figures{done: 500, other: 33}, false},
	{"an app with a third of 300 Pods goes down for three hours, one at a time", scene{pods: 300, apps: 3, images: only(good), happens: appGoesDown}, figures{done: 12240}, true},
	{"the same, 10 %", scene{pods: 300, apps: 3, max: .1, images: only(good), happens: appGoesDown}, figures{done: 11160}, true},
	{"300 Pods that are never Ready", scene{pods: 300, apps: 30, setup: func(c *cluster.Cluster) {
		for _, p := range c.Pods {
			c.Chronic(p, 0, 1)
		}
	}, images: only(good)}, figures{done: 1356}, false},
	{"all Pods are down for ten minutes, does not start", scene{pods: 300, apps: 30, before: allDown, images: only(noStart), seconds: anHour}, figures{victims: 1, down: 1}, false},
	{"all Pods are down for ten minutes, breaks after 20 s", scene{pods: 300, apps: 30, before: allDown, images: only(breaksAfter(20)), seconds: anHour}, figures{victims: 1, down: 18}, false},
	{"an app without its pull secret rolls itself out", scene{pods: 2000, apps: 200, max: 10, setup: func(c *cluster.Cluster) {
		for i := range c.AppHit {
			c.AppHit[i] = float64(min(i, 1))
		}
	}, images: only(cluster.Image{Does: cluster.NoStart, Share: .5}), happens: at(1, func(c *cluster.Cluster) {
		for _, p := range slices.Clone(c.Pods) {
			if p.App == 0 {
				c.Kill(p, true)
			}
		}
	})}, figures{victims: 1, done: 1114}, true},
}

// troubles are what the first model did not have: Pods that end by the image, refusals, clocks. The model has no
// image that gets its Pods evicted between 60 and 130 s: the figures are those of the day.
var troubles = []row{
	ends(cluster.Evicted, 5, 1, 6), ends(cluster.Evicted, 20, 1, 6), ends(cluster.Evicted, 55, 1, 12), ends(cluster.Evicted, 300, 1, 133),
	ends(cluster.Evicted, 5, .1, 6), ends(cluster.Evicted, 20, .1, 6), ends(cluster.Evicted, 55, .1, 12), ends(cluster.Evicted, 300, .1, 300),
	ends(cluster.KillsNode, 5, 1, 4), ends(cluster.KillsNode, 20, 1, 4), ends(cluster.KillsNode, 55, 1, 8), ends(cluster.KillsNode, 300, 1, 55),
	ends(cluster.KillsNode, 5, .1, 4), ends(cluster.KillsNode, 20, .1, 4), ends(cluster.KillsNode, 55, .1, 14), ends(cluster.KillsNode, 300, .1, 300),
	{"evicted after 20 s, and exits with 0", scene{pods: 300, apps: 30, images: only(cluster.Image{Does: cluster.Evicted, Delay: 20, ExitsWith0: true}), seconds: anHour}, figures{victims: 6}, false},
	{"evicted 60 to 130 s after the start, as a kubelet that measures volumes does", scene{pods: 300, apps: 30, images: only(cluster.Image{Does: cluster.Evicted, Delay: 60, Jitter: 70}), seconds: anHour}, figures{victims: 26}, false},
	{"the same, ready for 150 s", scene{pods: 300, apps: 30, minReady: 150, images: only(cluster.Image{Does: cluster.Evicted, Delay: 60, Jitter: 70}), seconds: anHour}, figures{victims: 6}, false},
	{"new Pods get the earlier content, 20 apps deploy; does not start", scene{pods: 2000, apps: 40, max: .05, before: holds, images: only(noStart), seconds: 1800, happens: deploys}, figures{victims: 2}, true},
	{"new Pods get the earlier content, 20 apps deploy; breaks after 20 s", scene{pods: 2000, apps: 40, max: .05, before: holds, images: only(breaksAfter(20)), seconds: 1800, happens: deploys}, figures{victims: 2}, true},
	{"new Pods get the earlier content, 20 apps deploy; breaks after 50 s", scene{pods: 2000, apps: 40, max: .05, before: holds, images: only(breaksAfter(50)), seconds: 1800, happens: deploys}, figures{victims: 3}, true},
	{"new Pods get the earlier content, good", scene{pods: 2000, apps: 40, max: .05, before: holds, images: only(good), happens: deploys}, figures{done: 456}, true},
	{"40 Pods refuse, 20 do not", scene{pods: 60, apps: 20, setup: refuse(40), images: only(good)}, figures{done: 192}, false},
	{"4,000 Pods refuse, 20 do not", scene{pods: 4020, apps: 20, setup: refuse(4000), images: only(good)}, figures{done: 588}, true},
	{"updates of one of 20 Pods are undone: writes in an hour", scene{pods: 20, apps: 4, setup: undo(1), images: only(good), seconds: anHour, happens: nothing, end: writes}, figures{done: 786, other: 27}, false},
	{"of all: writes in an hour", scene{pods: 20, apps: 4, setup: undo(20), images: only(good), seconds: anHour, happens: nothing, end: writes}, figures{other: 6}, false},
	{"updates of one Pod are undone, does not start", scene{pods: 20, apps: 4, setup: undo(1), images: only(noStart), seconds: anHour}, figures{victims: 2}, false},
	{"updates of all Pods are undone, does not start", scene{pods: 20, apps: 4, setup: undo(20), images: only(noStart), seconds: anHour, happens: nothing}, figures{victims: 6}, false},
	{"4 h ahead: the first Pod's node", scene{pods: 20, apps: 4, setup: skew(fourHours, 20), images: only(good)}, figures{done: 786}, false},
	{"4 h ahead: the node of a Pod that has just become Ready", scene{pods: 20, apps: 4, setup: func(c *cluster.Cluster) {
		skew(fourHours, 20)(c)
		c.Pods[0].CreationTimestamp = metav1.Unix(int64(c.Now), 0)
		c.SetSince(c.Pods[0], c.Now)
	}, images: only(good)}, figures{done: 618}, false},
	{"4 h ahead: the leader before", scene{pods: 20, apps: 4, setup: func(c *cluster.Cluster) { c.LeaderSkew = fourHours }, images: only(good), happens: at(5, func(c *cluster.Cluster) {
		c.LeaderSkew = 0
		c.NewLeader()
	})}, figures{done: 197}, false},
	{"4 h ahead: half of the nodes", scene{pods: 20, apps: 4, setup: skew(fourHours, 2), images: only(good)}, figures{done: 984}, false},
	{"4 h behind: half of the nodes", scene{pods: 20, apps: 4, setup: skew(-fourHours, 2), images: only(good)}, figures{done: 176}, false},
}
