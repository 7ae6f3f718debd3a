package rollout_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// model is OpenKruise's choice of Pods, as the specification has it, step by step. It keeps no
// state, and computes each choice from all matched Pods.
type model struct {
	update update
	// stops is what OpenKruise does at the first available Pod over budget (T11).
	stops bool
}

func (m model) choose(pods []rollout.Pod) []rollout.Pod {
	n := len(pods)
	var wait []rollout.Pod
	used := 0
	for _, p := range pods {
		switch {
		case p.Way == inplace.Current && p.InFlight:
			used++
		case p.Way != inplace.Images && p.Way != inplace.Resize || p.InTransition:
		case m.update.Selector != nil && !selects(m.update.Selector, p):
		default:
			wait = append(wait, p)
		}
	}
	sort.Slice(wait, func(i, j int) bool { return m.less(wait[i], wait[j]) })
	wait = m.prioritize(wait)
	wait = m.scatter(wait, pods)

	wait = wait[:max(0, len(wait)-m.partition(n))]
	limit := 1
	if v := m.update.MaxUnavailable; v != nil {
		limit, _ = intstr.GetScaledValueFromIntOrPercent(v, n, true)
	}
	var chosen []rollout.Pod
	for _, p := range wait {
		if p.Ready {
			if used >= limit {
				if m.stops {
					break
				}
				continue
			}
			used++
		}
		chosen = append(chosen, p)
	}
	return chosen
}

func (m model) partition(n int) int {
	v := m.update.Partition
	if v == nil {
		return 0
	}
	kept, _ := intstr.GetScaledValueFromIntOrPercent(v, n, true)
	if v.Type == intstr.String && v.StrVal != "100%" && kept == n && n > 1 {
		kept = n - 1
	}
	return max(0, min(kept, n))
}

// less is the order in which Kubernetes prefers to delete Pods; UIDs decide between equal
// ones.
func (m model) less(a, b rollout.Pod) bool {
	later := func(a, b int64) int { // zero first, then later first
		switch {
		case a == b:
			return 0
		case a == 0 || b != 0 && a > b:
			return -1
		}
		return 1
	}
	flag := func(a, b bool) int { return map[[2]bool]int{{false, true}: -1, {true, false}: 1}[[2]bool{a, b}] }
	steps := []int{flag(a.Order.Assigned, b.Order.Assigned), int(a.Order.Phase) - int(b.Order.Phase), flag(a.Ready, b.Ready)}
	if a.Ready && b.Ready {
		steps = append(steps, later(a.Order.ReadySince, b.Order.ReadySince))
	}
	steps = append(steps, int(b.Order.Restarts-a.Order.Restarts), int(b.Order.NativeRestarts-a.Order.NativeRestarts),
		later(a.Order.Created, b.Order.Created), strings.Compare(string(a.UID), string(b.UID)))
	for _, step := range steps {
		if step != 0 {
			return step < 0
		}
	}
	return false
}

var trailingDigits = regexp.MustCompile(`[0-9]+$`)

func (m model) prioritize(wait []rollout.Pod) []rollout.Pod {
	p := m.update.PriorityStrategy
	if p == nil {
		return wait
	}
	weight := func(pod rollout.Pod) (sum int32) {
		for i := range p.WeightPriority {
			if selects(&p.WeightPriority[i].MatchSelector, pod) {
				sum += p.WeightPriority[i].Weight
			}
		}
		return sum
	}
	rank := func(pod rollout.Pod) (int, int) {
		for i, term := range p.OrderPriority {
			if value, ok := pod.Labels.Labels()[term.OrderedKey]; ok {
				number, _ := strconv.Atoi(trailingDigits.FindString(value))
				return i, number
			}
		}
		return -1, 0
	}
	sort.SliceStable(wait, func(i, j int) bool {
		if len(p.WeightPriority) > 0 {
			return weight(wait[i]) > weight(wait[j])
		}
		ri, ni := rank(wait[i])
		rj, nj := rank(wait[j])
		return ri < rj || ri == rj && ni > nj
	})
	return wait
}

