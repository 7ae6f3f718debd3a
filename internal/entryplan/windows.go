package entryplan

import (
	"maps"
	"time"
)

// Windows records since when each entry, and each recorded name, is unchanged. It
// begins empty, so a new leader counts every window from its start. All times are of
// one clock. It is used by one goroutine.
type Windows map[string]Window

// Window is since when one entry or recorded name is unchanged.
type Window struct {
	touched int64 // see Touched; 0 if it never was
	// Since is when the leader first saw this value of touched.
	Since time.Time
	// Orphaned is when the entry was first seen without members; zero while it has some.
	Orphaned time.Time
}

// Observe updates the windows from the objects at a time.
func (w Windows) Observe(l Layout, wanted []Entry, now time.Time) {
	members := make(map[string]bool, len(wanted))
	for i := range wanted {
		members[wanted[i].Name] = true
	}
	present := map[string]bool{}
	for _, c := range l[:MaxConfigurations] {
		if len(webhooks(c)) == 0 {
			continue
		}
		touched := Touched(c)
		for at := range c.Webhooks {
			name := c.Webhooks[at].Name
			present[name] = true
			known, ok := w[name]
			if !ok || known.touched != touched[name] {
				known.touched, known.Since = touched[name], now
			}
			if members[name] {
				known.Orphaned = time.Time{}
			} else if known.Orphaned.IsZero() {
				known.Orphaned = now
			}
			w[name] = known
		}
	}
	recorded, _ := l.recent()
	for name, mark := range recorded.Names {
		key := recentKey(name)
		present[key] = true
		if known, ok := w[key]; !ok || known.touched != mark.Serial {
			w[key] = Window{touched: mark.Serial, Since: now}
		}
	}
	maps.DeleteFunc(w, func(name string, _ Window) bool { return !present[name] })
}
