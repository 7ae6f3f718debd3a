package entries

import (
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/propagation"
)

// Layout are the configuration objects as they stand, by index; nil for those
// that do not exist. Planning never changes what it points to.
type Layout [MaxConfigurations]*admissionregistrationv1.MutatingWebhookConfiguration

// Change is what to do with one configuration object.
type Change struct {
	Index int
	// From is what it was when this was planned; nil if it did not exist. Nothing
	// may be done to an object that has become another since.
	From *admissionregistrationv1.MutatingWebhookConfiguration
	// Object is what it has to become, with the resourceVersion of From; nil says
	// that it has to go.
	Object *admissionregistrationv1.MutatingWebhookConfiguration
}

// Locate returns the object that holds an entry, and its position there.
func (l *Layout) Locate(entry string) (configuration, position int, ok bool) {
	for i, c := range l {
		if at := find(c, entry); at >= 0 {
			return i, at, true
		}
	}
	return 0, 0, false
}

// Holds says whether an entry stands in an object as it should, on whichever
// path; and in which.
func (l *Layout) Holds(e Entry, s *Settings) (configuration int, ok bool) {
	i, at, ok := l.Locate(e.Name)
	if !ok {
		return 0, false
	}
	w := l[i].Webhooks[at]
	path := pathOf(&w)
	return i, (path == propagation.PathPods || path == propagation.PathPodsFresh) &&
		sameEntry(w, s.webhook(e, path)) && len(w.ClientConfig.CABundle) > 0
}

// Widen plans that all entries stand on the fresh path, for SidecarSets that are
// being admitted. Each object that holds one of them gets a new serial, also if
// nothing else about it changes: that is how the leader knows that it has to
// wait for a SidecarSet. No entry is removed, not even a copy. Entries that have
// no room are returned; until the leader has found a place for them they are not
// in force.
func Widen(l Layout, entries []Entry, s *Settings) (changes []Change, homeless []Entry) {
	p := newPlanning(l, s)
	for _, e := range entries {
		if !p.put(e, propagation.PathPodsFresh, true) {
			homeless = append(homeless, e)
		}
	}
	return p.changes(), homeless
}

// State is what the leader knows.
type State struct {
	Layout Layout
	// Wanted are the entries of all stored SidecarSets, combined.
	Wanted []Entry
	// Known says whether every replica knows the content of a SidecarSet, so
	// that its Pods need not be answered on the fresh path.
	Known func(member string) bool
	// Settled says whether an entry has been as it is, for so long that no
	// SidecarSet that it was put there for can still be on its way: with the
	// serial at which it was touched, and with members or without.
	Settled func(entry string, touched int64, orphan bool) bool
	// Refused names entries that the API server does not take.
	Refused map[string]bool
	// CanServe is false while nobody could answer; then no entry is added.
	CanServe bool
}

// Next plans what the objects have to become. It returns the coarse entry too,
// if there is no room for all.
func Next(state State, s *Settings) (changes []Change, overflow *Entry) {
	p := newPlanning(state.Layout, s)
	wanted := map[string]bool{}
	var homeless []Entry
	for _, e := range state.Wanted {
		if state.Refused[e.Name] {
			continue
		}
		wanted[e.Name] = true
		_, _, stands := p.layout.Locate(e.Name)
		if !stands && !state.CanServe {
			wanted[coarseName] = true // if it stands, it may stand for this one
			continue
		}
		if !p.stand(e, state) {
			homeless = append(homeless, e)
		}
	}
	if len(homeless) > 0 {
		overflow = new(merge(homeless))
		wanted[coarseName] = true
		p.stand(*overflow, state)
	}
	p.clear(wanted, state)
	return p.changes(), overflow
}

func merge(homeless []Entry) Entry {
	policy := admissionregistrationv1.Ignore
	var members []string
	for _, e := range homeless {
		members = append(members, e.Members...)
		if e.FailurePolicy == admissionregistrationv1.Fail {
			policy = admissionregistrationv1.Fail
		}
	}
	slices.Sort(members)
	return coarse(members, policy)
}

