// Package entries plans the webhook entries that make the API server call us
// for the Pods that SidecarSets select and for no others: which entries there
// have to be, in which configuration object each stands, and what each says.
//
// It is pure: values in, values out. Who writes the objects, and how it is known
// that a replica has caught up, is the business of controllers.
//
// Entries are spread over several objects because one has to stay below the
// size that etcd takes, and because an API server rebuilds all entries of an
// object whenever it changes.
package entries

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

const (
	// MaxConfigurations bounds how many configuration objects there are.
	MaxConfigurations = 16
	// MaxEntries bounds the entries of one object: at about 2.2 KB each with a
	// bundle of two CAs, 100 are far below the 1.5 MB that etcd takes.
	MaxEntries = 100

	// maxBytes bounds the size of one object, for selectors and bundles that are
	// larger than usual: below half of the 1.5 MB that etcd takes, since a bundle
	// doubles while a CA is replaced.
	maxBytes = 700_000

	// LabelConfiguration marks the configuration objects that hold planned
	// entries.
	LabelConfiguration = "sidecarset.io/pod-webhooks"

	// nameSuffix ends the names of all entries; they need three parts.
	nameSuffix = ".pods.sidecarset.io"
	// coarseName is that of the entry that stands for all that have no room.
	coarseName = "all" + nameSuffix
)

// Labelled selects the configuration objects that hold planned entries.
func Labelled() labels.Selector {
	return labels.SelectorFromSet(labels.Set{LabelConfiguration: "true"})
}

// ConfigurationName is the name of the i-th configuration object. Objects exist
// only while they hold entries.
func ConfigurationName(i int) string { return "sidecarset-pods-" + strconv.Itoa(i) }

// Index is the inverse of ConfigurationName; false for any other name.
func Index(name string) (int, bool) {
	for i := range MaxConfigurations {
		if name == ConfigurationName(i) {
			return i, true
		}
	}
	return 0, false
}

// Entry is one webhook entry: the Pods that it selects, and what happens if we
// cannot be called for them.
type Entry struct {
	// Name is unique; it follows from the other fields but Members.
	Name string
	// Selector and NamespaceSelector choose Pods as in the SidecarSets. A nil
	// NamespaceSelector is every namespace but the excluded ones.
	Selector, NamespaceSelector *metav1.LabelSelector
	FailurePolicy               admissionregistrationv1.FailurePolicyType
	TimeoutSeconds              int32
	// Members are the names of the SidecarSets that it is for, sorted.
	Members []string
	// Coarse is true for the entry that selects all Pods.
	Coarse bool
}

// Of returns the entry that a SidecarSet needs. The error says why the API
// server would refuse it, by the SidecarSet's fields. Annotations with values
// that mean nothing count as absent.
func Of(set *appsv1beta1.SidecarSet) (Entry, error) {
	e := Entry{
		Selector:          normal(set.Spec.Selector),
		NamespaceSelector: normal(set.Spec.NamespaceSelector),
		FailurePolicy:     failurePolicy(set.Annotations),
		TimeoutSeconds:    timeoutSeconds(set.Annotations),
		Members:           []string{set.Name},
	}
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if empty(e.Selector) {
		errs = append(errs, field.Required(spec.Child("selector"), "it selects no Pod while it is empty"))
	}
	// As they were written: the normal ones have their expressions elsewhere.
	errs = append(errs, metavalidation.ValidateLabelSelector(set.Spec.Selector, metavalidation.LabelSelectorValidationOptions{}, spec.Child("selector"))...)
	errs = append(errs, metavalidation.ValidateLabelSelector(set.Spec.NamespaceSelector, metavalidation.LabelSelectorValidationOptions{}, spec.Child("namespaceSelector"))...)
	if len(errs) > 0 {
		return Entry{}, errs.ToAggregate()
	}
	e.Name = e.hash() + nameSuffix
	return e, nil
}

func empty(s *metav1.LabelSelector) bool {
	return s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0
}

// normal is an equal selector whose parts are in one order, so that SidecarSets
// that say the same share an entry. An empty selector selects everything, as nil
// does.
func normal(s *metav1.LabelSelector) *metav1.LabelSelector {
	if empty(s) {
		return nil
	}
	s = s.DeepCopy()
	for i := range s.MatchExpressions {
		slices.Sort(s.MatchExpressions[i].Values)
	}
	slices.SortFunc(s.MatchExpressions, func(a, b metav1.LabelSelectorRequirement) int {
		if c := strings.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		if c := strings.Compare(string(a.Operator), string(b.Operator)); c != 0 {
			return c
		}
		return slices.Compare(a.Values, b.Values)
	})
	return s
}

// hash identifies what an entry says.
func (e *Entry) hash() string {
	content, err := json.Marshal([]any{e.Selector, e.NamespaceSelector, e.FailurePolicy, e.TimeoutSeconds})
	if err != nil {
		panic(err) // strings and numbers
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// The values of a SidecarSet without the annotations.
const (
	defaultFailurePolicy  = admissionregistrationv1.Fail
	defaultTimeoutSeconds = 5
	// MaxTimeoutSeconds is what the API server takes at most.
	MaxTimeoutSeconds = 30
)

func failurePolicy(annotations map[string]string) admissionregistrationv1.FailurePolicyType {
	if policy := admissionregistrationv1.FailurePolicyType(annotations[appsv1beta1.AnnotationFailurePolicy]); policy == admissionregistrationv1.Ignore {
		return policy
	}
	return defaultFailurePolicy
}

func timeoutSeconds(annotations map[string]string) int32 {
	seconds, err := strconv.ParseInt(annotations[appsv1beta1.AnnotationTimeoutSeconds], 10, 32)
	if err != nil || seconds < 1 || seconds > MaxTimeoutSeconds {
		return defaultTimeoutSeconds
	}
	return int32(seconds)
}

// Combine merges entries that are equal, in name order.
func Combine(entries []Entry) []Entry {
	byName := map[string]Entry{}
	for _, e := range entries {
		merged, ok := byName[e.Name]
		if ok {
			e.Members = append(slices.Clone(merged.Members), e.Members...)
		} else {
			e.Members = slices.Clone(e.Members)
		}
		byName[e.Name] = e
	}
	combined := make([]Entry, 0, len(byName))
	for _, e := range byName {
		slices.Sort(e.Members)
		e.Members = slices.Compact(e.Members)
		combined = append(combined, e)
	}
	slices.SortFunc(combined, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return combined
}

// shard is where an entry stands if there is room.
func (e *Entry) shard() int {
	digit, err := strconv.ParseUint(e.Name[:2], 16, 8)
	if err != nil {
		return 0 // the coarse entry
	}
	return int(digit) % MaxConfigurations
}

func coarse(members []string, policy admissionregistrationv1.FailurePolicyType) Entry {
	return Entry{Name: coarseName, FailurePolicy: policy, TimeoutSeconds: defaultTimeoutSeconds, Members: members, Coarse: true}
}

func (e *Entry) String() string {
	return fmt.Sprintf("entry %s of %s", e.Name, strings.Join(e.Members, ", "))
}
