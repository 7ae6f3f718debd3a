package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// judge says which SidecarSets are Ready.
func (l *leader) judge(v *view) {
	if v.layout = l.p.layout; !l.idle.planned || v.layout != l.idle.layout {
		l.place(v)
	}
	waiting := false
	for _, s := range v.sets {
		waiting = waiting || s.ready != s.gen
	}
	if !waiting {
		l.finish(soon)
		return
	}
	serials := map[string][]int64{}
	l.p.call(func() {
		for _, s := range l.p.w.servers {
			if !s.down {
				serials[s.name] = s.serials()
			}
		}
	}, func(ok bool) {
		if ok {
			l.proven = serials
			for _, name := range slices.Sorted(maps.Keys(v.sets)) {
				if s := v.sets[name]; s.ready != s.gen && l.isReady(v, s) {
					l.tell(s)
				}
			}
		}
		l.finish(50 * time.Millisecond)
	})
}

func (l *leader) isReady(v *view, s *sidecarSet) bool {
	n, placed := l.noted[s.name], l.placed[s.entry.Name]
	if _, holds := v.layout.Holds(s.entry, l.p.settings()); !holds || placed.serial == 0 || n == nil || n.uid != s.uid || n.gen != s.gen {
		return false
	}
	if n.written.serial == 0 && !n.was && !l.p.w.rules.noClaim {
		return false
	}
	serial := placed.serial
	if n.written.index == placed.index && !l.p.w.rules.readyWhenPlaced {
		serial = max(serial, n.written.serial)
	}
	for _, serials := range l.proven {
		if serials[placed.index] < serial {
			return false
		}
	}
	return len(l.proven) > 0
}

// tell writes the condition Ready.
func (l *leader) tell(s *sidecarSet) {
	w := l.p.w
	l.p.call(func() {
		if current := w.stored.sets[s.name]; current != nil && current.uid == s.uid && current.gen == s.gen && current.ready != s.gen {
			next := *current
			next.ready = s.gen
			w.putSet(next)
			w.note("%s says that %v is Ready", l.p.name, s)
			w.counts.ready++
			w.promise(&next, fmt.Sprintf("%v is Ready", s))
		}
	}, func(bool) {})
}
