// Package entryplan plans the webhook entries that make API servers call the operator
// for the Pods that SidecarSets select and for no others: which entries are needed, in
// which configuration object each is, and its content.
//
// It also holds the formats that replicas, leader and API servers share (wire.go). It is
// pure: values in, values out. webhooks/entries writes the objects.
//
// Entries are spread over several objects because an object has to stay below the size that
// etcd takes, and because an API server rebuilds all entries of an object whenever it
// changes. Entries that are new at the same time share an object, so that one write adds
// them. The objects are part of the manifests. A plan fills and empties the objects that
// exist. It neither creates nor deletes objects.
//
// One object is for provisional entries alone. Any Pod of the cluster can send an
// AdmissionReview of a SidecarSet that does not exist, so an entry that only a review
// asks for never refuses Pods, exists for a second at most, and counts against a low
// limit. See docs/design/0005.
package entryplan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

const (
	// MaxConfigurations is the number of configuration objects for the entries of
	// stored SidecarSets.
	MaxConfigurations = 16
	// Provisional is the index of the object for provisional entries.
	Provisional = MaxConfigurations
	// MaxEntries bounds the entries of one object: at about 2.2 KB each with a
	// bundle of two CAs, 100 are far below the 1.5 MB that etcd takes.
	MaxEntries = 100

	// maxBytes bounds the size of one object, for selectors and bundles that are
	// larger than usual: below half of the 1.5 MB that etcd takes, since a bundle
	// doubles while a CA is replaced.
	maxBytes = 700_000

	// MaxProvisional bounds the provisional entries of the whole cluster for which the
	// leader has seen no SidecarSet stored. The arithmetic is in docs/design/0005.
	MaxProvisional = 12
	// MaxProvisionals bounds all provisional entries. Those for which the leader has seen a
	// stored SidecarSet wait for the proof that the SidecarSet's own entry is in force.
	MaxProvisionals = 32
	// maxProvisionalBytes bounds the size of one provisional entry: a stranger may have
	// written its selectors.
	maxProvisionalBytes = 16_000
	// provisionalTimeoutSeconds is as short as API servers allow.
	provisionalTimeoutSeconds = 1

	// LabelConfiguration marks the configuration objects that hold planned
	// entries.
	LabelConfiguration = "sidecarset.io/pod-webhooks"

	// nameSuffix ends the names of all entries; they need three parts.
	nameSuffix = ".pods.sidecarset.io"
	// coarseName is the name of the entry for all Pods. It serves the SidecarSets
	// beyond the limit of entries.
	coarseName = "all" + nameSuffix
	// provisionalSuffix ends the names of provisional entries.
	provisionalSuffix = ".provisional" + nameSuffix
	// provisionalConfiguration sorts behind the others: an API server calls entries
	// in the order of their objects' names, so that what a provisional entry adds is
	// added last.
	provisionalConfiguration = "sidecarset-pods-provisional"
)

// Labelled selects the configuration objects that hold planned entries.
func Labelled() labels.Selector {
	return labels.SelectorFromSet(labels.Set{LabelConfiguration: "true"})
}

// ConfigurationName is the name of the i-th configuration object.
func ConfigurationName(i int) string {
	if i == Provisional {
		return provisionalConfiguration
	}
	return "sidecarset-pods-" + strconv.Itoa(i)
}

// Index is the inverse of ConfigurationName; false for any other name.
func Index(name string) (int, bool) {
	for i := range len(Layout{}) {
		if name == ConfigurationName(i) {
			return i, true
		}
	}
	return 0, false
}

// Entry is one webhook entry: the Pods that it selects, and what an API server does with
// them if it cannot call the operator.
type Entry struct {
	// Name is unique. It follows from the selectors, FailurePolicy and TimeoutSeconds.
	Name string
	// Selector and NamespaceSelector choose Pods as in the SidecarSets. A nil
	// NamespaceSelector is every namespace but the excluded ones.
	Selector, NamespaceSelector *metav1.LabelSelector
	FailurePolicy               admissionregistrationv1.FailurePolicyType
	TimeoutSeconds              int32
	// Members are the names of the SidecarSets that it is for, sorted.
	Members []string
	// Contents has, by name, the Content of each of the Members that was given to Of.
	Contents map[string]string
	// Coarse is true for the entry that selects all Pods.
	Coarse bool
}