func (m model) scatter(wait, all []rollout.Pod) []rollout.Pod {
	var terms []appsv1beta1.UpdateScatterTerm
	add := func(key, value string) {
		if t := (appsv1beta1.UpdateScatterTerm{Key: key, Value: value}); !slices.Contains(terms, t) {
			terms = append(terms, t)
		}
	}
	for _, term := range m.update.ScatterStrategy {
		if term.Value != "*" {
			add(term.Key, term.Value)
			continue
		}
		var values []string
		for _, p := range all {
			if value, ok := p.Labels.Labels()[term.Key]; ok {
				values = append(values, value)
			}
		}
		slices.Sort(values) // OpenKruise has them in any order
		for _, value := range values {
			add(term.Key, value)
		}
	}
	if len(wait) <= 1 || len(terms) == 0 {
		return wait
	}
	with := func(pods []rollout.Pod, t appsv1beta1.UpdateScatterTerm) (m, u []rollout.Pod) {
		for _, p := range pods {
			if p.Labels.Labels()[t.Key] == t.Value {
				m = append(m, p)
			} else {
				u = append(u, p)
			}
		}
		return m, u
	}
	if len(terms) > 1 {
		waiting := func(t appsv1beta1.UpdateScatterTerm) int { m, _ := with(wait, t); return len(m) }
		terms = slices.DeleteFunc(terms, func(t appsv1beta1.UpdateScatterTerm) bool { return waiting(t) == 0 })
		sort.SliceStable(terms, func(i, j int) bool { return waiting(terms[i]) > waiting(terms[j]) })
	}
	for _, t := range terms {
		m, u := with(wait, t)
		if len(m) <= 1 || len(u) <= 1 {
			continue
		}
		allM, allU := with(all, t)
		wait = spread(m, u, float64(len(allM)), float64(len(allU)))
	}
	return wait
}

func spread(m, u []rollout.Pod, allM, allU float64) []rollout.Pod {
	reserved := m[len(m)-1]
	m, allM = m[:len(m)-1], allM-1
	sizes := func(m, u float64) (g, sizeM, sizeU int) {
		groups := math.Min(m, u)
		return int(groups), int(math.Round(m / groups)), int(math.Round(u / groups))
	}
	g, sizeM, sizeU := sizes(float64(len(m)), float64(len(u)))
	remainder := 0
	if allU/allM < float64(len(u))/float64(len(m)) {
		_, sizeM, sizeU = sizes(allM, allU)
		g = min(len(m)/sizeM, len(u)/sizeU)
		remainder = len(u) - g*sizeU
	}
	out := slices.Clone(u[:remainder])
	u = u[remainder:]
	for range g {
		a, b := min(sizeM, len(m)), min(sizeU, len(u))
		out = append(append(out, m[:a]...), u[:b]...)
		m, u = m[a:], u[b:]
	}
	return append(append(append(out, m...), u...), reserved)
}

func selects(s *metav1.LabelSelector, p rollout.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(p.Labels.Labels())
}

// randomUpdate returns a strategy that admission accepts.
func randomUpdate(r *rand.Rand) update {
	one := func(texts ...string) *intstr.IntOrString { return share(texts[r.IntN(len(texts))]) }
	u := update{
		MaxUnavailable: one("-", "0", "1", "2", "7", "10%", "33%", "100%"),
		Partition:      one("-", "-", "0", "1", "3", "10%", "50%", "99%", "100%"),
	}
	switch r.IntN(4) {
	case 0:
		u.PriorityStrategy = byOrder("ord", "zone")
	case 1:
		u.PriorityStrategy = &appsv1beta1.UpdatePriorityStrategy{}
		for _, zone := range []string{"a", "b", "c"} {
			u.PriorityStrategy.WeightPriority = append(u.PriorityStrategy.WeightPriority,
				appsv1beta1.UpdatePriorityWeightTerm{Weight: r.Int32N(3) * 10, MatchSelector: *matching("zone", zone)})
		}
	}
	switch r.IntN(5) {
	case 0:
		u.ScatterStrategy = scatterOver("zone", "a")
	case 1:
		u.ScatterStrategy = scatterOver("zone", "*")
	case 2:
		u.ScatterStrategy = append(scatterOver("zone", "b"), scatterOver("ord", "*")...)
	}
	if r.IntN(6) == 0 {
		u.Selector, u.Partition = matching("zone", "a"), nil
	}
	return u
}

func randomLabels(r *rand.Rand) podstate.LabelSet {
	set := labels.Set{}
	if r.IntN(5) > 0 {
		set["zone"] = string("abc"[r.IntN(3)])
	}
	if r.IntN(2) > 0 {
		set["ord"] = []string{"web-0", "web-1", "web-12", "none", "99999999999999999999"}[r.IntN(5)]
	}
	return podstate.MakeLabelSet(set)
}

// randomPod returns a Pod in a state in which OpenKruise and the operator count the budget in
// the same way.
func randomPod(r *rand.Rand, i int) rollout.Pod {
	p := ready(i)
	p.Labels = randomLabels(r)
	randomState(r, &p)
	return p
}