// RemoveAll plans that there is no object left.
func RemoveAll(l Layout) []Change {
	var changes []Change
	for i, c := range l {
		if c != nil {
			changes = append(changes, Change{Index: i, From: c})
		}
	}
	return changes
}

// Alone returns an object that holds one entry of another one and nothing else,
// so that an API server can be asked what it thinks of it; false if there is no
// such entry.
func Alone(c *admissionregistrationv1.MutatingWebhookConfiguration, entry string) (*admissionregistrationv1.MutatingWebhookConfiguration, bool) {
	at := find(c, entry)
	if at < 0 {
		return nil, false
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: c.Name + "-"},
		Webhooks:   []admissionregistrationv1.MutatingWebhook{*c.Webhooks[at].DeepCopy()},
	}, true
}

// planning is a Layout that is being changed: objects are copied at their first
// change.
type planning struct {
	before, layout Layout
	settings       *Settings
	changed        map[int]bool
	touched        map[int]map[string]int64 // of the changed ones
}

func newPlanning(l Layout, s *Settings) *planning {
	return &planning{before: l, layout: l, settings: s, changed: map[int]bool{}, touched: map[int]map[string]int64{}}
}

// stand makes an entry stand once, where it belongs; false if there is no room. A
// copy may have been put there for a SidecarSet that is on its way: then the
// entry that stays is as if it had been put on the fresh path just now.
func (p *planning) stand(e Entry, state State) bool {
	if p.removeCopies(e.Name) {
		return p.put(e, propagation.PathPodsFresh, true)
	}
	return p.put(e, p.path(e, state), false)
}

// path is where an entry belongs: /pods once everybody knows its members, and no
// SidecarSet is on its way for which it was put on the other.
func (p *planning) path(e Entry, state State) string {
	for _, member := range e.Members {
		if !state.Known(member) {
			return propagation.PathPodsFresh
		}
	}
	i, at, ok := p.layout.Locate(e.Name)
	if !ok || pathOf(&p.layout[i].Webhooks[at]) == propagation.PathPods {
		return propagation.PathPods
	}
	if touched, is := Touched(p.layout[i])[e.Name]; is && !state.Settled(e.Name, touched, false) {
		return propagation.PathPodsFresh
	}
	return propagation.PathPods
}

// put makes an entry stand somewhere, on that path; false if there is no room.
func (p *planning) put(e Entry, path string, touch bool) bool {
	i, at, ok := p.layout.Locate(e.Name)
	if !ok {
		if i, ok = p.room(e); !ok {
			return false
		}
		c := p.edit(i)
		c.Webhooks = append(c.Webhooks, p.settings.webhook(e, path))
	} else {
		p.replace(i, at, p.settings.webhook(e, path))
	}
	if touch {
		p.edit(i)
		p.touched[i][e.Name] = p.nextSerial(i)
	}
	return true
}

// replace makes an entry say something, if it does not; its bundle stays.
func (p *planning) replace(i, at int, w admissionregistrationv1.MutatingWebhook) {
	current := p.layout[i].Webhooks[at]
	if len(current.ClientConfig.CABundle) > 0 {
		w.ClientConfig.CABundle = current.ClientConfig.CABundle
	}
	if !equality.Semantic.DeepEqual(current, w) {
		p.edit(i).Webhooks[at] = w
	}
}

// removeCopies keeps an entry in the first object that holds it only, and says
// whether there was another. A replica that widens before it knows of all objects
// puts an entry in two.
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

// room finds an object for a new entry: its own by hash, or the next that is not
// full. One place is kept for the coarse entry, whether it stands there or not.
func (p *planning) room(e Entry) (int, bool) {
	w := p.settings.webhook(e, propagation.PathPodsFresh)
	for k := range MaxConfigurations {
		i := (e.shard() + k) % MaxConfigurations
		taken := count(p.layout[i])
		if i == 0 && !e.Coarse && find(p.layout[i], coarseName) < 0 {
			taken++
		}
		if taken < MaxEntries && (e.Coarse || size(p.layout[i])+w.Size() <= maxBytes) {
			return i, true
		}
	}
	return 0, false
}

