// Package podwebhook plans the Pod webhooks that make API servers call the operator for the Pods
// that SidecarSets select and for no others. It is pure: values in, values out. webhooks/registration
// writes the objects.
//
// Sixteen configuration objects, the shards, hold the webhooks. A hash of its selectors and of the UID
// of the operator's Namespace names the shard of a webhook, so a user cannot fill the shard of another
// user's selectors on purpose. Every write of a shard has a serial, which rises. A shard records its dependencies:
// the SidecarSets that a replica must know before it answers a call for one of its Pods. The
// path of its webhooks has a number, the serial of the last write that added or raised a dependency. So
// a call says what must be known. See docs/design/0005.
package podwebhook

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

// Webhook is one Pod webhook: the Pods that it selects, what an API server does with them if it
// cannot call the operator, and the SidecarSets that it is for.
type Webhook struct {
	// Name is unique. It follows from the selectors.
	Name string
	// Selector and NamespaceSelector choose Pods as in the SidecarSets. A nil
	// NamespaceSelector is every namespace but the excluded ones.
	Selector, NamespaceSelector *metav1.LabelSelector
	// FailurePolicy is Fail if any of the SidecarSets asks for it. TimeoutSeconds is the
	// longest time that one of them asks for.
	FailurePolicy  admissionregistrationv1.FailurePolicyType
	TimeoutSeconds int32
	// Dependencies are those of the SidecarSets, in the order of their names.
	Dependencies []Dependency
}

// Dependency says which SidecarSet a replica must know, at least in which generation, before it
// answers a call. A name and a UID identify it.
type Dependency struct {
	Name string `json:"n"`
	// UID is shortened; see ShortUID.
	UID        string `json:"u"`
	Generation int64  `json:"g"`
	// Review is the serial of the last write by a review of this dependency; 0 if the leader added it.
	Review uint64 `json:"r,omitempty"`
}

// Is reports whether two needs are of the same SidecarSet.
func (n Dependency) Is(other Dependency) bool { return n.Name == other.Name && n.UID == other.UID }

// ShortUID is the part of a UID that needs record.
func ShortUID(uid types.UID) string {
	const length = 8
	return string(uid[:min(len(uid), length)])
}

// DependencyOf is the dependency of a SidecarSet in its generation.
func DependencyOf(set *appsv1beta1.SidecarSet) Dependency {
	return Dependency{Name: set.Name, UID: ShortUID(set.UID), Generation: set.Generation}
}

const (
	// nameSuffix ends the names of all webhooks; they need three parts.
	nameSuffix = ".pods.sidecarset.io"

	// unstoredTimeoutSeconds is the timeout of a webhook that only reviews ask for. It is as
	// short as API servers allow.
	unstoredTimeoutSeconds = 1
	defaultTimeoutSeconds  = 5
)

// Of returns the webhook that a SidecarSet needs. If the API server would refuse the
// webhook, or a SidecarSet of that name, it returns an error that names the SidecarSet's fields.
// Annotations with invalid values count as absent.
func Of(set *appsv1beta1.SidecarSet) (Webhook, error) {
	e := Webhook{
		Selector:          normal(set.Spec.Selector),
		NamespaceSelector: normal(set.Spec.NamespaceSelector),
		FailurePolicy:     failurePolicy(set.Annotations),
		TimeoutSeconds:    timeoutSeconds(set.Annotations),
		Dependencies:      []Dependency{DependencyOf(set)},
	}
	spec := field.NewPath("spec")
	var errs field.ErrorList
	// A review that an unauthenticated client made up can have any name. A dependency is dropped after a read by name,
	// and for some names there is none.
	for _, problem := range validation.NameIsDNSSubdomain(set.Name, false) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), set.Name, problem))
	}
	if selectors.IsEmpty(e.Selector) {
		errs = append(errs, field.Required(spec.Child("selector"), "it selects no Pod while it is empty"))
	}
	// Check the selectors as the user wrote them: normal ones have their expressions elsewhere.
	errs = append(errs, metavalidation.ValidateLabelSelector(set.Spec.Selector, metavalidation.LabelSelectorValidationOptions{}, spec.Child("selector"))...)
	errs = append(errs, metavalidation.ValidateLabelSelector(set.Spec.NamespaceSelector, metavalidation.LabelSelectorValidationOptions{}, spec.Child("namespaceSelector"))...)
	if len(errs) > 0 {
		return Webhook{}, errs.ToAggregate()
	}
	sum := hash(e.Selector, e.NamespaceSelector)
	e.Name = hex.EncodeToString(sum[:8]) + nameSuffix
	return e, nil
}

// Shard is the index of the shard that the webhook belongs in; see ShardOf.
func (e *Webhook) Shard(namespace types.UID) int { return ShardOf(namespace, e.Name) }

// ShardOf is the index of the shard that the webhook of that name belongs in, by the UID of the operator's
// Namespace. If the UID is "", it is the shard in which versions of the operator before v0.1.0 have it.
func ShardOf(namespace types.UID, webhook string) int {
	parts := []any{string(namespace), webhook}
	if namespace == "" {
		parts = parts[1:]
	}
	sum := hash(parts...)
	return int(binary.BigEndian.Uint32(sum[:4]) % Shards)
}

// selectorBytes is the size of the selectors, as validation bounds it.
func (e *Webhook) selectorBytes() int { return selectors.Bytes(e.Selector, e.NamespaceSelector) }

// normal returns an equal selector whose parts are in a fixed order, so that SidecarSets
// with equal selectors share a webhook. An empty selector selects everything, as nil does.
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

func hash(parts ...any) [sha256.Size]byte {
	content, err := json.Marshal(parts)
	if err != nil {
		panic(err) // strings
	}
	return sha256.Sum256(content)
}

func failurePolicy(annotations map[string]string) admissionregistrationv1.FailurePolicyType {
	if annotations[appsv1beta1.AnnotationFailurePolicy] == string(admissionregistrationv1.Ignore) {
		return admissionregistrationv1.Ignore
	}
	return admissionregistrationv1.Fail
}

func timeoutSeconds(annotations map[string]string) int32 {
	seconds, err := strconv.ParseInt(annotations[appsv1beta1.AnnotationTimeoutSeconds], 10, 32)
	if err != nil || seconds < 1 || seconds > appsv1beta1.MaxTimeoutSeconds {
		return defaultTimeoutSeconds
	}
	return int32(seconds)
}

// Combine merges webhooks of the same name. It returns them by shard, in the order of names; see ShardOf.
func Combine(namespace types.UID, webhooks []Webhook) (shards [Shards][]Webhook) {
	byName := map[string]*Webhook{}
	for _, e := range webhooks {
		merged := byName[e.Name]
		if merged == nil {
			e.Dependencies = slices.Clone(e.Dependencies)
			byName[e.Name] = &e
			continue
		}
		if e.FailurePolicy == admissionregistrationv1.Fail {
			merged.FailurePolicy = e.FailurePolicy
		}
		merged.TimeoutSeconds = max(merged.TimeoutSeconds, e.TimeoutSeconds)
		merged.Dependencies = append(merged.Dependencies, e.Dependencies...)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		e := byName[name]
		slices.SortFunc(e.Dependencies, func(a, b Dependency) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
		})
		shard := e.Shard(namespace)
		shards[shard] = append(shards[shard], *e)
	}
	return shards
}
