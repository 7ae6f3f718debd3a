package entryplan

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// planning is a Layout that is being changed: objects are copied at their first
// change.
type planning struct {
	before, layout Layout
	settings       *Settings
	touched        map[int]map[string]int64 // of the objects that are changed
	plan           Plan                     // what Next returns
	recent         *recent                  // of the changed object for provisional entries; nil if it was not read

	// Used by Widen alone, which adds nothing to the other objects; nil until hasRoom needs it.
	written map[string]bool // names of provisional entries; see writtenFor

	// Of Next alone.
	state    *State
	filling  int // the object that the last new entry was put into
	together int // how many new entries that object has got
}

// newPlanning leaves out objects of a newer format: a plan does not change them, and does
// not rely on them.
func newPlanning(l Layout, s *Settings) *planning {
	l = l.Readable()
	return &planning{before: l, layout: l, settings: s, touched: map[int]map[string]int64{}, plan: Plan{Foreign: map[string][]string{}}}
}

// touchAlike puts every entry with the selectors of e on the fresh path, as it is;
// false if there is none.
func (p *planning) touchAlike(e Entry) (found bool) {
	for i, at := range p.before.alike(e, p.settings) {
		if i != Provisional {
			p.touch(i, at)
			found = true
		}
	}
	return found
}

// touch puts an entry on the fresh path, for a SidecarSet that is on its way.
func (p *planning) touch(i, at int) {
	config := &p.edit(i).Webhooks[at].ClientConfig
	bundle := config.CABundle
	*config = p.settings.clientConfig(PathPodsFresh)
	if len(bundle) > 0 {
		config.CABundle = bundle
	}
	p.touched[i][p.layout[i].Webhooks[at].Name] = p.nextSerial(i)
}

// provide adds or repairs the provisional entry; false if there is no room for it.
func (p *planning) provide(e Entry) bool {
	if p.layout[Provisional] == nil {
		return false
	}
	provisional := e.provisional()
	w := p.settings.webhook(provisional, PathPodsFresh)
	at := find(p.layout[Provisional], w.Name)
	room, _ := RoomOf(p.layout[Provisional])
	switch {
	case room == 0:
		return false // also if the entry is present: the leader is removing it, and no review may keep it
	case at >= 0:
		p.replace(Provisional, at, provisional, PathPodsFresh)
	case !p.hasRoom(room) || w.Size()-len(w.ClientConfig.CABundle) > maxProvisionalBytes:
		return false
	default:
		c := p.edit(Provisional)
		c.Webhooks = append(c.Webhooks, w)
	}
	p.edit(Provisional)
	p.touched[Provisional][w.Name] = p.nextSerial(Provisional)
	return true
}

// hasRoom reports whether one more provisional entry may be added. Provisional entries for
// whose selectors the leader has written another entry do not count: their SidecarSets are
// stored.
func (p *planning) hasRoom(room int) bool {
	all := count(p.layout[Provisional])
	if all < room || all >= MaxProvisionals {
		return all < room
	}
	if p.written == nil {
		p.written = p.writtenFor()
	}
	for _, name := range p.layout.Provisionals() {
		if p.written[name] {
			all--
		}
	}
	return all < room
}

// writtenFor returns the names of provisional entries for whose selectors the leader has
// written another entry.
func (p *planning) writtenFor() map[string]bool {
	written := map[string]bool{}
	for at := range p.layout[Provisional].Webhooks {
		provisional := &p.layout[Provisional].Webhooks[at]
		for _, c := range p.layout[:MaxConfigurations] {
			for at := range webhooks(c) {
				w := &c.Webhooks[at]
				if !maps.Equal(orEverything(w.ObjectSelector).MatchLabels, orEverything(provisional.ObjectSelector).MatchLabels) { // most differ
					continue
				}
				if e, _, ok := p.settings.author(w).parse(w); ok && e.provisional().Name == provisional.Name && Touched(c)[w.Name] != closed {
					written[provisional.Name] = true
				}
			}
		}
	}
	return written
}

