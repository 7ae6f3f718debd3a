package entries

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/propagation"
)

// Layout are the configuration objects as they stand, by index; nil for those
// that do not exist or cannot be read. Planning never changes what it points to.
type Layout [MaxConfigurations + 1]*admissionregistrationv1.MutatingWebhookConfiguration

// Change is what to do with one configuration object.
type Change struct {
	Index int
	// Object is what it has to become. Its resourceVersion is that of the object
	// from which this was planned; nothing may be done to one that has become another
	// since.
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

// Exist says whether there is an object to write entries of stored SidecarSets in.
func (l *Layout) Exist() bool {
	return slices.ContainsFunc(l[:MaxConfigurations], func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool { return c != nil })
}

// Empty says whether no object holds anything.
func (l *Layout) Empty() bool {
	return !slices.ContainsFunc(l[:], func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
		return c != nil && len(c.Webhooks) > 0
	})
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

// Serves returns an object that has API servers call us on the fresh path for all
// Pods that an entry selects: by an entry with the same selectors, whatever it says
// of failures, or by the provisional one.
func (l *Layout) Serves(e Entry, s *Settings) (configuration int, ok bool) {
	like := s.like(e)
	for i, c := range l {
		for at := range webhooks(c) {
			if w := &c.Webhooks[at]; pathOf(w) == propagation.PathPodsFresh && like(w) {
				return i, true
			}
		}
	}
	return 0, false
}

// Provisionals returns the names of the provisional entries that stand.
func (l *Layout) Provisionals() (names []string) {
	c := l[Provisional]
	for at := range webhooks(c) {
		if name := c.Webhooks[at].Name; strings.HasSuffix(name, provisionalSuffix) {
			names = append(names, name)
		}
	}
	return names
}

// ProvisionalNames returns the names that provisional entries of these would have.
func ProvisionalNames(entries []Entry) map[string]bool {
	names := make(map[string]bool, len(entries))
	for i := range entries {
		names[hash(entries[i].Selector, entries[i].NamespaceSelector)+provisionalSuffix] = true
	}
	return names
}

func webhooks(c *admissionregistrationv1.MutatingWebhookConfiguration) []admissionregistrationv1.MutatingWebhook {
	if c == nil {
		return nil
	}
	return c.Webhooks
}

// Widen plans that API servers call us, on the fresh path, for the Pods of
// SidecarSets that are being admitted. Where entries with the same selectors
// stand, those are put on the fresh path, and nothing else about them changes:
// a review proves nothing, so that it must not change what an entry says. For
// others a provisional entry is added, as long as there is room for one.
//
// Each object that is relied on gets a new serial, also if nothing else about it
// changes: that is how the leader knows that it has to wait for a SidecarSet. No
// entry is removed, not even a copy. Entries that have no room are returned; until
// the leader has found a place for them they are not in force.
func Widen(l Layout, entries []Entry, s *Settings) (changes []Change, homeless []Entry) {
	p := newPlanning(l, s)
	for _, e := range entries {
		if !p.touchAlike(e) && !p.provide(e) {
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
	// Settled says whether no SidecarSet can still be on its way for which an entry
	// was put on the fresh path: with the serial at which it was touched. With orphan
	// it says whether an entry that nobody wants may go.
	Settled func(entry string, touched int64, orphan bool) bool
	// Refused names entries that the API server does not take.
	Refused map[string]bool
	// CanServe is false while nobody could answer; then no entry is added.
	CanServe bool
	// Expired names provisional entries that no SidecarSet was stored for in time.
	Expired map[string]bool
	// Room is how many provisional entries there may be from now on.
	Room int
}

// Plan is what the objects have to become.
type Plan struct {
	// Changes are in the order in which they have to be carried out. The one of the
	// object Provisional comes last, and only after all others were: it removes
	// entries in whose place others have to be in force.
	Changes []Change
	// Overflow is the coarse entry, if there is no room for all; nil otherwise.
	Overflow *Entry
	// Homeless are the members of entries that stand nowhere, since no object can be
	// written.
	Homeless []string
	// Foreign are entries, by object, that are removed or put right since the operator
	// would not have written them.
	Foreign map[string][]string
}

// Next plans what the objects have to become.
func Next(state State, s *Settings) Plan {
	p := newPlanning(state.Layout, s)
	p.promoting = count(p.layout[Provisional]) > 0
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
	plan := Plan{}
	if len(homeless) > 0 {
		overflow := merge(homeless)
		wanted[coarseName] = true
		touch := slices.ContainsFunc(homeless, p.provided)
		if touch && p.put(overflow, propagation.PathPodsFresh, true) || !touch && p.stand(overflow, state) {
			plan.Overflow = &overflow
		} else {
			plan.Homeless = overflow.Members
		}
	}
	p.clear(wanted, state)
	p.clearProvisional(state, plan.Overflow)
	plan.Changes, plan.Foreign = p.changes(), p.foreign
	return plan
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

// RemoveAll plans that no object holds anything.
func RemoveAll(l Layout) []Change {
	var changes []Change
	for i, c := range l {
		if len(webhooks(c)) > 0 {
			c = c.DeepCopy()
			empty(c)
			changes = append(changes, Change{Index: i, Object: c})
		}
	}
	return changes
}

// empty takes out of an object what it holds.
func empty(c *admissionregistrationv1.MutatingWebhookConfiguration) {
	c.Webhooks = nil
	setTouched(c, nil)
}

// Alone returns an object as it would be with one of its entries and nothing else,
// so that an API server can be asked what it thinks of it; false if there is no
// such entry.
func Alone(c *admissionregistrationv1.MutatingWebhookConfiguration, entry string) (*admissionregistrationv1.MutatingWebhookConfiguration, bool) {
	at := find(c, entry)
	if at < 0 {
		return nil, false
	}
	alone := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: *c.ObjectMeta.DeepCopy()}
	alone.Webhooks = []admissionregistrationv1.MutatingWebhook{*c.Webhooks[at].DeepCopy()}
	return alone, true
}

// planning is a Layout that is being changed: objects are copied at their first
// change.
type planning struct {
	before, layout Layout
	settings       *Settings
	changed        map[int]bool
	touched        map[int]map[string]int64 // of the changed ones
	promoting      bool                     // provisional entries stand
	foreign        map[string][]string
}

// newPlanning leaves out what is of a newer format: nothing there is touched, and
// nothing there is relied on.
func newPlanning(l Layout, s *Settings) *planning {
	for i, c := range l {
		if c != nil && !Readable(c) {
			l[i] = nil
		}
	}
	return &planning{before: l, layout: l, settings: s, changed: map[int]bool{}, touched: map[int]map[string]int64{}, foreign: map[string][]string{}}
}

// touchAlike puts every entry with the selectors of e on the fresh path, as it is;
// false if there is none.
func (p *planning) touchAlike(e Entry) (found bool) {
	like := p.settings.like(e)
	for i := range MaxConfigurations {
		for at := range webhooks(p.layout[i]) {
			if like(&p.layout[i].Webhooks[at]) {
				p.touch(i, at)
				found = true
			}
		}
	}
	return found
}

// like returns what says whether a webhook is an entry of ours with the selectors
// of e.
func (s *Settings) like(e Entry) func(*admissionregistrationv1.MutatingWebhook) bool {
	pods, namespaces := orEverything(e.Selector), s.allowed(e.NamespaceSelector)
	return func(w *admissionregistrationv1.MutatingWebhook) bool {
		if !strings.HasSuffix(w.Name, nameSuffix) || w.Name == coarseName ||
			!equality.Semantic.DeepEqual(w.ObjectSelector, pods) || !equality.Semantic.DeepEqual(w.NamespaceSelector, namespaces) {
			return false
		}
		_, ours := s.read(w)
		return ours
	}
}

// touch puts an entry on the fresh path, for a SidecarSet that is on its way.
func (p *planning) touch(i, at int) {
	config := &p.edit(i).Webhooks[at].ClientConfig
	bundle := config.CABundle
	*config = p.settings.clientConfig(propagation.PathPodsFresh)
	if len(bundle) > 0 {
		config.CABundle = bundle
	}
	p.touched[i][p.layout[i].Webhooks[at].Name] = p.nextSerial(i)
}

// provide makes the provisional entry stand; false if there is no room for it.
func (p *planning) provide(e Entry) bool {
	if p.layout[Provisional] == nil {
		return false
	}
	w := p.settings.webhook(e.provisional(), propagation.PathPodsFresh)
	at := find(p.layout[Provisional], w.Name)
	room, _ := RoomOf(p.layout[Provisional])
	switch {
	case at >= 0:
		p.replace(Provisional, at, w)
	case count(p.layout[Provisional]) >= room || w.Size()-len(w.ClientConfig.CABundle) > maxProvisionalBytes:
		return false
	default:
		c := p.edit(Provisional)
		c.Webhooks = append(c.Webhooks, w)
	}
	p.edit(Provisional)
	p.touched[Provisional][w.Name] = p.nextSerial(Provisional)
	return true
}

// stand makes an entry stand once, where it belongs; false if there is no room. A
// copy, or a provisional entry, may have been put there for a SidecarSet that is
// on its way: then the entry that stays is as if it had been put on the fresh path
// just now.
func (p *planning) stand(e Entry, state State) bool {
	if copied, provided := p.removeCopies(e.Name), p.provided(e); copied || provided {
		return p.put(e, propagation.PathPodsFresh, true)
	}
	return p.put(e, p.path(e, state), false)
}

// provided says whether a provisional entry stands for the Pods of an entry.
func (p *planning) provided(e Entry) bool {
	return p.promoting && !e.Coarse && find(p.before[Provisional], e.provisional().Name) >= 0
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
// whether there was another. A leader that wrote before it knew of all objects
// put an entry in two.
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

// room finds an object for a new entry: its own by hash, or the next that exists
// and is not full. In the first that exists one place is kept for the coarse entry,
// whether it stands there or not.
func (p *planning) room(e Entry) (int, bool) {
	w := p.settings.webhook(e, propagation.PathPodsFresh)
	first := slices.IndexFunc(p.layout[:], func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool { return c != nil })
	for k := range MaxConfigurations {
		i := (e.shard() + k) % MaxConfigurations
		if p.layout[i] == nil {
			continue
		}
		taken := count(p.layout[i])
		if i == first && !e.Coarse && find(p.layout[i], coarseName) < 0 {
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
	for i := range MaxConfigurations {
		c := p.layout[i]
		if c == nil {
			continue
		}
		touched := Touched(c)
		p.keep(i, func(w *admissionregistrationv1.MutatingWebhook) bool {
			if wanted[w.Name] || state.Refused[w.Name] {
				return !state.Refused[w.Name]
			}
			if _, ours := p.settings.read(w); !ours || strings.HasSuffix(w.Name, provisionalSuffix) {
				p.foreign[c.Name] = append(p.foreign[c.Name], w.Name)
				return false
			}
			return !state.Settled(w.Name, touched[w.Name], true)
		})
	}
}

// clearProvisional removes provisional entries in whose place others stand, and
// those that no SidecarSet was stored for.
func (p *planning) clearProvisional(state State, overflow *Entry) {
	c := p.layout[Provisional]
	if c == nil {
		return
	}
	replaced := map[string]bool{}
	for i := range state.Wanted {
		e := &state.Wanted[i]
		if !p.promoting {
			break
		}
		// While the entry of a stored SidecarSet cannot stand, it keeps the provisional
		// one, unless the API server does not take it.
		_, _, stands := p.layout.Locate(e.Name)
		if stands || state.Refused[e.Name] || overflow != nil && slices.Contains(overflow.Members, e.Members[0]) {
			replaced[e.provisional().Name] = true
		}
	}
	p.keep(Provisional, func(w *admissionregistrationv1.MutatingWebhook) bool {
		if _, ours := p.settings.read(w); !ours || !strings.HasSuffix(w.Name, provisionalSuffix) {
			p.foreign[c.Name] = append(p.foreign[c.Name], w.Name)
			return false
		}
		return !replaced[w.Name] && !state.Expired[w.Name]
	})
	if room := strconv.Itoa(min(max(state.Room, 0), MaxProvisional)); p.layout[Provisional].Annotations[annotationRoom] != room {
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

// edit returns an object to change. It has to exist.
func (p *planning) edit(i int) *admissionregistrationv1.MutatingWebhookConfiguration {
	if !p.changed[i] {
		p.changed[i] = true
		p.layout[i] = p.before[i].DeepCopy()
		p.touched[i] = Touched(p.layout[i])
	}
	return p.layout[i]
}

// nextSerial is the serial of an object after its change.
func (p *planning) nextSerial(i int) int64 {
	return max(Serial(p.before[i])+1, p.settings.MinSerial)
}

// changes finishes the objects that differ from what they were.
func (p *planning) changes() []Change {
	for i, c := range p.layout {
		if c == nil {
			continue
		}
		if at := find(c, c.Name+barrierSuffix); at >= 0 && !sameEntry(c.Webhooks[at], p.settings.barrier(c.Name, Serial(c))) {
			p.foreign[c.Name] = append(p.foreign[c.Name], c.Webhooks[at].Name)
		}
		if !p.changed[i] && !p.sealed(c) {
			p.edit(i)
		}
	}
	var changes []Change
	for _, i := range slices.Sorted(maps.Keys(p.changed)) {
		if count(p.layout[i]) == 0 {
			empty(p.layout[i])
		} else {
			p.seal(i)
		}
		changes = append(changes, Change{Index: i, Object: p.layout[i]})
	}
	return changes
}

// sealed says whether an object has what all of them have.
func (p *planning) sealed(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	if len(c.Webhooks) == 0 {
		return true
	}
	at := find(c, c.Name+barrierSuffix)
	return count(c) > 0 && at >= 0 &&
		sameEntry(c.Webhooks[at], p.settings.barrier(c.Name, Serial(c))) && len(c.Webhooks[at].ClientConfig.CABundle) > 0 &&
		c.Labels[LabelConfiguration] == "true" && p.owned(c)
}

// owned says whether an object belongs to the operator's Namespace, as far as we
// may say so.
func (p *planning) owned(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return p.settings.Ownerless || Owner(c) == p.settings.NamespaceUID
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
	annotate(c, propagation.AnnotationFormat, strconv.Itoa(format))
	setTouched(c, p.touched[i])
	if !p.owned(c) {
		c.OwnerReferences = append(slices.DeleteFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Namespace" }),
			metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: p.settings.Namespace, UID: p.settings.NamespaceUID})
	}
}
