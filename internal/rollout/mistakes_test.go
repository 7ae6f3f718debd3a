package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// edit lets a mistake change what Decide is given of each Pod.
func edit(change func(w *world, p *rollout.Pod)) mistake {
	return mistake{view: func(w *world) {
		for _, p := range w.view {
			change(w, p)
		}
	}}
}

// filter lets a mistake keep writes from being sent.
func filter(keep func(w *world, p *rollout.Pod) bool) mistake {
	return mistake{plan: func(w *world) {
		w.plan.Write = slices.DeleteFunc(w.plan.Write, func(p *rollout.Pod) bool { return !keep(w, p) })
	}}
}

func isUnder(p *rollout.Pod) bool { return p.Written.At != 0 && p.Written.Carried == 0 }

type plantedMistake struct {
	name    string
	mistake mistake
	row     string // the beginning of its name
	seeds   int64  // as many are enough, at most
}

// Mistakes around Decide, each with what finds it: a row of the table, or random clusters. Mistakes in
// a rule itself are found by rules_test.go.
var planted = []plantedMistake{
	{"no proof", mistake{view: func(w *world) {
		for _, p := range proven(1000) {
			p.Record.Since = uint32(w.now - 9000)
			p.Written = podstate.Written{At: p.Record.Since, Carried: p.Record.Since, Started: p.Record.Since}
			w.view = append(w.view, p)
		}
	}}, "breaks after a minute, 2,000 Pods", 0},
	{"the first Pod needs proof too", filter(func(w *world, p *rollout.Pod) bool { return w.plan.Available > 0 || !p.Record.Ready }), "", 20},
	{"late Pods count for nothing", edit(func(_ *world, p *rollout.Pod) {
		if w := p.Written; !p.Record.Ready && w.Carried != 0 && p.Record.Since >= w.Started+30 {
			p.Written = podstate.Written{}
		}
	}), "breaks after a minute, 2,000 Pods", 0},
	{"Pods that were down are free", edit(func(_ *world, p *rollout.Pod) {
		if p.Updated && !p.Record.Ready && p.Written.StateBefore == podstate.WasNotReady {
			p.Written = podstate.Written{}
		}
	}), "an outage", 0},
	{"all Pods count as up", mistake{write: func(podstate.StateBefore) podstate.StateBefore { return podstate.WasReady }}, "all Pods are down", 0},
	{"a victim that is written again is another down Pod", mistake{write: func(was podstate.StateBefore) podstate.StateBefore {
		if was == podstate.WasNotReadyByUpdate {
			return podstate.WasNotReady
		}
		return was
	}}, "five edits", 0},
	{"Pods that disappear are forgotten", mistake{noLoss: true}, "victims are deleted each minute", 0},
	{"a new leader forgets them", mistake{leader: func(s *rollout.Status) { s.Disappeared = 0 }}, "victims are deleted every two minutes", 0},
	{"a new leader forgets how many were down before", mistake{leader: func(s *rollout.Status) { s.NotReadyBefore = 0 }}, "good, 60 Pods, 5 % down", 0},
	{"dead nodes are not known", edit(func(_ *world, p *rollout.Pod) { p.Dead = false }), "three nodes die", 0},
	{"silent nodes are never excused", edit(func(w *world, p *rollout.Pod) {
		if isUnder(p) && p.Record.Ready {
			p.Written.At = max(p.Written.At, uint32(w.now-300))
		}
	}), "one silent node of five", 0},
	{"Pods that were down are never excused", edit(func(w *world, p *rollout.Pod) {
		if isUnder(p) && !p.Record.Ready {
			p.Written.At = max(p.Written.At, uint32(w.now-300))
		}
	}), "all Pods are down", 0},
	{"a restart that does not show is free", edit(func(w *world, p *rollout.Pod) {
		switch {
		case !isUnder(p) || !p.Record.Ready:
		case p.Updated:
			p.Written = podstate.Written{}
		default:
			p.Backoff = &rollout.Backoff{Until: int64(w.now + 1)}
		}
	}), "40 good edits", 0},
	{"an own write is not known before its event", edit(func(_ *world, p *rollout.Pod) { p.Sent = nil }), "", 60},
	{"controllers have no share", edit(func(_ *world, p *rollout.Pod) { p.Record.Controller = podstate.MakeName(p.Record.Name) }), "30 apps", 0},
	{"partition holds victims", filter(func(w *world, _ *rollout.Pod) bool { return w.plan.Outdated > w.plan.Kept }), "a canary is rolled back", 0},
	{"percentages are rounded down", mistake{rounding: true}, "", 200},
	{"nobody wakes up", mistake{plan: func(w *world) { w.plan.Next = 0 }}, "", 60},
}

func TestPlantedMistakesAreFound(t *testing.T) {
	for _, m := range planted {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if by := m.find(); by == "" {
				t.Error("it is not found")
			} else {
				t.Log(by)
			}
		})
	}
}

// find returns what finds a mistake; "" if nothing does.
func (m *plantedMistake) find() string {
	for _, r := range rows {
		if m.row == "" || !strings.HasPrefix(r.name, m.row) {
			continue
		}
		got := r.run(func(w *world) {
			w.mistake = m.mistake
			if m.mistake.leader != nil && w.leaderEvery == 0 {
				w.leaderEvery = 60
			}
		})
		for i, most := range r.most {
			if got[i] > most {
				return fmt.Sprintf("%d of %d", got, r.most)
			}
		}
	}
	var f found
	for seed := range m.seeds {
		simulate(seed+1, m.mistake, &f)
		if wrong := f.wrong(); len(wrong) > 0 {
			return wrong[0]
		}
	}
	return ""
}