func randomState(r *rand.Rand, p *rollout.Pod) {
	p.InFlight, p.InTransition, p.Reason = false, false, ""
	p.Order = podstate.Order{
		Assigned: true, Phase: podstate.Running, ReadySince: r.Int64N(4), Created: r.Int64N(4),
		Restarts: r.Int32N(3), NativeRestarts: r.Int32N(3),
	}
	if p.Ready = r.IntN(4) > 0; !p.Ready {
		p.Order.Assigned, p.Order.Phase = r.IntN(2) > 0, podstate.Phase(r.IntN(3))
	}
	switch r.IntN(8) {
	case 0, 1:
		p.Way, p.InFlight = inplace.Current, r.IntN(2) > 0
	case 2:
		p.Way, p.Reason = inplace.Recreate, inplace.ImmutableFieldChanged
	case 3:
		p.Way, p.InTransition = inplace.Images, true
	case 4:
		p.Way = inplace.Resize
	default:
		p.Way = inplace.Images
	}
}

// The queue, fed with events, gives out the Pods that OpenKruise chooses from the whole list,
// if both count the budget in the same way. If a broken Pod waits behind an available one that
// is over budget (T11), the queue gives out the broken Pod too.
func TestTheQueueChoosesWhatOpenKruiseChooses(t *testing.T) {
	var rounds, equal, taken int
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := model{update: randomUpdate(r)}
		var pods []rollout.Pod
		for i := range r.IntN(40) {
			pods = append(pods, randomPod(r, i))
		}
		q := queue(strategy(m.update), pods...)
		for range 6 {
			want := m.choose(slices.Clone(pods))
			got := q.Next(len(pods), 0)
			sameTakes(t, seed, m, got, want)
			rounds++
			taken += len(got)
			m.stops = true
			if strict := m.choose(slices.Clone(pods)); len(strict) == len(want) {
				equal++
			}
			m.stops = false
			for _, take := range got {
				q.Retry(take)
			}
			sameReport(t, m, q.Report(), pods)
			if t.Failed() {
				return
			}
			for range r.IntN(10) {
				if i := r.IntN(len(pods) + 1); i < len(pods) {
					if r.IntN(5) == 0 {
						pods[i].Labels = randomLabels(r)
					}
					randomState(r, &pods[i])
					q.Set(pods[i])
				}
			}
			switch i := r.IntN(len(pods) + 4); {
			case i < len(pods):
				q.Remove(pods[i].UID)
				pods = slices.Delete(pods, i, i+1)
			case i == len(pods):
				m.update = randomUpdate(r)
				if q.SetStrategy(strategy(m.update)) {
					for _, p := range pods {
						q.Set(p)
					}
				}
			case i == len(pods)+1:
				pods = append(pods, randomPod(r, 1000+rounds))
				q.Set(pods[len(pods)-1])
			}
			q.SetCounts(len(pods), 0)
		}
	}
	t.Logf("%d rounds, %d Pods taken, %d rounds without T11", rounds, taken, equal)
	if equal < rounds/2 || taken < rounds {
		t.Errorf("too few rounds prove anything")
	}
}

// sameReport compares the counters of a queue with a count of the Pods.
func sameReport(t *testing.T, m model, got rollout.Report, pods []rollout.Pod) {
	t.Helper()
	want := rollout.Report{}
	blocked := 0
	for _, p := range pods {
		if p.InFlight {
			want.Used++
		}
		if p.Way != inplace.Current {
			want.Outdated++
		}
		switch {
		case p.Way == inplace.Current:
		case m.update.Selector != nil && !selects(m.update.Selector, p):
			want.Unselected++
		case p.Way == inplace.Recreate:
			blocked++
		case p.InTransition:
			want.InTransition++
		default:
			want.Waiting++
		}
	}
	for _, g := range got.Blocked {
		blocked -= int(g.Pods)
	}
	numbers := func(r rollout.Report) []int {
		return []int{r.Outdated, r.Unselected, r.InTransition, r.Waiting, r.Used, r.Taken}
	}
	if !slices.Equal(numbers(got), numbers(want)) || blocked != 0 {
		t.Errorf("the report is %+v, want %+v, and %d blocked Pods more", got, want, blocked)
	}
}

// sameTakes compares Pods as sets, and the order of those of equal cost.
func sameTakes(t *testing.T, seed uint64, m model, got []rollout.Take, want []rollout.Pod) {
	t.Helper()
	var wants []rollout.Take
	for _, charged := range []bool{false, true} {
		for _, p := range want {
			if p.Ready == charged {
				wants = append(wants, rollout.Take{Name: p.Name, Charged: charged})
			}
		}
	}
	if g, w := fmt.Sprint(names(got)), fmt.Sprint(names(wants)); g != w {
		t.Errorf("seed %d, %+v:\n got %s\nwant %s", seed, m.update, g, w)
	}
}
