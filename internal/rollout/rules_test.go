package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// asker asks a rollout second by second, and answers each Take.
type asker struct {
	*testing.T
	*rollout.Rollout
	now     time.Time
	version uint64
	answer  func(rollout.Take) rollout.Result
}

// seconds lets time pass, and returns how many Pods were taken.
func (a *asker) seconds(n int) (takes int) {
	for range n {
		a.now = a.now.Add(time.Second)
		batch, _ := a.Next(64, a.version, a.now)
		for _, take := range batch {
			a.version++
			result := a.answer(take)
			result.Version = a.version
			a.Return(take, result, a.now)
		}
		takes += len(batch)
	}
	return takes
}

// 2,000 Pods that a policy refuses cost a few requests a minute. Once it admits them, the rollout
// goes on at its pace.
func TestRefusalsAreProbedByOnePod(t *testing.T) {
	var pods []rollout.Pod
	for i := range 2000 {
		pods = append(pods, ready(i))
	}
	refused := func(rollout.Take) rollout.Result {
		return rollout.Result{Kind: rollout.Refused, Reason: inplace.Refused, Message: "denied by policy"}
	}
	a := &asker{T: t, Rollout: begun(strategy(update{MaxUnavailable: share("100%")}), true, pods...), now: noon, answer: refused}
	if n := a.seconds(600); n > 120 {
		t.Errorf("%d requests in ten minutes", n)
	}
	if r := a.Report(a.version, a.now); r.Limit != rollout.Refusals || len(r.Blocked) != 1 || r.Blocked[0].Message != "denied by policy" || len(r.Blocked[0].First) != 3 {
		t.Errorf("the report is %+v", r)
	}
	a.answer = func(rollout.Take) rollout.Result { return rollout.Result{Kind: rollout.Written} }
	if n := a.seconds(120); n < 500 {
		t.Errorf("%d Pods are written in the two minutes after the policy is gone", n)
	}
}

// current returns a Pod that has the content.
func current(i int) rollout.Pod {
	p := ready(i)
	p.Way, p.Carries = inplace.Current, true
	return p
}

// Pods of one namespace that are refused do not hold up the others.
func TestRefusedPodsOfOneNamespaceComeLast(t *testing.T) {
	var pods []rollout.Pod
	for i := range 400 {
		p := ready(i)
		if i < 100 {
			p.Record.Namespace = podstate.MakeNamespace("strict")
		}
		pods = append(pods, p)
	}
	done := map[string]bool{}
	a := &asker{T: t, Rollout: begun(strategy(update{MaxUnavailable: share("100%")}), true), now: noon}
	ids := map[string]rollout.ID{}
	for _, p := range pods {
		ids[p.Record.Name] = a.Add(p)
	}
	a.answer = func(take rollout.Take) rollout.Result {
		if take.Namespace.Value() == "strict" {
			return rollout.Result{Kind: rollout.Refused, Reason: inplace.Refused}
		}
		done[take.Name] = true
		var i int
		_, _ = fmt.Sscanf(take.Name, "pod-%d", &i)
		a.Set(ids[take.Name], current(i), a.now)
		return rollout.Result{Kind: rollout.Written}
	}
	a.seconds(300)
	if len(done) != 300 {
		t.Errorf("%d of 300 Pods are written after five minutes", len(done))
	}
}