// ensure adds an entry to one object, or repairs it, on its path. It returns false if all
// objects are full. It restarts the window if the entry is new, if touch is true, or if the
// entry has a copy or a provisional entry: a replica may have written these for a
// SidecarSet that is between admission and storage.
func (p *planning) ensure(e Entry, touch bool) bool {
	_, _, present := p.layout.Locate(e.Name)
	if copied, provided := p.removeCopies(e.Name), p.provided(e); touch || copied || provided || !present {
		return p.put(e, PathPodsFresh, true)
	}
	return p.put(e, p.path(e), false)
}

// provided reports whether there is a provisional entry for the Pods of an entry.
func (p *planning) provided(e Entry) bool {
	return !e.Coarse && len(webhooks(p.before[Provisional])) > 0 && find(p.before[Provisional], e.provisional().Name) >= 0
}

// path is where an entry that is present belongs: on /pods once it has settled.
func (p *planning) path(e Entry) string {
	if i, at, ok := p.layout.Locate(e.Name); ok && pathOf(&p.layout[i].Webhooks[at]) == PathPods || p.settled(e.Name) {
		return PathPods
	}
	return PathPodsFresh
}

// settled reports whether an entry was touched longer ago than a window, and all stored
// SidecarSets are known. If not, it notes what is missing.
func (p *planning) settled(entry string) bool {
	if !p.over(p.state.Windows[entry].Since) {
		return false
	}
	p.plan.Incomplete = p.plan.Incomplete || !p.state.Complete
	return p.state.Complete
}

// over reports whether a window that began at since has passed. If not, it notes when
// the window ends.
func (p *planning) over(since time.Time) bool {
	wait := p.state.Window
	if !since.IsZero() {
		wait -= p.state.Now.Sub(since)
	}
	if wait > 0 && (p.plan.Again == 0 || wait < p.plan.Again) {
		p.plan.Again = wait
	}
	return wait <= 0
}

// put adds or repairs an entry, on that path; false if there is no room.
func (p *planning) put(e Entry, path string, touch bool) bool {
	i, at, ok := p.layout.Locate(e.Name)
	if !ok {
		if i, ok = p.room(e); !ok {
			return false
		}
		c := p.edit(i)
		c.Webhooks = append(c.Webhooks, p.settings.webhook(e, path))
	} else {
		p.replace(i, at, e, path)
	}
	if touch {
		p.edit(i)
		p.touched[i][e.Name] = p.nextSerial(i)
	}
	return true
}

// replace writes a webhook anew if it differs from the rendering of an entry. Its bundle stays,
// and what another program leaves out.
func (p *planning) replace(i, at int, e Entry, path string) {
	current := &p.layout[i].Webhooks[at]
	if len(current.ClientConfig.CABundle) > 0 && p.settings.says(current, &e, path) {
		return
	}
	w := p.settings.webhook(e, path)
	carry(current, &w)
	p.edit(i).Webhooks[at] = w
}

// removeCopies keeps an entry in the first object that holds it, and reports whether it
// removed it from another. A leader that writes before it knows all objects may put an
// entry into two.
func (p *planning) removeCopies(name string) bool {
	first, _, ok := p.layout.Locate(name)
	if !ok {
		return false
	}
	removed := false
	for i := first + 1; i < MaxConfigurations; i++ {
		if at := find(p.layout[i], name); at >= 0 {
			c := p.edit(i)
			c.Webhooks = slices.Delete(c.Webhooks, at, at+1)
			removed = true
		}
	}
	return removed
}

// room finds an object for a new entry. Entries that are new at the same time share one,
// so that few objects are written: the one with the fewest entries, until it has got
// entriesTogether. In the first object that exists one place is reserved for the coarse
// entry, present or not.
func (p *planning) room(e Entry) (int, bool) {
	bytes := 0
	if !e.Coarse {
		w := p.settings.webhook(e, PathPodsFresh)
		bytes = w.Size()
	}
	first := slices.IndexFunc(p.layout[:], func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool { return c != nil })
	if p.together > 0 && p.together < entriesTogether && p.fits(p.filling, p.filling == first, bytes) {
		p.together++
		return p.filling, true
	}
	p.together = 0
	fewest := 0
	for i := range MaxConfigurations {
		if n := count(p.layout[i]); (p.together == 0 || n < fewest) && p.fits(i, i == first, bytes) {
			p.filling, p.together, fewest = i, 1, n
		}
	}
	return p.filling, p.together > 0
}

// entriesTogether is how many entries that are new at the same time share an object. A
// higher number leaves objects of unequal sizes.
const entriesTogether = 16

