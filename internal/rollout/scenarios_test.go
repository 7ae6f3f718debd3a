package rollout_test

import (
	"fmt"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// The scenarios that were simulated before the rules were chosen: docs/design/0009-running-pods.md.

func TestBadImageWhilePodsFlap(t *testing.T) {
	for _, outage := range []int64{60, 600, 86_400} {
		s := simulate(t, "1", 200, 10, image{missing: true})
		s.flapping(1, outage)
		s.edit(1)
		s.run(3600)
		s.atMost(fmt.Sprintf("written, outages of %d s", outage), s.wrote[1], 2)
	}
}

func TestImagesThatBreakTheirApp(t *testing.T) {
	for _, test := range []struct {
		breaks         int
		maxUnavailable string
		apps, replicas int
		most           int
	}{
		{10, "1", 5, 4, 2}, {10, "50%", 5, 4, 2}, {10, "100%", 5, 4, 2}, {10, "5%", 200, 10, 2},
		{59, "1", 5, 4, 2}, {59, "50%", 5, 4, 2}, {59, "100%", 5, 4, 2}, {59, "5%", 200, 10, 2},
		{300, "1", 5, 4, 20}, {300, "5%", 200, 10, 2000},
	} {
		s := simulate(t, test.maxUnavailable, test.apps, test.replicas, image{breaks: test.breaks})
		s.edit(1)
		s.run(1800)
		s.atMost(fmt.Sprintf("written at %s, breaks after %d s", test.maxUnavailable, test.breaks), s.wrote[1], test.most)
	}
}

func TestMinReadySecondsHoldsBackLateBreaks(t *testing.T) {
	for _, maxUnavailable := range []string{"1", "10", "5%"} {
		s := simulate(t, maxUnavailable, 20, 10, image{breaks: 540})
		s.notes[appsv1beta1.AnnotationMinReadySeconds] = "600"
		s.edit(1)
		s.run(3600)
		s.atMost("written at "+maxUnavailable, s.wrote[1], 2)
	}
}

func TestAResizeThatKillsTheSidecar(t *testing.T) {
	s := simulate(t, "10", 5, 10, image{resize: true, breaks: 14})
	s.edit(1)
	s.run(3600)
	s.atMost("written", s.wrote[1], 1)
}

func TestOutageOfAnAppMeetsABadImage(t *testing.T) {
	s := simulate(t, "10", 200, 10, image{missing: true})
	for i, p := range s.order {
		if i%4 != 0 {
			p.outage = s.now + 86_400
		}
	}
	s.run(30)
	s.edit(1)
	s.run(3600)
	s.atMost("written", s.wrote[1], 19)
}

func TestFiveBadEdits(t *testing.T) {
	bad := image{missing: true}
	s := simulate(t, "1", 5, 4, bad, bad, bad, bad, bad, image{})
	for edit := 1; edit <= 5; edit++ {
		s.edit(edit)
		s.run(60)
	}
	s.atMost("down", s.worst, 1)
	s.edit(6)
	s.run(10)
	s.atMost("down 10 s after the good edit", s.down(), 0)
	s.until(600)
}

func TestManyEditsWithASlowKubelet(t *testing.T) {
	s := simulate(t, "5", 6, 10, make([]image, 40)...)
	for _, p := range s.order {
		p.slow = 8
	}
	for edit := 1; edit <= 40; edit++ {
		s.edit(edit)
		s.run(3)
	}
	s.atMost("down", s.worst, 5)
	s.until(1800)
}

func TestACanaryIsRolledBack(t *testing.T) {
	for name, canary := range map[string]appsv1beta1.SidecarSetUpdateStrategy{
		"partition": {Partition: amount("90%")},
		"selector":  {Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "0"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t, "1", 5, 4, image{missing: true}, image{})
			s.spec = canary
			s.spec.MaxUnavailable = amount("1")
			s.edit(1)
			s.run(300)
			if s.down() != 1 {
				t.Fatalf("%d Pods are down, 1 expected", s.down())
			}
			s.spec.Selector = nil
			if name == "selector" {
				s.spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "4"}}
			}
			s.spec.MaxUnavailable = amount("0")
			s.edit(0)
			s.run(10)
			s.atMost("down 10 s after the rollback", s.down(), 0)
		})
	}
}

func TestDeletingTheVictimFeedsNoOther(t *testing.T) {
	for _, bad := range []image{{missing: true}, {breaks: 3}} {
		s := simulate(t, "1", 5, 4, bad)
		s.edit(1)
		for range 30 {
			s.run(60)
			for i, p := range s.order {
				if !p.ready {
					app := 0
					_, _ = fmt.Sscanf(p.record.Name, "app%d-", &app)
					q := s.remove(s.order[i], app)
					if bad.missing {
						q.broken = true
					}
					break
				}
			}
		}
		s.atMost("written", s.wrote[1], 1)
	}
}