// A write that another program takes back is not repeated at once, whether the answer shows it or
// a later event.
func TestWritesThatAreTakenBack(t *testing.T) {
	a := &asker{T: t, Rollout: begun(strategy(update{}), false), now: noon}
	a.answer = func(rollout.Take) rollout.Result {
		return rollout.Result{Kind: rollout.Blocked, Reason: inplace.WriteUndone}
	}
	id := a.Add(ready(1))
	if n := a.seconds(60); n != 1 {
		t.Errorf("%d writes in a minute", n)
	}
	if n := a.seconds(3600); n > 12 {
		t.Errorf("%d writes in an hour", n)
	}
	a.Remove(id, false, a.now)
	a.answer = func(rollout.Take) rollout.Result {
		a.Set(id, current(2), a.now)
		return rollout.Result{Kind: rollout.Written}
	}
	id = a.Add(ready(2))
	if n := a.seconds(30); n != 1 {
		t.Fatalf("%d writes", n)
	}
	a.Set(id, ready(2), a.now)
	if n := a.seconds(50); n != 0 {
		t.Errorf("%d more writes right after the first was taken back", n)
	}
	if r := a.Report(a.version, a.now); len(r.Blocked) != 1 || r.Blocked[0].Reason != string(inplace.WriteUndone) {
		t.Errorf("the report is %+v", r)
	}
}

// stuck returns a Pod that can only be recreated.
func stuck(i int, controller string) rollout.Pod {
	p := ready(i)
	p.Way, p.Reason, p.Evict = inplace.Recreate, inplace.ImmutableFieldChanged, true
	p.Record.Controller = podstate.MakeName(controller)
	return p
}

// recreating is a rollout that evicts the Pods of one app; respawn decides what takes the place of
// an evicted Pod.
type recreating struct {
	*asker
	ids     map[string]rollout.ID
	left    map[string]bool
	evicted int
	serial  int
	respawn func()
}

func recreates(t *testing.T, maxUnavailable string, pods int) *recreating {
	r := &recreating{asker: &asker{T: t, Rollout: begun(strategy(update{MaxUnavailable: share(maxUnavailable)}), false), now: noon}, ids: map[string]rollout.ID{}, left: map[string]bool{}, serial: 1000}
	r.SetRecreation(rollout.Recreation{Since: noon.Unix(), InForce: true})
	for i := range pods {
		r.ids[fmt.Sprintf("pod-%06d", i)] = r.Add(stuck(i, "app"))
	}
	r.answer = func(take rollout.Take) rollout.Result {
		r.evicted++
		return rollout.Result{Kind: rollout.Evicted}
	}
	return r
}

// run lets time pass; an evicted Pod is gone after a second.
func (r *recreating) run(seconds int) {
	for range seconds {
		var gone []string
		answer := r.answer
		r.answer = func(take rollout.Take) rollout.Result {
			gone = append(gone, take.Name)
			return answer(take)
		}
		r.seconds(1)
		r.answer = answer
		for _, name := range gone {
			r.Remove(r.ids[name], true, r.now)
			r.left[name] = true
			r.respawn()
		}
	}
}

// create adds a Pod with the content.
func (r *recreating) create(controller string, ready bool) rollout.ID {
	r.serial++
	p := stuck(r.serial, controller)
	p.Way, p.Carries, p.Evict, p.Record.Ready, p.Record.Order.Created = inplace.Current, true, false, ready, r.now.Unix()
	return r.Add(p)
}

