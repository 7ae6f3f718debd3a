package rollout

import (
	"cmp"
	"slices"
)

// line hands out Pods in order.
type line struct {
	queue []*entry
	// spread: of the Pods with one priority, those come first whose controller has the fewest down.
	spread bool
}

// line returns the Pods in order. Namespaces with the fewest Pods that were refused come first.
// With scatterStrategy, its order decides alone.
func (p *pass) line(from []*entry, spread bool) *line {
	queue := slices.Clone(from)
	slices.SortFunc(queue, order)
	if p.r.strategy.scatters() {
		queue, spread = p.r.scatter(queue), false
	}
	if len(p.refused) > 0 {
		slices.SortStableFunc(queue, func(a, b *entry) int {
			return cmp.Compare(p.refused[a.Record.Namespace], p.refused[b.Record.Namespace])
		})
		spread = false
	}
	return &line{queue, spread}
}

// next removes and returns the first Pod that may be taken; nil if there is none.
func (l *line) next(may func(*entry) bool) *entry {
	first := -1
	for i, e := range l.queue {
		if first >= 0 && (!l.spread || byPriority(l.queue[first], e) != 0) {
			break
		}
		if (first < 0 || e.crew.down < l.queue[first].crew.down) && may(e) {
			first = i
		}
	}
	if first < 0 {
		return nil
	}
	e := l.queue[first]
	l.queue = slices.Delete(l.queue, first, first+1)
	return e
}