// clear removes what nobody wants: entries of SidecarSets that are gone, after a
// time, and at once what we have not written.
func (p *planning) clear(wanted map[string]bool, state State) {
	for i, c := range p.layout {
		if c == nil {
			continue
		}
		touched := Touched(c)
		kept := slices.DeleteFunc(slices.Clone(c.Webhooks), func(w admissionregistrationv1.MutatingWebhook) bool {
			switch {
			case wanted[w.Name] || w.Name == c.Name+barrierSuffix:
				return false
			case state.Refused[w.Name] || !strings.HasSuffix(w.Name, nameSuffix):
				return true
			default:
				return state.Settled(w.Name, touched[w.Name], true)
			}
		})
		if len(kept) != len(c.Webhooks) {
			p.edit(i).Webhooks = kept
		}
	}
}

// edit returns an object to change, a new one where there is none.
func (p *planning) edit(i int) *admissionregistrationv1.MutatingWebhookConfiguration {
	if !p.changed[i] {
		p.changed[i] = true
		p.layout[i] = p.before.orEmpty(i).DeepCopy()
		p.touched[i] = Touched(p.layout[i])
	}
	return p.layout[i]
}

// nextSerial is the serial of an object after its change.
func (p *planning) nextSerial(i int) int64 {
	return max(Serial(p.before.orEmpty(i))+1, p.settings.MinSerial)
}

func (l *Layout) orEmpty(i int) *admissionregistrationv1.MutatingWebhookConfiguration {
	if l[i] != nil {
		return l[i]
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ConfigurationName(i)}}
}

// changes finishes the objects that differ from what they were.
func (p *planning) changes() []Change {
	for i, c := range p.layout {
		if c != nil && !p.changed[i] && !p.sealed(c) {
			p.edit(i)
		}
	}
	var changes []Change
	for _, i := range slices.Sorted(maps.Keys(p.changed)) {
		if count(p.layout[i]) == 0 {
			if p.before[i] != nil {
				changes = append(changes, Change{Index: i, From: p.before[i]})
			}
			continue
		}
		p.seal(i)
		changes = append(changes, Change{Index: i, From: p.before[i], Object: p.layout[i]})
	}
	return changes
}

// sealed says whether an object has what all of them have.
func (p *planning) sealed(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	at := find(c, c.Name+barrierSuffix)
	return count(c) > 0 && at >= 0 &&
		sameEntry(c.Webhooks[at], p.settings.barrier(c.Name, Serial(c))) && len(c.Webhooks[at].ClientConfig.CABundle) > 0 &&
		c.Labels[LabelConfiguration] == "true" && Owner(c) == p.settings.NamespaceUID
}

// seal gives a changed object its next serial, its entries in one order, and
// what all objects have.
func (p *planning) seal(i int) {
	c := p.layout[i]
	barrier := p.settings.barrier(c.Name, p.nextSerial(i))
	if at := find(c, barrier.Name); at >= 0 {
		if bundle := c.Webhooks[at].ClientConfig.CABundle; len(bundle) > 0 {
			barrier.ClientConfig.CABundle = bundle
		}
		c.Webhooks = slices.Delete(c.Webhooks, at, at+1)
	}
	c.Webhooks = append(c.Webhooks, barrier)
	slices.SortFunc(c.Webhooks, func(a, b admissionregistrationv1.MutatingWebhook) int { return strings.Compare(a.Name, b.Name) })
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	c.Labels[LabelConfiguration] = "true"
	setTouched(c, p.touched[i])
	if Owner(c) != p.settings.NamespaceUID {
		c.OwnerReferences = append(slices.DeleteFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Namespace" }),
			metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: p.settings.Namespace, UID: p.settings.NamespaceUID})
	}
}