func TestRecreation(t *testing.T) {
	t.Run("one at a time, then as many as came back", func(t *testing.T) {
		r := recreates(t, "10", 40)
		r.respawn = func() { r.create("app", true) }
		if r.run(29); r.evicted != 0 {
			t.Errorf("%d Pods are evicted in the first half minute of a leader", r.evicted)
		}
		if r.run(60); r.evicted != 40 {
			t.Errorf("%d of 40 Pods are evicted a minute later", r.evicted)
		}
	})
	t.Run("a replacement that does not become Ready", func(t *testing.T) {
		r := recreates(t, "1", 40)
		r.respawn = func() { r.create("app", false) }
		if r.run(900); r.evicted != 1 {
			t.Errorf("%d Pods are evicted, want one", r.evicted)
		}
		if report := r.Report(0, r.now); report.EvictionsWait == "" {
			t.Errorf("the report does not say why: %+v", report)
		}
		if r.run(3600); r.evicted > 8 || r.evicted < 2 {
			t.Errorf("%d Pods are evicted an hour later, want one in more than ten minutes", r.evicted)
		}
	})
	t.Run("the watch is faster than the answer", func(t *testing.T) {
		r := recreates(t, "10", 12)
		r.answer = func(take rollout.Take) rollout.Result {
			r.evicted++
			r.Remove(r.ids[take.Name], true, r.now)
			return rollout.Result{Kind: rollout.Evicted}
		}
		if r.seconds(45); r.evicted != 1 {
			t.Errorf("%d Pods are evicted before the first has a new Pod, want one", r.evicted)
		}
	})
	t.Run("a quota keeps new Pods away for a while", func(t *testing.T) {
		r := recreates(t, "1", 12)
		r.respawn = func() {}
		if r.run(300); r.evicted != 3 {
			t.Fatalf("%d Pods are evicted for which no new one came, want 3", r.evicted)
		}
		if report := r.Report(0, r.now); report.EvictionsWait == "" {
			t.Errorf("the report does not say why: %+v", report)
		}
		for range r.evicted {
			r.create("app", true)
		}
		r.respawn = func() { r.create("app", true) }
		if r.run(10); r.evicted < 4 {
			t.Errorf("%d Pods are evicted ten seconds after the quota is gone", r.evicted)
		}
	})
	t.Run("the app is scaled down meanwhile", func(t *testing.T) {
		r := recreates(t, "3", 12)
		r.respawn = func() {}
		r.run(60)
		for name, id := range r.ids {
			if !r.left[name] {
				r.Remove(id, true, r.now)
			}
		}
		r.ids = map[string]rollout.ID{}
		r.run(1200)
		if report := r.Report(0, r.now); report.Used != 0 || report.Replaced != 0 {
			t.Errorf("places are taken twenty minutes later: %+v", report)
		}
	})
	t.Run("the app rolls itself out meanwhile", func(t *testing.T) {
		r := recreates(t, "1", 12)
		r.respawn = func() { r.create("next", true) }
		r.run(3600)
		if r.evicted < 6 {
			t.Errorf("%d of 12 Pods are evicted after an hour", r.evicted)
		}
	})
	t.Run("an unrelated Pod crashes", func(t *testing.T) {
		r := recreates(t, "1", 3)
		r.create("other", false)
		r.respawn = func() { r.create("app", true) }
		if r.run(300); r.evicted != 3 {
			t.Errorf("%d of 3 Pods are evicted", r.evicted)
		}
	})
}

// BenchmarkIdlePass looks at Pods that all have the content, as each status does.
func BenchmarkIdlePass(b *testing.B) {
	for _, pods := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			r := begun(strategy(update{}), false)
			for i := range pods {
				p := current(i)
				p.Record.Controller = podstate.MakeName(fmt.Sprint("app-", i/20))
				r.Add(p)
			}
			for b.Loop() {
				r.Report(0, noon)
			}
		})
	}
}

// BenchmarkPass looks at all Pods of one SidecarSet of which most wait, as P14 asks: with one
// place free, with 64 to be taken, and with none.
func BenchmarkPass(b *testing.B) {
	for _, pods := range []int{1_000, 10_000, 100_000} {
		for _, most := range []int{0, 1, 64} {
			b.Run(fmt.Sprintf("pods=%d/taken=%d", pods, most), func(b *testing.B) {
				r := begun(strategy(update{MaxUnavailable: share("100%")}), true)
				for i := range pods {
					p := ready(i * 7919 % pods)
					p.Record.Controller = podstate.MakeName(fmt.Sprint("app-", i/20))
					r.Add(p)
				}
				for b.Loop() {
					takes, _ := r.Next(most, 0, noon)
					if len(takes) != most {
						b.Fatalf("took %d", len(takes))
					}
					for _, take := range takes {
						r.Return(take, rollout.Result{}, noon.Add(-time.Hour))
					}
				}
			})
		}
	}
}
