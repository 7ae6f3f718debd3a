package rollout

import (
	"cmp"
	"math"
	"slices"
)

// everyValue as the value of a scatter term is every value of its key.
const everyValue = "*"

// maxSpread is the largest number of values that are spread, because each costs a pass
// over the waiting Pods. The least frequent values are ignored.
const maxSpread = 64

// spread is one value of a label, whose Pods are spread over the order.
type spread struct {
	key          int // of Strategy.scatterKeys
	value        string
	all, waiting int // Pods with the value
}

// scatter applies the terms of the strategy, one after another, to Pods that are in order.
func (d *decision) scatter(order []*Pod) []*Pod {
	if len(order) <= 1 {
		return order
	}
	for _, s := range d.spreads(order) {
		order = s.apply(order, d.Total)
	}
	return order
}

// spreads returns the values to spread, in the order in which apply is called: the most
// frequent among waiting Pods first. Equally frequent values are in the order of the
// terms and of their text; in OpenKruise this order is random.
func (d *decision) spreads(order []*Pod) []spread {
	counts := d.countValues(order)
	var result []spread
	for _, term := range d.strategy.source.ScatterStrategy {
		key := slices.Index(d.strategy.scatterKeys, term.Key)
		if s := counts[key][term.Value]; s != nil && term.Value != everyValue {
			result = append(result, *s)
			continue
		}
		from := len(result)
		for value, s := range counts[key] {
			if term.Value == everyValue && value != "" {
				result = append(result, *s)
			}
		}
		slices.SortFunc(result[from:], func(a, b spread) int { return cmp.Compare(a.value, b.value) })
	}
	seen := make(map[spread]bool, len(result))
	result = slices.DeleteFunc(result, func(s spread) bool {
		again := seen[s]
		seen[s] = true
		return again || s.waiting == 0
	})
	slices.SortStableFunc(result, func(a, b spread) int { return cmp.Compare(b.waiting, a.waiting) })
	return result[:min(len(result), maxSpread)]
}

// countValues counts Pods by the values of each of the strategy's scatterKeys. A
// missing label is an empty value.
func (d *decision) countValues(order []*Pod) []map[string]*spread {
	counts := make([]map[string]*spread, len(d.strategy.scatterKeys))
	for key := range counts {
		counts[key] = make(map[string]*spread)
		of := func(t *Traits) *spread {
			value := t.values[key]
			s := counts[key][value]
			if s == nil {
				s = &spread{key: key, value: value}
				counts[key][value] = s
			}
			return s
		}
		for _, t := range d.traits {
			of(t).all++
		}
		for _, p := range order {
			of(p.Traits).waiting++
		}
	}
	return counts
}

// apply spreads the matching Pods evenly over an order, in proportion to their share of
// all Pods. The last of them is moved to the end, so that others are updated before it.
func (s *spread) apply(order []*Pod, all int) []*Pod {
	var with, without []*Pod
	for _, e := range order {
		if e.Traits.values[s.key] == s.value {
			with = append(with, e)
		} else {
			without = append(without, e)
		}
	}
	if len(with) <= 1 || len(without) <= 1 {
		return order
	}
	last := with[len(with)-1]
	with = with[:len(with)-1]

	allWith, allWithout := s.all-1, all-s.all
	m, u := len(with), len(without)
	groups, perWith, perWithout := groupsOf(m, u)
	rest := 0
	if allWithout*m < u*allWith { // fewer without it than there were at the beginning
		_, perWith, perWithout = groupsOf(allWith, allWithout)
		groups = min(m/perWith, u/perWithout)
		rest = u - groups*perWithout
	}

	result := make([]*Pod, 0, len(order))
	move := func(from *[]*Pod, n int) {
		n = min(n, len(*from))
		result = append(result, (*from)[:n]...)
		*from = (*from)[n:]
	}
	move(&without, rest)
	for range groups {
		move(&with, perWith)
		move(&without, perWithout)
	}
	move(&with, len(with))
	move(&without, len(without))
	return append(result, last)
}

// groupsOf divides two kinds of Pods into groups, as many as there are Pods of the
// rarer kind, and returns the number of Pods of each kind per group.
func groupsOf(m, u int) (groups, perM, perU int) {
	groups = max(1, min(m, u))
	round := func(n int) int { return int(math.Round(float64(n) / float64(groups))) }
	return groups, round(m), round(u)
}