// fits reports whether an object has room for an entry of that size, which is 0 for the
// coarse entry.
func (p *planning) fits(i int, first bool, bytes int) bool {
	c := p.layout[i]
	if c == nil {
		return false
	}
	taken := count(c)
	if first && bytes > 0 && find(c, coarseName) < 0 {
		taken++
	}
	return taken < MaxEntries && (bytes == 0 || c.Size()+bytes <= maxBytes)
}

// clear removes entries of SidecarSets that are gone, a window after they were touched. It
// removes at once entries that the operator has not written. A stranger may send reviews
// that touch an entry again and again. So clear first closes an entry that has had no
// members for a window: reviews do not use a closed entry.
func (p *planning) clear(wanted map[string]bool) {
	state := p.state
	for i := range MaxConfigurations {
		c := p.layout[i]
		if c == nil {
			continue
		}
		p.adopt(i, wanted)
		var closing []string
		p.keep(i, func(w *admissionregistrationv1.MutatingWebhook) bool {
			if wanted[w.Name] || state.Refused[w.Name] {
				return !state.Refused[w.Name]
			}
			if !p.settings.wrote(w) || strings.HasSuffix(w.Name, provisionalSuffix) {
				p.plan.Foreign[c.Name] = append(p.plan.Foreign[c.Name], w.Name)
				return false
			}
			if p.over(state.Windows[w.Name].Since) {
				return !p.settled(w.Name)
			}
			if w.Name != coarseName && Touched(c)[w.Name] != closed && p.over(state.Windows[w.Name].Orphaned) {
				closing = append(closing, w.Name)
			}
			return true
		})
		for _, name := range closing {
			p.edit(i)
			p.touched[i][name] = closed
		}
	}
}

// adopt rewrites entries that a process of the operator with other flags has written, as
// this process would write them. Their SidecarSets may be between admission and storage, or
// stored but not known yet.
func (p *planning) adopt(i int, wanted map[string]bool) {
	for at := range p.layout[i].Webhooks {
		w := &p.layout[i].Webhooks[at]
		if !strings.HasSuffix(w.Name, nameSuffix) || wanted[w.Name] || p.settings.wrote(w) {
			continue
		}
		if e, path, ok := p.settings.author(w).parse(w); ok {
			p.replace(i, at, e, path)
		}
	}
}

// clearProvisional removes provisional entries that others replace, and those that no
// SidecarSet was stored for.
func (p *planning) clearProvisional() {
	state, overflow, c := p.state, p.plan.Overflow, p.layout[Provisional]
	if c == nil {
		return
	}
	replaced := map[string]bool{}
	for i := range state.Wanted {
		e := &state.Wanted[i]
		if !p.provided(*e) {
			continue
		}
		// While the entry of a stored SidecarSet cannot be written, the provisional one
		// stays, unless the API server does not take the entry.
		_, _, present := p.layout.Locate(e.Name)
		if present || state.Refused[e.Name] || overflow != nil && slices.Contains(overflow.Members, e.Members[0]) {
			replaced[e.provisional().Name] = true
		}
	}
	p.keep(Provisional, func(w *admissionregistrationv1.MutatingWebhook) bool {
		if !p.settings.author(w).wrote(w) || !strings.HasSuffix(w.Name, provisionalSuffix) {
			p.plan.Foreign[c.Name] = append(p.plan.Foreign[c.Name], w.Name)
			return false
		}
		return !replaced[w.Name] && !state.Expired[w.Name]
	})
	if room := strconv.Itoa(state.Room); p.layout[Provisional].Annotations[annotationRoom] != room {
		annotate(p.edit(Provisional), annotationRoom, room)
	}
}

// keep removes the entries of an object that are not to be kept. Its barrier stays.
func (p *planning) keep(i int, kept func(*admissionregistrationv1.MutatingWebhook) bool) {
	c := p.layout[i]
	left := make([]admissionregistrationv1.MutatingWebhook, 0, len(c.Webhooks))
	for at := range c.Webhooks {
		if w := &c.Webhooks[at]; w.Name == c.Name+barrierSuffix || kept(w) {
			left = append(left, *w)
		}
	}
	if len(left) != len(c.Webhooks) {
		p.edit(i).Webhooks = left
	}
}

