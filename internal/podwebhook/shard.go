package podwebhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/podstate"
)

// Shard is one version of a configuration object, as the operator reads it. It is immutable.
type Shard struct {
	Index int
	// Object must not be changed.
	Object *admissionregistrationv1.MutatingWebhookConfiguration
	// Version is the object's resourceVersion.
	Version uint64
	record
}

// record is what a shard says apart from its webhooks.
type record struct {
	// Serial is the resourceVersion that the operator's last write replaced. So it rises, and
	// never repeats, also where the object was emptied or recreated. It is 0 if the operator
	// has not written the object, or if another program has removed the record.
	Serial uint64 `json:"serial,string"`
	// RequiredSerial is the Serial of the last write that added or raised a dependency.
	RequiredSerial uint64 `json:"requiredSerial,string"`
	// Earlier are the last serials before Serial, newest first.
	Earlier []uint64 `json:"earlier,omitempty"`
	// Dependencies are the dependencies by the names of the webhooks.
	Dependencies map[string][]Dependency `json:"dependencies,omitempty"`
	// Namespace is the UID, shortened, of the operator's Namespace by which the last writer found the shards
	// of webhooks. Older versions of the operator leave it out.
	Namespace string `json:"namespace,omitempty"`
	// Excluded are the excluded namespaces that the leader wrote the webhooks with.
	Excluded []string `json:"excluded,omitempty"`
}

const (
	// annotationRecord holds the record of a shard: a JSON object.
	annotationRecord = "sidecarset.io/shard"
	// AnnotationFormat holds the number of the record's format. An object without it has not
	// been written yet.
	AnnotationFormat = "sidecarset.io/format"
	// format is the newest format that this version of the operator reads. Raise it only if an
	// older version would misread what this one writes.
	format = 3
	// earlier is how many serials before its own a probe webhook answers for: reviews that
	// follow each other soon wait for different serials.
	earlier = 7
)

// ErrFormat says that a newer version of the operator has written a shard. This version does
// not change it, and does not rely on it.
var ErrFormat = errors.New("a newer version of the operator has written it, in a format that this version cannot read")

// Parse reads an object. It fails with ErrFormat, or if the object is not a shard. A record that
// cannot be read counts as removed: another program has edited it.
func Parse(c *admissionregistrationv1.MutatingWebhookConfiguration) (*Shard, error) {
	index, ok := ShardNumber(c.Name)
	if !ok {
		return nil, fmt.Errorf("MutatingWebhookConfiguration %s is none of the objects for Pod webhooks", c.Name)
	}
	if value, ok := c.Annotations[AnnotationFormat]; ok {
		if number, err := strconv.Atoi(value); err != nil || number > format {
			return nil, fmt.Errorf("MutatingWebhookConfiguration %s: %w", c.Name, ErrFormat)
		}
	}
	version, err := podstate.ParseVersion(c.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("MutatingWebhookConfiguration %s: %w", c.Name, err)
	}
	s := &Shard{Index: index, Object: c, Version: version}
	// A record of a later version comes from another cluster, with a backup.
	if json.Unmarshal([]byte(c.Annotations[annotationRecord]), &s.record) != nil || s.Serial > version || s.RequiredSerial > s.Serial {
		s.record = record{}
	}
	return s, nil
}

// Unobserved returns the dependencies that a replica does not hold, of the webhooks that select a Pod with
// these labels, or of all webhooks if labels is nil.
func (s *Shard) Unobserved(pod labels.Labels, held func(Dependency) bool) (unobserved []Dependency) {
	for webhook, dependencies := range s.Dependencies {
		before := len(unobserved)
		for _, n := range dependencies {
			if !held(n) {
				unobserved = append(unobserved, n)
			}
		}
		if at := find(s.Object, webhook); at >= 0 && before < len(unobserved) && !selects(&s.Object.Webhooks[at], pod) {
			unobserved = unobserved[:before]
		}
	}
	return unobserved
}

func selects(w *admissionregistrationv1.MutatingWebhook, pod labels.Labels) bool {
	if pod == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(w.ObjectSelector)
	return err != nil || selector.Matches(pod)
}

// HasDependency reports whether a webhook of the shard has a dependency of the SidecarSet in that generation or
// a later one. So API servers that use the shard call the operator for its Pods.
func (s *Shard) HasDependency(webhook string, n Dependency) bool {
	return find(s.Object, webhook) >= 0 && slices.ContainsFunc(s.Dependencies[webhook], func(has Dependency) bool { return has.Is(n) && has.Generation >= n.Generation })
}

// Webhooks returns the names of the Pod webhooks.
func (s *Shard) Webhooks() (names []string) {
	for i := range s.Object.Webhooks {
		if w := &s.Object.Webhooks[i]; isPodWebhook(w) {
			names = append(names, w.Name)
		}
	}
	return names
}

func isPodWebhook(w *admissionregistrationv1.MutatingWebhook) bool {
	return strings.HasSuffix(w.Name, nameSuffix)
}

// Bundle is the CA bundle of the probe webhook; nil if there is none.
func (s *Shard) Bundle() []byte {
	if at := find(s.Object, s.Object.Name+probeSuffix); at >= 0 {
		return s.Object.Webhooks[at].ClientConfig.CABundle
	}
	return nil
}

// IsEmpty reports whether the object has no webhooks.
func (s *Shard) IsEmpty() bool { return len(s.Object.Webhooks) == 0 }

// Unstored returns the names of the webhooks of which no dependency is stored, by what the caller knows;
// see Review.
func (s *Shard) Unstored(stored func(webhook string, n Dependency) bool) (names []string) {
	for _, name := range s.Webhooks() {
		if !slices.ContainsFunc(s.Dependencies[name], func(n Dependency) bool { return stored(name, n) }) {
			names = append(names, name)
		}
	}
	return names
}

// find is the position of a webhook by name, -1 if there is none.
func find(c *admissionregistrationv1.MutatingWebhookConfiguration, name string) int {
	for i := range c.Webhooks { // in place: they are large
		if c.Webhooks[i].Name == name {
			return i
		}
	}
	return -1
}

// Editor returns the last field manager of the webhooks of an object other than the operator; "" if
// there is none.
func Editor(c *admissionregistrationv1.MutatingWebhookConfiguration) (manager string) {
	var last metav1.Time
	for _, f := range c.ManagedFields {
		if f.Time != nil && !f.Time.Before(&last) && !strings.HasPrefix(f.Manager, "sidecarset-operator") && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:webhooks"`) {
			manager, last = f.Manager, *f.Time
		}
	}
	return manager
}
