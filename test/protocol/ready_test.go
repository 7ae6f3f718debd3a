package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sidecarset/operator/internal/entries"
)

// judge says which SidecarSets are Ready.
func (l *leader) judge(v *view) {
	if v.layout = l.p.layout; !l.idle.planned || v.layout != l.idle.layout {
		l.place(v)
	}
	for name, s := range v.sets {
		// This leader has just made the entry, on the fresh path.
		i, _, stands := v.layout.Locate(s.entry.Name)
		if n := l.noted[name]; n != nil && stands && n.written == 0 && !n.was && v.wrote[i] == versionOf(v.layout[i]) && !l.isPlain(s.entry) {
			n.written = entries.Serial(v.layout[i])
		}
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
	serial := placed.serial
	switch rules := &l.p.w.rules; {
	case rules.acks && !l.acknowledged(n.version):
		return false
	case rules.acks, rules.readyWhenPlaced:
	case n.written == 0:
		if !rules.noClaim {
			return false
		}
		serial = entries.Serial(v.layout[placed.index])
	default:
		serial = n.written
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