// edit returns a copy of an object to change. The object has to exist.
func (p *planning) edit(i int) *admissionregistrationv1.MutatingWebhookConfiguration {
	if !p.changed(i) {
		p.layout[i] = p.before[i].DeepCopy()
		p.touched[i] = Touched(p.layout[i])
	}
	return p.layout[i]
}

func (p *planning) changed(i int) bool { return p.touched[i] != nil }

// nextSerial is the serial of an object after its change.
func (p *planning) nextSerial(i int) int64 {
	return max(lastSerial(p.before[i])+1, p.settings.MinSerial)
}

// changes returns the objects that have to change, finished, in the order in which they are
// written.
func (p *planning) changes() []Change {
	for i, c := range p.layout {
		if c == nil {
			continue
		}
		if at := find(c, c.Name+barrierSuffix); at >= 0 && !sameEntry(c.Webhooks[at], p.settings.author(&c.Webhooks[at]).barrier(c.Name, Serial(c))) {
			p.plan.Foreign[c.Name] = append(p.plan.Foreign[c.Name], c.Webhooks[at].Name)
		}
		if !p.changed(i) && !p.sealed(c) {
			p.edit(i)
		}
	}
	var changes []Change
	order := slices.SortedFunc(maps.Keys(p.touched), func(a, b int) int { return cmp.Or(cmp.Compare(p.turn(a), p.turn(b)), cmp.Compare(a, b)) })
	for _, i := range order {
		if count(p.layout[i]) == 0 {
			empty(p.layout[i])
		} else {
			p.seal(i)
		}
		if i == Provisional {
			p.setRecent(p.layout[i])
		}
		changes = append(changes, Change{i, p.layout[i], i != Provisional && !p.touches(i)})
	}
	return changes
}

// touches reports whether the change of an object puts an entry on the fresh path.
func (p *planning) touches(i int) bool {
	return slices.Contains(slices.Collect(maps.Values(p.touched[i])), p.nextSerial(i))
}

// turn is when an object is written. One that loses an entry comes after those that only
// gain: the same SidecarSets may have a new entry there.
func (p *planning) turn(i int) int {
	if i == Provisional {
		return 2
	}
	for at := range webhooks(p.before[i]) {
		if find(p.layout[i], p.before[i].Webhooks[at].Name) < 0 {
			return 1
		}
	}
	return 0
}

// sealed reports whether an object has the barrier entry, the label and the owner that seal sets.
func (p *planning) sealed(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	if len(c.Webhooks) == 0 {
		return true
	}
	at := find(c, c.Name+barrierSuffix)
	return count(c) > 0 && at >= 0 &&
		sameEntry(c.Webhooks[at], p.settings.barrier(c.Name, Serial(c))) && len(c.Webhooks[at].ClientConfig.CABundle) > 0 &&
		c.Labels[LabelConfiguration] == "true" && p.owned(c)
}

// owned reports whether an object belongs to the operator's Namespace, or the operator
// may not set its owner.
func (p *planning) owned(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return p.settings.Ownerless || Owner(c) == p.settings.NamespaceUID
}

// seal gives a changed object its next serial, its entries in one order, its barrier
// entry, label, format and owner.
func (p *planning) seal(i int) {
	c := p.layout[i]
	barrier := p.settings.barrier(c.Name, p.nextSerial(i))
	if at := find(c, barrier.Name); at >= 0 {
		carry(&c.Webhooks[at], &barrier)
		c.Webhooks = slices.Delete(c.Webhooks, at, at+1)
	}
	c.Webhooks = append(c.Webhooks, barrier)
	slices.SortFunc(c.Webhooks, func(a, b admissionregistrationv1.MutatingWebhook) int { return strings.Compare(a.Name, b.Name) })
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	c.Labels[LabelConfiguration] = "true"
	annotate(c, AnnotationFormat, strconv.Itoa(format))
	setTouched(c, p.touched[i])
	if p.state != nil && i != Provisional {
		annotate(c, annotationExcluded, strings.Join(p.settings.excluded().Values, ","))
	}
	if !p.owned(c) {
		c.OwnerReferences = append(slices.DeleteFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Namespace" }),
			metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: p.settings.Namespace, UID: p.settings.NamespaceUID})
	}
}
