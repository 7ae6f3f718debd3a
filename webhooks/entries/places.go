package entries

import (
	"maps"
	"slices"
	"time"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/events"
)

// places are where the wanted entries are, and what other programs do to them.
type places struct {
	entries map[string]place // by name
	edits   [entryplan.MaxConfigurations + 1]edits
}

// place is where an entry is, or was before another program removed or changed it.
type place struct {
	placement
	lost bool
}

// placement is the serial since which an entry has been in its object.
type placement struct {
	configuration int
	serial        int64
}

func newPlaces() places { return places{entries: map[string]place{}} }

// of is where an entry is; false if it is not known to be in an object as it has to be.
func (p *places) of(entry string) (placement, bool) {
	known, ok := p.entries[entry]
	return known.placement, ok && !known.lost
}

// note takes in where entries are. It returns how many were lost, and those that are back.
func (p *places) note(v *view) (lost int, restored []entryplan.Entry) {
	wanted := v.wanted
	if v.overflow != nil {
		wanted = append(slices.Clone(wanted), *v.overflow)
	}
	names, edited := map[string]bool{}, map[int]bool{}
	for _, e := range wanted {
		names[e.Name] = true
		before, was := p.of(e.Name)
		i, holds := v.layout.Holds(e, v.settings)
		switch {
		case !holds && was:
			lost++
			edited[before.configuration] = true
			p.entries[e.Name] = place{before, true}
		case holds && (!was || before.configuration != i):
			if p.entries[e.Name].lost {
				restored = append(restored, e)
			}
			p.entries[e.Name] = place{placement{i, entryplan.Serial(v.layout[i])}, false}
		}
	}
	for i := range edited {
		p.edits[i].note(v.now)
	}
	maps.DeleteFunc(p.entries, func(name string, _ place) bool { return !names[name] })
	return lost, restored
}

// place notes since which serial each entry has been where it is, and has an Event written
// about each SidecarSet whose entry the leader restored.
func (l *leader) place(v *view) {
	if v.settings == nil {
		return
	}
	lost, restored := l.places.note(v)
	l.webhooks.m.restored.Add(float64(lost))
	for _, e := range restored {
		at, _ := l.places.of(e.Name)
		for _, member := range e.Members {
			if program, ok := v.catalog.Get(member); ok {
				l.webhooks.options.Tell(events.EntryRestored(events.Of(program.Set), v.layout[at.configuration].Name))
			}
		}
	}
}

// edits are how often another program has changed what the leader wrote into a
// configuration object.
type edits struct {
	count int
	last  time.Time
}

// Ten foreign edits, each within a minute of the last, mean that another program fights
// the leader. Until it stops, Ready stays False, also while the entry is in place.
const (
	editsOfAProgram = 10
	pauseOfEdits    = time.Minute
)

func (e *edits) note(now time.Time) {
	if now.Sub(e.last) >= pauseOfEdits {
		e.count = 0
	}
	e.count++
	e.last = now
}

func (e *edits) goOn(now time.Time) bool {
	return e.count >= editsOfAProgram && now.Sub(e.last) < pauseOfEdits
}