func TestAnAppThatCannotStartHoldsUpNoOther(t *testing.T) {
	s := simulate(t, "10", 199, 10, image{})
	s.edit(1)
	for range 10 { // a Deployment rolls out without its pull secret
		s.create(199).broken = true
	}
	s.each = func() {
		for _, p := range s.order {
			if p.broken {
				p.ready = false
			}
		}
	}
	for s.now < 1_800_003_600 && s.outdated() > 0 {
		s.run(1)
	}
	s.atMost("outdated after an hour", s.outdated(), 0)
}

func TestReadinessThatFlaps(t *testing.T) {
	s := simulate(t, "1", 30, 10, image{flaps: 30})
	s.edit(1)
	s.run(3600)
	s.atMost("written", s.wrote[1], 3)
}

func TestANodeThatIgnoresUpdates(t *testing.T) {
	s := simulate(t, "1", 20, 10, image{})
	first := s.order[0]
	first.ignored = true
	first.record.Order.Restarts = 9 // it comes first
	s.edit(1)
	s.run(590)
	s.atMost("written before ten minutes are over", s.wrote[1], 1)
	if first.content != 1 {
		t.Fatal("the Pod of that node does not come first")
	}
	s.run(3600)
	s.atMost("outdated an hour later", s.outdated(), 0)
}

func TestTheLastNodeIgnoresUpdates(t *testing.T) {
	s := simulate(t, "1", 20, 10, image{})
	s.order[7].ignored = true
	s.edit(1)
	s.run(3600)
	s.atMost("outdated after an hour", s.outdated(), 0)
}

func TestGoodImage(t *testing.T) {
	s := simulate(t, "5%", 200, 10, image{})
	s.edit(1)
	s.atMost("seconds for 2,000 Pods at 5%", s.until(3600), 600)
	s = simulate(t, "1", 5, 4, image{})
	s.edit(1)
	s.atMost("seconds for 20 Pods at 1", s.until(3600), 300)
	s.atMost("down", s.worst, 1)
}

func TestGoodImageWhilePodsAreDown(t *testing.T) {
	s := simulate(t, "10", 200, 10, image{})
	s.flapping(1, 3600)
	s.edit(1)
	from := s.now
	for s.outdated() > 40 && s.now-from < 7200 {
		s.run(1)
	}
	s.atMost("seconds for 98 %", int(s.now-from), 1800)
}

func TestAnHPAAddsPodsWhileSomeAreDown(t *testing.T) {
	s := simulate(t, "10%", 30, 10, image{missing: true})
	s.edit(1)
	s.each = func() {
		if s.now%10 == 0 && len(s.order) < 600 {
			s.create(int(s.now/10) % 30).broken = true
		}
	}
	s.run(3600)
	s.atMost("written", s.wrote[1], 1)
}

// Of 30 Deployments, none has two Pods down at 10 % of 300 Pods; and a small one beside them has
// one at a time.
func TestShare(t *testing.T) {
	for _, small := range []int{0, 3} {
		s := simulate(t, "10%", 30, 10, image{})
		for range small {
			p := s.create(30)
			p.ready, p.turned = true, s.now-100
			s.show(p)
		}
		s.notes[appsv1beta1.AnnotationMinReadySeconds] = "0"
		s.edit(1)
		most := map[int]int{}
		s.each = func() {
			down := map[podstate.Name]int{}
			for _, p := range s.order {
				if !p.ready {
					down[p.record.Controller]++
				}
			}
			for app := range 31 {
				most[app] = max(most[app], down[podstate.MakeName("app"+strconv.Itoa(app))])
			}
		}
		s.until(3600)
		if small == 0 {
			s.atMost("down of a Deployment with ten Pods", most[0], 1)
		} else {
			s.atMost("down of a Deployment with three Pods", most[30], 1)
		}
	}
}

func TestMostOfAnAppIsDown(t *testing.T) {
	s := simulate(t, "10%", 30, 3, image{})
	s.order[0].outage, s.order[1].outage = s.now+86_400, s.now+86_400
	s.run(30)
	s.edit(1)
	s.run(1800)
	if p := s.order[2]; p.content == 1 {
		t.Error("the last Pod of an app was disturbed, whose others are down")
	}
	s.atMost("outdated", s.outdated(), 1)
}

// One replica of a large app that never becomes Ready does not hold up the others.
func TestOneReplicaCrashesForItsOwnReasons(t *testing.T) {
	s := simulate(t, "1", 1, 200, image{})
	s.order[0].outage = s.now + 1_000_000
	s.run(30)
	s.edit(1)
	s.run(7200)
	s.atMost("outdated", s.outdated(), 0)
}

func TestANewLeaderGoesOn(t *testing.T) {
	s := simulate(t, "1", 5, 4, image{missing: true}, image{})
	s.edit(1)
	for range 10 {
		s.run(45)
		s.lead()
	}
	s.atMost("written", s.wrote[1], 1)
	s.edit(2)
	s.run(10)
	s.atMost("down 10 s after the good edit", s.down(), 0)
	s.until(1200)
}
