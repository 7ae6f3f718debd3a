package entry

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// MaxEntries bounds the entries of one slot that stored SidecarSets need: an API server
	// rebuilds all entries of an object whenever the object changes.
	MaxEntries = 100
	// maxBytes bounds the size of the entries that stored SidecarSets need: below half of the
	// 1.5 MB that etcd takes, since a bundle doubles while a CA is replaced.
	maxBytes = 700_000
	// maxNeedsBytes bounds the needs of stored SidecarSets in one slot. API servers take
	// annotations of 256 KiB.
	maxNeedsBytes = 128 << 10

	// What reviews can do is limited, because any Pod of the cluster can send one. Nothing that is
	// not stored takes room from what is: the leader does not count it.

	// MaxUnstored bounds the entries of all slots of which no SidecarSet is stored.
	MaxUnstored = 12
	// maxUnstoredNeeds bounds the needs of one entry that are not stored. A need that is present
	// can always be raised.
	maxUnstoredNeeds = 16
	// maxUnstoredNeedsBytes bounds the needs of one slot that are not stored.
	maxUnstoredNeedsBytes = 64 << 10

	// SidecarSets that move between slots, as in an upgrade, are in both for a while. Then less is added
	// at a time: an API server takes objects of 1.5 MB, and annotations of 256 KiB.
	maxObjectBytes = 1_200_000
	maxRecordBytes = 240 << 10
)

// The reasons why an entry has no place.
var (
	errBusy     = errors.New("too many SidecarSets that are not stored yet are being admitted; the leader writes the webhook entry as soon as this one is stored")
	errLarge    = errors.New("its selectors are longer than those of a new SidecarSet may be; the leader writes the webhook entry as soon as the SidecarSet is stored")
	errNoBundle = errors.New("the leader has not written the slot of its webhook entry yet; it writes the entry as soon as the SidecarSet is stored")
	errLost     = errors.New("another program has edited the webhook entry; the leader restores it")
)

// writing is the next version of a slot. Its parts are shared with the present version and with
// the wanted entries, so they are replaced, and never changed in place. next copies them.
type writing struct {
	slot     *Slot
	settings *Settings
	object   *admissionregistrationv1.MutatingWebhookConfiguration
	record   record
	raised   bool // a need was added or raised
}

// write begins a version whose entries are rendered with these excluded namespaces.
func (s *Slot) write(settings *Settings, excluded []string) *writing {
	w := &writing{slot: s, settings: settings, record: s.record}
	w.object = &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta: s.Object.TypeMeta, ObjectMeta: s.Object.ObjectMeta, Webhooks: slices.Clone(s.Object.Webhooks),
	}
	w.record.Excluded = excluded
	if w.record.Needs = maps.Clone(s.Needs); w.record.Needs == nil {
		w.record.Needs = map[string][]Need{}
	}
	return w
}

// raise makes sure that an entry has a need, in its generation or a later one.
func (w *writing) raise(entry string, n Need) {
	needs := w.record.Needs[entry]
	at := slices.IndexFunc(needs, n.Is)
	if at < 0 {
		w.record.Needs[entry], w.raised = append(slices.Clip(needs), n), true
		return
	}
	has := needs[at]
	n.Generation, n.Review = max(n.Generation, has.Generation), max(n.Review, has.Review)
	if n == has {
		return
	}
	needs = slices.Clone(needs)
	needs[at] = n
	w.record.Needs[entry], w.raised = needs, w.raised || n.Generation > has.Generation
}

// bytes is the most that a need takes in a record. Names of SidecarSets have no characters that
// JSON escapes.
func (n Need) bytes() int {
	const numbers = len("18446744073709551615") * 2
	return len(`{"n":"","u":"","g":,"r":},`) + numbers + len(n.Name) + len(n.UID)
}

// next returns the version that is to be written. It shares no memory.
func (w *writing) next() *admissionregistrationv1.MutatingWebhookConfiguration {
	return w.rendered(w.slot.Version).DeepCopy()
}

// rendered returns the object with a serial, the path of its entries, its barrier entry, label, record and owner.
func (w *writing) rendered(serial uint64) *admissionregistrationv1.MutatingWebhookConfiguration {
	r, s := w.record, w.settings
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta: w.object.TypeMeta, ObjectMeta: *w.object.ObjectMeta.DeepCopy(), Webhooks: slices.Clone(w.object.Webhooks),
	}
	if r.Serial != serial && r.Serial > 0 {
		r.Earlier = append([]uint64{r.Serial}, r.Earlier[:min(len(r.Earlier), earlier-1)]...)
	}
	r.Serial, r.Namespace = serial, ShortUID(s.NamespaceUID)
	if w.raised {
		r.PathSerial = serial
	}
	barrier := s.barrier(w.slot.Index, &r)
	if at := find(c, barrier.Name); at >= 0 {
		present := c.Webhooks[at]
		present.ObjectSelector = naming(present.ObjectSelector, barrier.ObjectSelector.MatchExpressions[0])
		carry(&present, &barrier)
		c.Webhooks = slices.Delete(c.Webhooks, at, at+1)
	}
	config := s.clientConfig(PodsPath(w.slot.Index, r.PathSerial))
	for i := range c.Webhooks {
		if isPodEntry(&c.Webhooks[i]) { // no webhook of another program may call the operator
			config.CABundle = c.Webhooks[i].ClientConfig.CABundle
			if len(config.CABundle) == 0 {
				config.CABundle = s.Bundle
			}
			c.Webhooks[i].ClientConfig = config
		}
	}
	if len(s.Bundle) > 0 { // RemoveAll has none
		c.Webhooks = append(c.Webhooks, barrier)
	}
	setKey(&c.Labels, LabelConfiguration, "true")
	setKey(&c.Annotations, AnnotationFormat, strconv.Itoa(format))
	setKey(&c.Annotations, annotationRecord, string(marshal(r)))
	if !s.Ownerless && owner(c) != s.NamespaceUID {
		c.OwnerReferences = append(slices.DeleteFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Namespace" }),
			metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: s.Namespace, UID: s.NamespaceUID})
	}
	return c
}

// naming returns a barrier's selector with other serials. What another program has added stays.
func naming(selector *metav1.LabelSelector, serials metav1.LabelSelectorRequirement) *metav1.LabelSelector {
	if selector = selector.DeepCopy(); selector != nil {
		for i, r := range selector.MatchExpressions {
			if r.Key == serials.Key && r.Operator == serials.Operator {
				selector.MatchExpressions[i] = serials
			}
		}
	}
	return selector
}

func setKey(all *map[string]string, key, value string) {
	if *all == nil {
		*all = map[string]string{}
	}
	(*all)[key] = value
}

func marshal(value any) []byte {
	out, err := json.Marshal(value)
	if err != nil {
		panic(err) // names and numbers
	}
	return out
}
