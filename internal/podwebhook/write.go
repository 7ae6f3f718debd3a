package podwebhook

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
	// MaxWebhooks bounds the webhooks of one shard that stored SidecarSets need: an API server
	// rebuilds all webhooks of an object whenever the object changes.
	MaxWebhooks = 100
	// maxBytes bounds the size of the webhooks that stored SidecarSets need: below half of the
	// 1.5 MB that etcd takes, since a bundle doubles while a CA is replaced.
	maxBytes = 700_000
	// maxDependenciesBytes bounds the dependencies of stored SidecarSets in one shard. API servers take
	// annotations of 256 KiB.
	maxDependenciesBytes = 128 << 10

	// What reviews can do is limited, because any Pod of the cluster can send one. Nothing that is
	// not stored takes room from what is: the leader does not count it.

	// MaxUnstored bounds the webhooks of all shards of which no SidecarSet is stored.
	MaxUnstored = 12
	// maxUnstoredDependencies bounds the dependencies of one webhook that are not stored. A dependency that is present
	// can always be raised.
	maxUnstoredDependencies = 16
	// maxUnstoredDependenciesBytes bounds the dependencies of one shard that are not stored.
	maxUnstoredDependenciesBytes = 64 << 10

	// SidecarSets that move between shards, as in an upgrade, are in both for a while. Then less is added
	// at a time: an API server takes objects of 1.5 MB, and annotations of 256 KiB.
	maxObjectBytes = 1_200_000
	maxRecordBytes = 240 << 10
)

// The reasons why a webhook has no place.
var (
	errBusy     = errors.New("too many SidecarSets that are not stored yet are being admitted; the leader writes the Pod webhook as soon as this one is stored")
	errLarge    = errors.New("its selectors are longer than a new SidecarSet's may be; the leader writes the Pod webhook as soon as the SidecarSet is stored")
	errNoBundle = errors.New("the leader has not written the shard of its Pod webhook yet; it writes the webhook as soon as the SidecarSet is stored")
	errLost     = errors.New("another program has edited the Pod webhook; the leader restores it")
)

// writing is the next version of a shard. Its parts are shared with the present version and with
// the wanted webhooks, so they are replaced, and never changed in place. next copies them.
type writing struct {
	shard    *Shard
	settings *Settings
	object   *admissionregistrationv1.MutatingWebhookConfiguration
	record   record
	raised   bool // a dependency was added or raised
}

// write begins a version whose webhooks are rendered with these excluded namespaces.
func (s *Shard) write(settings *Settings, excluded []string) *writing {
	w := &writing{shard: s, settings: settings, record: s.record}
	w.object = &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta: s.Object.TypeMeta, ObjectMeta: s.Object.ObjectMeta, Webhooks: slices.Clone(s.Object.Webhooks),
	}
	w.record.Excluded = excluded
	if w.record.Dependencies = maps.Clone(s.Dependencies); w.record.Dependencies == nil {
		w.record.Dependencies = map[string][]Dependency{}
	}
	return w
}

// raise makes sure that a webhook has a dependency, in its generation or a later one.
func (w *writing) raise(webhook string, n Dependency) {
	dependencies := w.record.Dependencies[webhook]
	at := slices.IndexFunc(dependencies, n.Is)
	if at < 0 {
		w.record.Dependencies[webhook], w.raised = append(slices.Clip(dependencies), n), true
		return
	}
	has := dependencies[at]
	n.Generation, n.Review = max(n.Generation, has.Generation), max(n.Review, has.Review)
	if n == has {
		return
	}
	dependencies = slices.Clone(dependencies)
	dependencies[at] = n
	w.record.Dependencies[webhook], w.raised = dependencies, w.raised || n.Generation > has.Generation
}

// bytes is the most that a dependency takes in a record. Names of SidecarSets have no characters that
// JSON escapes.
func (n Dependency) bytes() int {
	const numbers = len("18446744073709551615") * 2
	return len(`{"n":"","u":"","g":,"r":},`) + numbers + len(n.Name) + len(n.UID)
}

// next returns the version that is to be written. It shares no memory.
func (w *writing) next() *admissionregistrationv1.MutatingWebhookConfiguration {
	return w.rendered(w.shard.Version).DeepCopy()
}

// rendered returns the object with a serial, the path of its webhooks, its probe webhook, label, record and owner.
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
		r.RequiredSerial = serial
	}
	probe := s.probe(w.shard.Index, &r)
	if at := find(c, probe.Name); at >= 0 {
		present := c.Webhooks[at]
		present.ObjectSelector = naming(present.ObjectSelector, probe.ObjectSelector.MatchExpressions[0])
		carry(&present, &probe)
		c.Webhooks = slices.Delete(c.Webhooks, at, at+1)
	}
	config := s.clientConfig(PodsPath(w.shard.Index, r.RequiredSerial))
	for i := range c.Webhooks {
		if isPodWebhook(&c.Webhooks[i]) { // no webhook of another program may call the operator
			config.CABundle = c.Webhooks[i].ClientConfig.CABundle
			if len(config.CABundle) == 0 {
				config.CABundle = s.Bundle
			}
			c.Webhooks[i].ClientConfig = config
		}
	}
	if len(s.Bundle) > 0 { // RemoveAll has none
		c.Webhooks = append(c.Webhooks, probe)
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

// naming returns a probe's selector with other serials. What another program has added stays.
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