// Of returns the entry that a SidecarSet needs. If the API server would refuse the
// entry, it returns an error that names the SidecarSet's fields. Annotations with
// invalid values count as absent.
func Of(set *appsv1beta1.SidecarSet) (Entry, error) {
	e := Entry{
		Selector:          normal(set.Spec.Selector),
		NamespaceSelector: normal(set.Spec.NamespaceSelector),
		FailurePolicy:     failurePolicy(set.Annotations),
		TimeoutSeconds:    timeoutSeconds(set.Annotations),
		Members:           []string{set.Name},
		Contents:          map[string]string{set.Name: Content(set)},
	}
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if selectors.IsEmpty(e.Selector) {
		errs = append(errs, field.Required(spec.Child("selector"), "it selects no Pod while it is empty"))
	}
	// Check the selectors as the user wrote them: normal ones have their expressions elsewhere.
	errs = append(errs, metavalidation.ValidateLabelSelector(set.Spec.Selector, metavalidation.LabelSelectorValidationOptions{}, spec.Child("selector"))...)
	errs = append(errs, metavalidation.ValidateLabelSelector(set.Spec.NamespaceSelector, metavalidation.LabelSelectorValidationOptions{}, spec.Child("namespaceSelector"))...)
	if len(errs) > 0 {
		return Entry{}, errs.ToAggregate()
	}
	e.Name = e.hash() + nameSuffix
	return e, nil
}

// normal returns an equal selector whose parts are in a fixed order, so that SidecarSets
// with equal selectors share an entry. An empty selector selects everything, as nil does.
func normal(s *metav1.LabelSelector) *metav1.LabelSelector {
	if selectors.IsEmpty(s) {
		return nil
	}
	s = s.DeepCopy()
	for i := range s.MatchExpressions {
		slices.Sort(s.MatchExpressions[i].Values)
	}
	slices.SortFunc(s.MatchExpressions, func(a, b metav1.LabelSelectorRequirement) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
	})
	return s
}

// provisional is the entry for the same Pods that serves until the leader sees the
// SidecarSet stored. Its name follows from the selectors alone.
func (e *Entry) provisional() Entry {
	return Entry{
		Name:     hash(e.Selector, e.NamespaceSelector) + provisionalSuffix,
		Selector: e.Selector, NamespaceSelector: e.NamespaceSelector,
		FailurePolicy:  admissionregistrationv1.Ignore,
		TimeoutSeconds: provisionalTimeoutSeconds,
	}
}

// hash identifies the content of an entry.
func (e *Entry) hash() string {
	return hash(e.Selector, e.NamespaceSelector, e.FailurePolicy, e.TimeoutSeconds)
}

func hash(parts ...any) string {
	content, err := json.Marshal(parts)
	if err != nil {
		panic(err) // strings and numbers
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

func failurePolicy(annotations map[string]string) admissionregistrationv1.FailurePolicyType {
	if annotations[appsv1beta1.AnnotationFailurePolicy] == string(admissionregistrationv1.Ignore) {
		return admissionregistrationv1.Ignore
	}
	return admissionregistrationv1.Fail
}

// defaultTimeoutSeconds is the value of a SidecarSet without the annotation.
const defaultTimeoutSeconds = 5

func timeoutSeconds(annotations map[string]string) int32 {
	seconds, err := strconv.ParseInt(annotations[appsv1beta1.AnnotationTimeoutSeconds], 10, 32)
	if err != nil || seconds < 1 || seconds > appsv1beta1.MaxTimeoutSeconds {
		return defaultTimeoutSeconds
	}
	return int32(seconds)
}

// Combine merges entries that are equal, in name order.
func Combine(entries []Entry) []Entry {
	byName := map[string]*Entry{}
	for _, e := range entries {
		merged := byName[e.Name]
		if merged == nil {
			empty := e
			empty.Members, empty.Contents = nil, map[string]string{}
			merged, byName[e.Name] = &empty, &empty
		}
		merged.Members = append(merged.Members, e.Members...)
		addContents(merged.Contents, e.Contents)
	}
	combined := make([]Entry, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		e := *byName[name]
		slices.Sort(e.Members)
		e.Members = slices.Compact(e.Members)
		combined = append(combined, e)
	}
	return combined
}

// addContents adds contents to all. If a SidecarSet is in both, newest merges its Contents.
func addContents(all, contents map[string]string) {
	for name, content := range contents {
		if known, ok := all[name]; ok {
			content = newest(known, content)
		}
		all[name] = content
	}
}

func coarse(members []string, policy admissionregistrationv1.FailurePolicyType) Entry {
	return Entry{Name: coarseName, FailurePolicy: policy, TimeoutSeconds: defaultTimeoutSeconds, Members: members, Coarse: true}
}
